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

from pointsman.bus.jetstream.client import CLIENT_ERRORS, NatsClient
from pointsman.bus.jetstream.protocol import NOT_DELETED_CODE, PendingCall, WireMessage, error_code, error_text
from pointsman.errors import BusUnavailableError

__all__ = ["ConnectionLostError", "ReplyInbox", "RequestClient"]


class RequestClient:
    """Asks over `client` while `up` is set, and waits for `timeout` seconds; its owner has `replies` listened to.

    `unheard` is told of each subject on which nobody answers.
    """

    def __init__(self, client: NatsClient, timeout: float, unheard: Callable[[str], None]) -> None:
        self._client = client
        self._timeout = timeout
        self._on_no_responders = unheard
        self.replies = ReplyInbox(f"_INBOX.{secrets.token_hex(11)}", timeout)
        self.up = asyncio.Event()
        self.closed = False

    @property
    def connected(self) -> bool:
        return self.up.is_set() and self._client.is_connected

    async def api(self, verb: str, payload: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The JetStream API's answer, which may hold an `error`. Raises `BusUnavailableError` when there is none in
        time."""
        reply = await self.request(f"$JS.API.{verb}", json.dumps(payload).encode() if payload is not None else b"")()
        answer: dict[str, Any] = json.loads(reply)
        if (code := error_code(answer)) and code != NOT_DELETED_CODE and answer["error"].get("code", 0) >= 500:
            raise BusUnavailableError(f"the broker cannot do {verb}: {error_text(answer)}")
        return answer

    def request(
        self,
        subject: str,
        body: bytes = b"",
        headers: bytes = b"",
        *,
        lost: type[BusUnavailableError] = BusUnavailableError,
    ) -> PendingCall[bytes]:
        """One answer; it is asked for at once, unless the connection is away or cannot keep up, which is waited for.

        It raises `lost` when there is none in time.
        """
        if self.connected and not self.closed and not self._client.is_full:
            return partial(self._await_reply, subject, lost, self._send(subject, body, headers))
        return partial(self._send_when_connected, subject, body, headers, lost)

    def _send(self, subject: str, body: bytes, headers: bytes) -> asyncio.Future[WireMessage]:
        reply, answer = self.replies.register()
        try:
            self._client.publish_raw(subject, reply, headers, body)
        except BaseException:
            self.replies.forget(reply)
            raise
        return answer

    async def _send_when_connected(
        self, subject: str, body: bytes, headers: bytes, lost: type[BusUnavailableError]
    ) -> bytes:
        if self.closed:
            raise BusUnavailableError(f"cannot ask on {subject}: this connection was closed; open another one")
        if not self.connected:
            self.up.clear()  # the connection may be gone, and its callback not have run yet
        try:
            async with asyncio.timeout(self._timeout):
                await self.up.wait()
                await self._client.wait_for_capacity()
            asked = self._send(subject, body, headers)
        except TimeoutError:
            raise self._no_reply_error(subject, lost) from None
        except CLIENT_ERRORS as error:
            raise BusUnavailableError(f"cannot ask on {subject}: {error}") from error
        return await self._await_reply(subject, lost, asked)

    def _no_reply_error(self, subject: str, lost: type[BusUnavailableError]) -> BusUnavailableError:
        how = "connected" if self.connected else "not connected"
        return lost(f"no answer on {subject} within {self._timeout} s, {how}")

    async def _await_reply(
        self, subject: str, lost: type[BusUnavailableError], asked: asyncio.Future[WireMessage]
    ) -> bytes:
        try:
            message = await asked
        except TimeoutError:
            raise self._no_reply_error(subject, lost) from None
        except ConnectionLostError:
            raise lost(f"the connection was lost before {subject} was answered") from None
        if message.block and message.status.startswith("503"):
            self._on_no_responders(subject)
            raise BusUnavailableError(
                f"nobody answers on {subject}: no JetStream there, or no stream that takes it; "
                "run set_up, or wait for the cluster to elect a leader"
            )
        return message.data


class ConnectionLostError(Exception):
    """No answer will come: the connection was lost."""


class ReplyInbox:
    """The answers that one connection waits for, each for `timeout` seconds. `inbox` is where they come."""

    def __init__(self, inbox: str, timeout: float) -> None:
        self._prefix = f"{inbox}."
        self._timeout = timeout
        self._pending: dict[str, tuple[asyncio.Future[WireMessage], float]] = {}  # by reply subject, oldest first
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def subject(self) -> str:
        """What to listen to."""
        return f"{self._prefix}*"

    def register(self) -> tuple[str, asyncio.Future[WireMessage]]:
        """Where the next request's answer is to go, and its future: it ends with a `TimeoutError` when none comes."""
        loop = asyncio.get_running_loop()
        self._count += 1
        reply, answer = f"{self._prefix}{self._count}", loop.create_future()
        self._pending[reply] = answer, loop.time() + self._timeout
        if self._timer is None:
            self._timer = loop.call_later(self._timeout, self._expire)
        return reply, answer

    def forget(self, reply: str) -> None:
        """Nobody waits for that answer any more."""
        self._pending.pop(reply, None)

    def on_message(self, message: WireMessage) -> None:
        answer, _ = self._pending.pop(message.subject, (None, 0.0))
        if answer is not None and not answer.done():
            answer.set_result(message)

    def fail_all(self) -> None:
        """End all that wait with `ConnectionLostError`."""
        for answer, _ in self._pending.values():
            if not answer.done():
                _resolve(answer, ConnectionLostError())
        self._pending.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for reply, (answer, until) in list(self._pending.items()):
            if until > now:
                self._timer = loop.call_at(until, self._expire)
                return
            del self._pending[reply]
            if not answer.done():
                _resolve(answer, TimeoutError())


def _resolve(answer: asyncio.Future[WireMessage], error: Exception) -> None:
    """Whoever asked may have given up before waiting: that is no error nobody looked at, as asyncio would log."""
    answer.set_exception(error)
    answer.exception()
