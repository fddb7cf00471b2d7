"""The connection to the broker: opened once, restored whenever it is lost, closed for good, in bounded time.

Reconnecting goes on for ever. Who is asked while it is away waits for it; see `asking`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from pointsman.bus.jetstream.client import CLIENT_ERRORS, NatsClient
from pointsman.bus.jetstream.protocol import BusSubscription, WireMessage
from pointsman.bus.jetstream.request_reply import RequestClient
from pointsman.errors import BusUnavailableError, ConfigurationError
from pointsman.ports.bus import Server
from pointsman.settings import Settings
from pointsman.util.lazy_import import structlog

__all__ = ["RECONNECT_INTERVAL_S", "NatsConnection"]

_log = structlog.get_logger(__name__)

RECONNECT_INTERVAL_S = 0.5  # seconds between tries: a restart takes the broker about one
_PING_INTERVAL_S = 2.0  # seconds; at the third without an answer, after 4 to 6 s, a half-open connection is given up


class NatsConnection:
    """One connection to a NATS server or cluster, over `client`; `name` is how its monitoring shows it.

    `left` and `came_back` are called when it is lost and when it is restored, `unheard` with each subject on which
    nobody answers, and all `listeners` when it is lost.
    """

    def __init__(
        self,
        settings: Settings,
        name: str,
        *,
        left: Callable[[], None],
        came_back: Callable[[], None],
        unheard: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._name = name
        self._on_lost = left
        self._on_restored = came_back
        self._timeout = settings.request_timeout
        self.client = NatsClient()
        self._requests = RequestClient(self.client, self._timeout, unheard)
        self.request, self.api = self._requests.request, self._requests.api
        self.new_inbox = self.client.new_inbox
        self.server: Server | None = None
        self._server_id = ""
        self.restarts = 0
        self._broker_restarted = asyncio.Event()
        self._last_error: asyncio.Future[None] | None = None
        self._reason = ""
        self.listeners: set[Callable[[], None]] = set()

    @property
    def connected(self) -> bool:
        return self._requests.connected

    @property
    def closed(self) -> bool:
        return self._requests.closed

    async def open(self, wait: float | None) -> None:
        """Connect for the first time, trying for `wait` seconds, or for ever.

        Raises:
            BusUnavailableError: no connection within `wait` seconds.
            ConfigurationError: the broker refuses the credentials, or the URL cannot be read.
        """
        settings = self._settings
        self._last_error = asyncio.get_running_loop().create_future()
        trying = asyncio.ensure_future(
            self.client.connect(
                [url.strip() for url in settings.url.split(",")],
                name=self._name,
                user=settings.user,
                password=settings.password,
                token=settings.token,
                user_credentials=settings.credentials,
                max_reconnect_attempts=-1,
                reconnect_time_wait=RECONNECT_INTERVAL_S,  # type: ignore[arg-type]  # only ever slept for
                ping_interval=_PING_INTERVAL_S,  # type: ignore[arg-type]
                error_cb=self._on_error,
                disconnected_cb=self._on_disconnected,
                reconnected_cb=self._on_reconnected,
            )
        )
        try:
            await asyncio.wait({trying, self._last_error}, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            if self._last_error.done():
                raise ConfigurationError(
                    f"{settings.servers} refuses the connection: {self._reason}; "
                    "look at POINTSMAN_CREDENTIALS, _USER, _PASSWORD and _TOKEN"
                )
            if not trying.done():
                raise BusUnavailableError(
                    f"no broker at {settings.servers} within {wait} s: "
                    f"{self._reason or 'no answer'}; `pointsman up` starts one, "
                    "POINTSMAN_URL or --url names another"
                )
            try:
                trying.result()
            except (*CLIENT_ERRORS, ValueError) as error:
                raise ConfigurationError(f"cannot connect to {settings.servers}: {error}") from error
        finally:
            if not trying.done():
                trying.cancel()
                await asyncio.gather(trying, return_exceptions=True)
            self._last_error.cancel()
            self._last_error = None
        await self.subscribe(self._requests.replies.subject, self._requests.replies.on_message)
        self.server = self.client.server or self.server
        self._server_id = self.client.server_id
        self._requests.up.set()
        _log.info("bus_connected", server=settings.servers, client=self._name)

    async def restarted(self, seen: int) -> None:
        """Return when `restarts` is more than `seen`."""
        while self.restarts <= seen:
            self._broker_restarted.clear()
            await self._broker_restarted.wait()

    async def send(self, subject: str, body: bytes = b"", *, reply: str = "", headers: bytes = b"") -> None:
        """Hand it to the connection, which keeps it while it is away, as far as it has room. What it does not take is
        dropped: whoever uses this has another way to notice."""
        try:
            self.client.publish_raw(subject, reply, headers, body)
            await self.client.wait_for_capacity()
        except CLIENT_ERRORS:
            return

    async def subscribe(self, subject: str, heard: Callable[[WireMessage], None]) -> BusSubscription:
        """`heard` is called for every message as it is read. Raises `BusUnavailableError`."""
        try:
            return await self.client.subscribe_raw(subject, heard)
        except CLIENT_ERRORS as error:
            raise BusUnavailableError(f"cannot listen on {subject}: {error}") from error

    def reject_requests(self) -> None:
        """Take no more questions: it is about to be closed."""
        self._requests.closed = True

    async def flush(self) -> None:
        """Return when the broker has all that was sent, or the connection is gone."""
        if self.connected:
            with suppress(*CLIENT_ERRORS):
                await self.client.flush(int(self._timeout) + 1)

    async def close(self) -> None:
        self.reject_requests()
        self._requests.up.clear()
        self._requests.replies.fail_all()
        with suppress(*CLIENT_ERRORS):
            async with asyncio.timeout(self._timeout):
                await self.client.shutdown()

    async def _on_error(self, error: Exception) -> None:
        reason = str(error) or type(error).__name__
        if self._last_error is not None and not self._last_error.done() and "uthoriz" in reason:
            self._reason = reason
            self._last_error.set_result(None)
        elif reason != self._reason:  # one line per reason: a broker that is away gives the same one twice a second
            self._reason = reason
            hint = None if self.connected else "it is tried again until it answers; `pointsman doctor` looks from here"
            _log.warning("bus_error", reason=reason, server=self._settings.servers, connected=self.connected, hint=hint)

    async def _on_disconnected(self) -> None:
        self._requests.up.clear()
        self._on_lost()
        if not self.closed:
            _log.warning("bus_disconnected", reason=self._reason or None)
        self._requests.replies.fail_all()  # none comes; to wait would delay the recovery
        for listener in list(self.listeners):
            listener()

    async def _on_reconnected(self) -> None:
        self._reason = ""
        self.server = self.client.server or self.server
        if self.client.server_id != self._server_id:
            self._server_id = self.client.server_id
            self.restarts += 1
            self._broker_restarted.set()
        self._requests.up.set()
        url = self.client.connected_url
        _log.info("bus_reconnected", server=url.netloc.rpartition("@")[2] if url else None)
        self._on_restored()
