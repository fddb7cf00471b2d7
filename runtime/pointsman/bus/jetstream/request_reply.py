"""Send requests to the broker. A request returns one answer within the timeout, or raises an error with the reason.

A request is sent once. While the connection is down or its buffer is full, the request first waits, for up to one
timeout.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

from pointsman.bus.jetstream.client import CLIENT_ERRORS, NatsClient
from pointsman.bus.jetstream.protocol import NOT_DELETED_CODE, PendingCall, WireMessage, error_code, error_text
from pointsman.bus.jetstream.refusals import Refusal
from pointsman.errors import BusUnavailableError, ConnectionRejectedError, PermissionDeniedError

__all__ = ["ApiUnavailableError", "ConnectionLostError", "NoRespondersError", "ReplyInbox", "RequestClient"]


class RequestClient:
    """Sends requests over `client` while `up` is set, and waits `timeout` seconds for each answer.

    The owner subscribes to `replies`, below `inbox_prefix`. If the subject of a request has no subscriber,
    `on_no_responders` is called with the subject. Requests go to the JetStream API of `domain`; None means the domain
    of the server.
    """

    def __init__(
        self,
        client: NatsClient,
        timeout: float,
        on_no_responders: Callable[[str], None],
        *,
        inbox_prefix: str = "_INBOX",
        domain: str | None = None,
    ) -> None:
        self._client = client
        self._timeout = timeout
        self._on_no_responders = on_no_responders
        self._api_prefix = f"$JS.{domain}.API" if domain else "$JS.API"
        self.replies = ReplyInbox(f"{inbox_prefix}.{secrets.token_hex(11)}", timeout)
        self.up = asyncio.Event()
        self.closed = False
        self.denied: PermissionDeniedError | None = None
        """Set while the broker refuses the subscription to the answers."""
        self._rejected: ConnectionRejectedError | None = None
        self._changed = asyncio.Event()  # set when the connection is restored or rejected

    def connected_again(self) -> None:
        """Send requests again, because the connection is restored."""
        self._rejected = None
        self.up.set()
        self._changed.set()

    def disconnected(self) -> None:
        """Delay new requests until `connected_again`. Fail the requests in flight, because no reply will arrive."""
        self.up.clear()
        self.denied = None
        self._changed.clear()
        self.replies.fail_all()

    def reject(self, error: ConnectionRejectedError | None) -> None:
        """Raise `error` in requests that wait for the connection now, and in later requests.

        With None, later requests wait for the connection again.
        """
        self._rejected = error
        if error is not None:
            self._changed.set()
        elif not self.up.is_set():
            self._changed.clear()

    def refuse(self, refusal: Refusal, error: PermissionDeniedError) -> None:
        """Raise `error` in the requests that will get no reply because of `refusal`."""
        if refusal.operation == "subscribe" and refusal.subject == self.replies.subject:
            self.denied = error
        self.replies.refuse(refusal, error)

    def api_subject(self, verb: str) -> str:
        return f"{self._api_prefix}.{verb}"

    @property
    def connected(self) -> bool:
        return self.up.is_set() and self._client.is_connected

    async def api(self, verb: str, payload: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the JetStream API's answer.

        Args:
            verb: The API call, for example `STREAM.INFO.name`.
            payload: The parameters, sent as JSON; default: an empty body.

        Returns:
            The answer, which may contain an `error`.

        Raises:
            ApiUnavailableError: The API reports an internal failure (5xx).
            BusUnavailableError: No answer arrives in time.
        """
        body = json.dumps(payload).encode() if payload is not None else b""
        reply = await self.request(self.api_subject(verb), body)()
        answer: dict[str, Any] = json.loads(reply.data)
        if (code := error_code(answer)) and code != NOT_DELETED_CODE and answer["error"].get("code", 0) >= 500:
            raise ApiUnavailableError(verb, answer)
        return answer

    def request(
        self,
        subject: str,
        body: bytes = b"",
        headers: bytes = b"",
        *,
        lost: type[BusUnavailableError] = BusUnavailableError,
    ) -> PendingCall[WireMessage]:
        """Send a request at once, or when the connection is up and has capacity.

        Args:
            subject: The validated subject.
            body: The body; default: empty.
            headers: The finished header block; default: no headers.
            lost: The error to raise if no answer arrives in time.

        Returns:
            A call that waits for the answer. The call raises `lost` if no answer arrives in time, and
            `PermissionDeniedError` if the broker refuses the subject.
        """
        if self.denied is not None:
            return partial(_raise, PermissionDeniedError(str(self.denied)))
        if self.connected and not self.closed and not self._client.is_full:
            return partial(self._await_reply, subject, lost, self._send(subject, body, headers))
        return partial(self._send_when_connected, subject, body, headers, lost)

    async def ask(self, subject: str, body: bytes = b"") -> WireMessage:
        """Return the answer to a request, with its headers and its status. Raise the errors of `request`."""
        if self.denied is not None:
            raise PermissionDeniedError(str(self.denied))
        asked = await self._start_when_connected(subject, body, b"", BusUnavailableError)
        return await self._await_reply(subject, BusUnavailableError, asked)

    def _send(self, subject: str, body: bytes, headers: bytes) -> asyncio.Future[WireMessage]:
        reply, answer = self.replies.register(subject)
        try:
            self._client.publish_raw(subject, reply, headers, body)
        except BaseException:
            self.replies.forget(reply)
            raise
        return answer

    async def _send_when_connected(
        self, subject: str, body: bytes, headers: bytes, lost: type[BusUnavailableError]
    ) -> WireMessage:
        return await self._await_reply(subject, lost, await self._start_when_connected(subject, body, headers, lost))

    async def _start_when_connected(
        self, subject: str, body: bytes, headers: bytes, lost: type[BusUnavailableError]
    ) -> asyncio.Future[WireMessage]:
        if self.closed:
            raise BusUnavailableError(
                f"the request on {subject} was not sent: this connection was closed; open a new connection"
            )
        if self.up.is_set() and not self.connected:
            self.up.clear()
            self._changed.clear()  # the connection is lost, but `disconnected` has not been called yet
        try:
            async with asyncio.timeout(self._timeout):
                while not self.up.is_set():
                    if self._rejected is not None:
                        raise ConnectionRejectedError(str(self._rejected))
                    await self._changed.wait()
                await self._client.wait_for_capacity()
            return self._send(subject, body, headers)
        except TimeoutError:
            raise self._no_reply_error(subject, lost) from None
        except CLIENT_ERRORS as error:
            raise BusUnavailableError(f"the request on {subject} was not sent: {error}") from error

    def _no_reply_error(self, subject: str, lost: type[BusUnavailableError]) -> BusUnavailableError:
        how = "connected" if self.connected else "not connected"
        return lost(f"no answer on {subject} within {self._timeout} s, {how}")

    async def _await_reply(
        self, subject: str, lost: type[BusUnavailableError], asked: asyncio.Future[WireMessage]
    ) -> WireMessage:
        try:
            message = await asked
        except TimeoutError:
            raise self._no_reply_error(subject, lost) from None
        except ConnectionLostError:
            raise lost(f"the connection was lost before {subject} was answered") from None
        if message.block and message.status.startswith("503"):
            self._on_no_responders(subject)
            raise NoRespondersError(
                f"no subscriber answers on {subject}: the server has no JetStream, or no stream has this subject; "
                "`pointsman provision` creates the streams; a cluster may have to elect a leader first"
            )
        return message


class NoRespondersError(BusUnavailableError):
    """The broker has no subscriber for the subject of a request."""


class ApiUnavailableError(BusUnavailableError):
    """The JetStream API cannot process a request. `code` is the error code of the API."""

    def __init__(self, verb: str, answer: Mapping[str, Any]) -> None:
        super().__init__(f"the broker cannot do {verb}: {error_text(answer)}")
        self.code = error_code(answer)


class ConnectionLostError(Exception):
    """The connection was lost, so no answer will arrive."""


class ReplyInbox:
    """The pending replies of one connection. A reply arrives on a subject below `inbox`, within `timeout` seconds."""

    def __init__(self, inbox: str, timeout: float) -> None:
        self._prefix = f"{inbox}."
        self._timeout = timeout
        # By reply subject, oldest first: the answer, its deadline, and the subject of the request.
        self._pending: dict[str, tuple[asyncio.Future[WireMessage], float, str]] = {}
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def subject(self) -> str:
        """Return the subject of the subscription for replies."""
        return f"{self._prefix}*"

    def register(self, subject: str = "") -> tuple[str, asyncio.Future[WireMessage]]:
        """Return the reply subject for a new request on `subject`, and the answer, which may raise `TimeoutError`."""
        loop = asyncio.get_running_loop()
        self._count += 1
        reply, answer = f"{self._prefix}{self._count}", loop.create_future()
        self._pending[reply] = answer, loop.time() + self._timeout, subject
        if self._timer is None:
            self._timer = loop.call_later(self._timeout, self._expire)
        return reply, answer

    def forget(self, reply: str) -> None:
        """Remove a pending reply that the caller does not need any more."""
        self._pending.pop(reply, None)

    def on_message(self, message: WireMessage) -> None:
        answer, _, _ = self._pending.pop(message.subject, (None, 0.0, ""))
        if answer is not None and not answer.done():
            answer.set_result(message)

    def refuse(self, refusal: Refusal, error: Exception) -> None:
        """Raise `error` in the requests that will get no reply because of `refusal`."""
        everything = refusal.operation == "subscribe" and refusal.subject == self.subject
        for reply, (answer, _, subject) in list(self._pending.items()):
            if everything or refusal.concerns(subject, reply):
                del self._pending[reply]
                if not answer.done():
                    _resolve(answer, error)

    def fail_all(self) -> None:
        """Fail all pending requests with `ConnectionLostError`."""
        for answer, _, _ in self._pending.values():
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
        for reply, (answer, until, _) in list(self._pending.items()):
            if until > now:
                self._timer = loop.call_at(until, self._expire)
                return
            del self._pending[reply]
            if not answer.done():
                _resolve(answer, TimeoutError())


async def _raise(error: Exception) -> NoReturn:
    raise error


def _resolve(answer: asyncio.Future[WireMessage], error: Exception) -> None:
    """Fail a reply, and mark the error as read. Otherwise asyncio logs the error if the caller has stopped waiting."""
    answer.set_exception(error)
    answer.exception()
