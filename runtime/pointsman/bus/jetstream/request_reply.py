"""Asking the broker: a question has one answer within the time-out, or it is said why there is none.

It is asked once. While the connection is away or full it waits its turn, for as long again at most.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pointsman.bus.jetstream.client import FAILURES, NatsClient
from pointsman.bus.jetstream.protocol import NOT_DELETED, Arrival, UnderWay, error_code, said
from pointsman.errors import BusUnavailable

__all__ = ["Abandoned", "Asking", "Replies"]


class Asking:
    """Asks over `client` while `up` is set, and waits for `timeout` seconds; its owner has `replies` listened to.

    `unheard` is told of each subject on which nobody answers.
    """

    def __init__(self, client: NatsClient, timeout: float, unheard: Callable[[str], None]) -> None:
        self._client = client
        self._timeout = timeout
        self._unheard = unheard
        self.replies = Replies(f"_INBOX.{secrets.token_hex(11)}", timeout)
        self.up = asyncio.Event()
        self.closed = False

    @property
    def connected(self) -> bool:
        return self.up.is_set() and self._client.is_connected

    async def api(self, verb: str, payload: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The JetStream API's answer, which may hold an `error`. Raises `BusUnavailable` when there is none in time."""
        reply = await self.ask(f"$JS.API.{verb}", json.dumps(payload).encode() if payload is not None else b"")()
        answer: dict[str, Any] = json.loads(reply)
        if (code := error_code(answer)) and code != NOT_DELETED and answer["error"].get("code", 0) >= 500:
            raise BusUnavailable(f"the broker cannot do {verb}: {said(answer)}")
        return answer

    def ask(
        self, subject: str, body: bytes = b"", headers: bytes = b"", *, lost: type[BusUnavailable] = BusUnavailable
    ) -> UnderWay[bytes]:
        """One answer; it is asked for at once, unless the connection is away or cannot keep up, which is waited for.

        It raises `lost` when there is none in time.
        """
        if self.connected and not self.closed and not self._client.is_full:
            return partial(self._answer, subject, lost, self._ask(subject, body, headers))
        return partial(self._ask_later, subject, body, headers, lost)

    def _ask(self, subject: str, body: bytes, headers: bytes) -> asyncio.Future[Arrival]:
        reply, answer = self.replies.expect()
        try:
            self._client.put(subject, reply, headers, body)
        except BaseException:
            self.replies.forget(reply)
            raise
        return answer

    async def _ask_later(self, subject: str, body: bytes, headers: bytes, lost: type[BusUnavailable]) -> bytes:
        if self.closed:
            raise BusUnavailable(f"cannot ask on {subject}: this connection was closed; open another one")
        if not self.connected:
            self.up.clear()  # the connection may be gone, and its callback not have run yet
        try:
            async with asyncio.timeout(self._timeout):
                await self.up.wait()
                await self._client.keep_up()
            asked = self._ask(subject, body, headers)
        except TimeoutError:
            raise self._silent(subject, lost) from None
        except FAILURES as error:
            raise BusUnavailable(f"cannot ask on {subject}: {error}") from error
        return await self._answer(subject, lost, asked)

    def _silent(self, subject: str, lost: type[BusUnavailable]) -> BusUnavailable:
        how = "connected" if self.connected else "not connected"
        return lost(f"no answer on {subject} within {self._timeout} s, {how}")

    async def _answer(self, subject: str, lost: type[BusUnavailable], asked: asyncio.Future[Arrival]) -> bytes:
        try:
            message = await asked
        except TimeoutError:
            raise self._silent(subject, lost) from None
        except Abandoned:
            raise lost(f"the connection was lost before {subject} was answered") from None
        if message.block and message.status.startswith("503"):
            self._unheard(subject)
            raise BusUnavailable(
                f"nobody answers on {subject}: no JetStream there, or no stream that takes it; "
                "run set_up, or wait for the cluster to elect a leader"
            )
        return message.data


class Abandoned(Exception):
    """No answer will come: the connection was lost."""


class Replies:
    """The answers that one connection waits for, each for `timeout` seconds. `inbox` is where they come."""

    def __init__(self, inbox: str, timeout: float) -> None:
        self._prefix = f"{inbox}."
        self._timeout = timeout
        self._waiting: dict[str, tuple[asyncio.Future[Arrival], float]] = {}  # by reply subject, oldest first
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def subject(self) -> str:
        """What to listen to."""
        return f"{self._prefix}*"

    def expect(self) -> tuple[str, asyncio.Future[Arrival]]:
        """Where the next request's answer is to go, and its future: it ends with a `TimeoutError` when none comes."""
        loop = asyncio.get_running_loop()
        self._count += 1
        reply, answer = f"{self._prefix}{self._count}", loop.create_future()
        self._waiting[reply] = answer, loop.time() + self._timeout
        if self._timer is None:
            self._timer = loop.call_later(self._timeout, self._give_up)
        return reply, answer

    def forget(self, reply: str) -> None:
        """Nobody waits for that answer any more."""
        self._waiting.pop(reply, None)

    def arrived(self, message: Arrival) -> None:
        answer, _ = self._waiting.pop(message.subject, (None, 0.0))
        if answer is not None and not answer.done():
            answer.set_result(message)

    def abandon(self) -> None:
        """End all that wait with `Abandoned`."""
        for answer, _ in self._waiting.values():
            if not answer.done():
                _end(answer, Abandoned())
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for reply, (answer, until) in list(self._waiting.items()):
            if until > now:
                self._timer = loop.call_at(until, self._give_up)
                return
            del self._waiting[reply]
            if not answer.done():
                _end(answer, TimeoutError())


def _end(answer: asyncio.Future[Arrival], error: Exception) -> None:
    """Whoever asked may have given up before waiting: that is no error nobody looked at, as asyncio would log."""
    answer.set_exception(error)
    answer.exception()
