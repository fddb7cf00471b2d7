"""Open the connection to the broker, restore it after each loss, and close it within a bounded time.

The tries to reconnect have no time limit. A request waits while the connection is down; see `request_reply`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pointsman.bus.jetstream.client import CLIENT_ERRORS, NatsClient, TlsRequiredError
from pointsman.bus.jetstream.login import Login
from pointsman.bus.jetstream.protocol import BusSubscription, WireMessage
from pointsman.bus.jetstream.reader_names import ReaderNames
from pointsman.bus.jetstream.refusals import Refusal, is_login_refused
from pointsman.bus.jetstream.request_reply import RequestClient
from pointsman.bus.jetstream.tls import demands_tls, tls_context, tls_fault
from pointsman.errors import BusUnavailableError, ConfigurationError, ConnectionRejectedError, PermissionDeniedError
from pointsman.ports.bus import Server
from pointsman.settings import Settings
from pointsman.util.lazy_import import structlog

__all__ = ["RECONNECT_INTERVAL_S", "NatsConnection"]

_log = structlog.get_logger(__name__)

RECONNECT_INTERVAL_S = 0.5  # seconds between tries: a restart of the broker takes about 1 s
_PASSING_STATUSES = (408, 425, 429)  # HTTP statuses after which a later try might succeed
_OPTIONAL_HINT = (
    "the process uses the streams and consumers that exist; with POINTSMAN_PROVISION=false, this request is not sent"
)
_MAX_REPORTED = 100  # largest number of refused subjects that are logged; each subject is logged once
_LATE_REFUSAL_S = 5.0  # seconds for which the refusal of an abandoned request might still arrive
_CLOSE_TIMEOUT_S = 0.25  # seconds that a close may take, because a silent socket must not delay the exit of a process
_PING_INTERVAL_S = 2.0  # seconds between pings; after three unanswered pings (4 to 6 s), the connection is closed


class NatsConnection:
    """One connection to a NATS server or cluster, over `client`. The broker's monitoring shows `name`.

    `on_lost` and all `listeners` are called when the connection is lost, `on_restored` when the connection is restored.
    If the subject of a request has no subscriber, `on_no_responders` is called with the subject.
    """

    def __init__(
        self,
        settings: Settings,
        name: str,
        *,
        on_lost: Callable[[], None],
        on_restored: Callable[[], None],
        on_no_responders: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._name = name
        self._on_lost = on_lost
        self._on_restored = on_restored
        self._timeout = settings.request_timeout
        self.client = NatsClient(settings.inbox_prefix)
        self.client.on_refusal = self._on_refusal
        self._requests = RequestClient(
            self.client,
            self._timeout,
            on_no_responders,
            inbox_prefix=settings.inbox_prefix,
            domain=settings.jetstream_domain,
        )
        self.request, self.ask = self._requests.request, self._requests.ask
        self.api, self.api_subject = self._requests.api, self._requests.api_subject
        self.new_inbox = self.client.new_inbox
        self.reader_names = ReaderNames(settings.inbox_prefix)
        self.server: Server | None = None
        self._server_id = ""
        self.restarts = 0
        self._broker_restarted = asyncio.Event()
        self._opening: asyncio.Future[None] | None = None
        self._login = "a client without a login"
        self._faults: dict[str, str] = {}  # by server, since the last connection; an empty text for a transient fault
        self._reason = ""
        self._reasons: set[str] = set()  # the reasons logged since the last connection
        self._reported: set[tuple[bool, str, str]] = set()  # logged refusals: True if optional, and `Refusal.kind`
        self._optional: Counter[str] = Counter()  # prefixes of the subjects of optional requests
        self.listeners: set[Callable[[], None]] = set()
        self.refusal_listeners: set[Callable[[Refusal, PermissionDeniedError], None]] = set()

    @property
    def connected(self) -> bool:
        return self._requests.connected

    @property
    def closed(self) -> bool:
        return self._requests.closed

    async def open(self, wait: float | None) -> None:
        """Connect for the first time. Try for `wait` seconds; None means without a limit.

        Raises:
            BusUnavailableError: The broker accepted no connection within `wait` seconds.
            ConfigurationError: A file that a setting names cannot be used, a package is missing, the broker refuses the
                login, TLS fails, or the URL cannot be read.
        """
        settings = self._settings
        login = Login(settings)
        tls = tls_context(settings) if demands_tls(settings) else None
        self._login = str(login)
        self._opening = asyncio.get_running_loop().create_future()
        trying = asyncio.ensure_future(
            self.client.open(
                login,
                tls=tls,
                handshake_first=settings.tls_handshake_first,
                name=self._name,
                max_reconnect_attempts=-1,
                reconnect_time_wait=RECONNECT_INTERVAL_S,
                ping_interval=_PING_INTERVAL_S,
                error_cb=self._on_error,
                disconnected_cb=self._on_disconnected,
                reconnected_cb=self._on_reconnected,
            )
        )
        opened = False
        try:
            await asyncio.wait({trying, self._opening}, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            if self._opening.done():
                self._opening.result()
            if not trying.done():
                if self.client.was_greeted:
                    raise BusUnavailableError(
                        f"the broker at {settings.servers} accepts no connection within {wait} s: "
                        f"{self._reason or 'no answer'}"
                    )
                raise BusUnavailableError(
                    f"no broker at {settings.servers} within {wait} s: "
                    f"{self._reason or 'no answer'}; start a broker with `pointsman up`, "
                    "or name another broker by POINTSMAN_URL or --url"
                )
            try:
                trying.result()
            except (*CLIENT_ERRORS, ValueError) as error:
                raise ConfigurationError(f"cannot connect to {settings.servers}: {error}") from error
            await self._subscribe_replies()
            opened = True
        finally:
            if not trying.done():
                trying.cancel()
                await asyncio.gather(trying, return_exceptions=True)
            self._opening.cancel()
            self._opening = None
            if not opened:
                await self.close()
        self.server = self.client.server or self.server
        self._server_id = self.client.server_id
        self._faults.clear()
        self._requests.connected_again()
        _log.info("bus_connected", server=settings.servers, client=self._name)

    async def _subscribe_replies(self) -> None:
        """Subscribe to the replies, and flush. If the broker refuses, its refusal arrives before the flush returns."""
        await self.subscribe(self._requests.replies.subject, self._requests.replies.on_message)
        await self.flush_client()
        if self._requests.denied is not None:
            raise self._requests.denied

    async def restarted(self, seen: int) -> None:
        """Return when `restarts` is greater than `seen`."""
        while self.restarts <= seen:
            self._broker_restarted.clear()
            await self._broker_restarted.wait()

    async def send(self, subject: str, body: bytes = b"", *, reply: str = "", headers: bytes = b"") -> None:
        """Send a message. If the connection is down and its buffer is full, drop the message.

        Callers detect the loss: a request gets no answer, and the broker redelivers a delivery that is not settled.
        """
        try:
            self.client.publish_raw(subject, reply, headers, body)
            if self.client.is_full:
                await self.client.wait_for_capacity()
        except CLIENT_ERRORS:
            return

    async def subscribe(self, subject: str, on_message: Callable[[WireMessage], None]) -> BusSubscription:
        """Call `on_message` for every message when the message is read. A failure raises `BusUnavailableError`."""
        try:
            return await self.client.subscribe_raw(subject, on_message)
        except CLIENT_ERRORS as error:
            raise BusUnavailableError(f"cannot subscribe to {subject}: {error}") from error

    def reject_requests(self) -> None:
        """Reject new requests, because the connection will be closed."""
        self._requests.closed = True

    async def flush(self) -> None:
        """Return when the broker has received all sent messages, or the connection is lost."""
        if self.connected:
            await self.flush_client()

    async def flush_client(self) -> None:
        with suppress(*CLIENT_ERRORS):
            await self.client.flush(int(self._timeout) + 1)

    async def close(self) -> None:
        self.reject_requests()
        self._requests.disconnected()
        with suppress(*CLIENT_ERRORS):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self.client.shutdown()

    @contextmanager
    def optional_requests(self, *prefixes: str) -> Iterator[None]:
        """Log the refusal of a subject with one of `prefixes` at level info, because the request is optional.

        Args:
            *prefixes: The subjects of requests, or the beginnings of subjects.

        Yields:
            Nothing.
        """
        self._optional.update(prefixes)
        try:
            yield
        except BaseException:  # if the request was abandoned, its refusal might still arrive
            asyncio.get_running_loop().call_later(_LATE_REFUSAL_S, self._optional.subtract, prefixes)
            raise
        self._optional.subtract(prefixes)

    def _is_optional(self, refusal: Refusal) -> bool:
        return any(count > 0 and refusal.subject.startswith(prefix) for prefix, count in self._optional.items())

    def _on_refusal(self, refusal: Refusal) -> None:
        """Fail the requests that get no answer because of the refusal, and log the refusal once."""
        error = PermissionDeniedError(
            f"{self._settings.servers} refuses {self._login}: {refusal.said}; {_advice(refusal, self._settings)}"
        )
        optional = self._is_optional(refusal)
        reported = optional, *refusal.kind
        if reported not in self._reported and len(self._reported) < _MAX_REPORTED:
            self._reported.add(reported)
            (_log.info if optional else _log.error)(
                "optional_permission_denied" if optional else "permission_denied",
                reason=refusal.said,
                subject=refusal.subject,
                user=self._login,
                server=self._settings.servers,
                hint=_OPTIONAL_HINT if optional else _advice(refusal, self._settings),
            )
        self._requests.refuse(refusal, error)
        self.client.mark_refused(refusal, error)
        for listener in list(self.refusal_listeners):
            listener(refusal, error)

    async def _on_error(self, error: Exception) -> None:
        away = self._opening is not None or not self.connected
        fault = self._fault_of(error) if away else ""
        reason = fault or str(error) or type(error).__name__
        # Log each reason once, because a broker that is down causes the same error twice a second.
        if reason not in self._reasons:
            self._reasons.add(reason)
            self._report(reason, fault)
        self._reason = reason
        if away:
            self._judge(fault)

    def _report(self, reason: str, fault: str) -> None:
        server = self._settings.servers
        if not fault:
            doctor = "the process tries again to connect; check the broker with `pointsman doctor`"
            hint = None if self.connected else doctor
            _log.warning("bus_error", reason=reason, server=server, connected=self.connected, hint=hint)
        elif self._opening is None:  # at the first connection, `open` raises the error
            hint = "the process tries again to connect; correct the login or the certificate, here or at the broker"
            _log.error("connection_rejected", reason=reason, server=server, user=self._login, hint=hint)

    def _judge(self, fault: str) -> None:
        """Record the result of a try at one server.

        If every server was tried, and the fault of at least one server is permanent, raise this fault: in `open` during
        the first connection, and later in all requests that wait for the connection.
        """
        self._faults[self.client.trying] = fault
        found = next(filter(None, self._faults.values()), "")
        if not found or not self._faults.keys() >= self.client.places:
            return
        if self._opening is None:
            self._requests.reject(ConnectionRejectedError(found))
        elif not self._opening.done():
            self._opening.set_exception(ConfigurationError(found))

    def _fault_of(self, error: Exception) -> str:
        """Return the fault if the fault is permanent, such as a refused login or a TLS failure; otherwise empty."""
        server = self.client.trying
        if isinstance(error, TlsRequiredError):
            return str(error)
        if fault := tls_fault(error):
            return f"TLS to {server} fails: {fault}"
        status = getattr(error, "status", 0)  # aiohttp's error of a WebSocket handshake has a status
        if isinstance(status, int) and 400 <= status < 500 and status not in _PASSING_STATUSES:
            return f"{server} refuses the WebSocket with HTTP status {status}: check the address"
        if is_login_refused(said := str(error)):
            return (
                f"{server} refuses the connection of {self._login}: {said.removeprefix('nats: ')}; "
                "check POINTSMAN_CREDENTIALS, _USER, _PASSWORD and _TOKEN"
            )
        return ""

    async def _on_disconnected(self) -> None:
        self._requests.up.clear()
        self._faults.clear()
        self._on_lost()
        if not self.closed:
            _log.warning("bus_disconnected", reason=self._reason or None)
        self._requests.disconnected()  # no reply will arrive, so a wait would only delay the recovery
        for listener in list(self.listeners):
            listener()

    async def _on_reconnected(self) -> None:
        self._reason = ""
        self._reasons.clear()
        self.server = self.client.server or self.server
        if self.client.server_id != self._server_id:
            self._server_id = self.client.server_id
            self.restarts += 1
            self._broker_restarted.set()
        self._faults.clear()
        self._requests.connected_again()
        url = self.client.connected_url
        _log.info("bus_reconnected", server=url.netloc.rpartition("@")[2] if url else None)
        self._on_restored()


def _advice(refusal: Refusal, settings: Settings) -> str:
    """Return the remedy for a refusal."""
    prefix = settings.inbox_prefix
    if "ermissions" not in refusal.said:
        return "raise that limit of the server, or of the account"
    if refusal.operation == "subscribe" and refusal.subject.startswith(f"{prefix}."):
        return f"allow the user to subscribe to {prefix}.>, or name an allowed prefix in POINTSMAN_INBOX_PREFIX"
    verb = {"publish": "publish on", "reply": "request for an answer at", "subscribe": "subscribe to"}[
        refusal.operation
    ]
    return f"allow the user to {verb} that subject"
