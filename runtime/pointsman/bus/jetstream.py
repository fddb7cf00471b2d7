"""The bus on NATS JetStream.

Every wait for the broker is bounded, reconnecting goes on for ever, and the server is asked in its own words: requests
are made and their JSON is read here, because nats-py's `publish_async` never resolves when the server answers an error,
and its `fetch` begins with a probe that can leave a pull behind which swallows a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, NoReturn

from pointsman.bus.artifacts import Artifacts
from pointsman.bus.asking import Asking
from pointsman.bus.checks import (
    EXPECTED_OF,
    EXPECTED_SEQUENCE,
    MESSAGE_ID,
    check_filter,
    check_size,
    check_subject,
    wire_headers,
)
from pointsman.bus.clock import SystemClock
from pointsman.bus.handing import Handing
from pointsman.bus.listening import Listening
from pointsman.bus.nats_client import FAILURES, NatsClient
from pointsman.bus.pull import PullConsumer, durable
from pointsman.bus.reading import StreamReader
from pointsman.bus.registry import KeyValueRegistry
from pointsman.bus.streams import ensure_streams
from pointsman.bus.watching import ContainedWatcher
from pointsman.bus.wire import (
    NO_CONSUMER,
    NO_STREAM,
    Arrival,
    Inbox,
    UnderWay,
    error_code,
    header_bytes,
    said,
)
from pointsman.bus.writing import StreamWriter
from pointsman.errors import (
    BusUnavailable,
    ConfigurationError,
    Conflict,
    PeerError,
    PointsmanError,
    UnknownOutcome,
)
from pointsman.ports import Clock, Delivery, QueueDepth, Server, Service, Stored, StreamKind, Watcher
from pointsman.settings import Settings
from pointsman.structured import structlog
from pointsman_schemas.ids import token
from pointsman_schemas.subjects import Subjects

__all__ = ["JetStreamBus", "connect"]

_log = structlog.get_logger(__name__)

_RECONNECT = 0.5  # seconds between tries: a restart takes the broker about one
_PING = 2.0  # seconds; at the third without an answer, after 4 to 6 s, a half-open connection is given up
_PATIENCE = 30.0  # seconds set_up waits for a cluster that is still electing its leaders


async def connect(
    settings: Settings,
    *,
    name: str,
    clock: Clock | None = None,
    wait: float | None = None,
    watcher: Watcher | None = None,
) -> JetStreamBus:
    """A bus connected to `settings.url`; `name` is how the broker's monitoring shows it, `watcher` is told of messages.

    While the broker is away it keeps trying, for `wait` seconds or for ever.

    Raises:
        BusUnavailable: no connection within `wait` seconds.
        ConfigurationError: the broker refuses the credentials, or the URL cannot be read.
    """
    bus = JetStreamBus(settings, name=name, clock=clock, watcher=watcher)
    await bus.open(wait)
    return bus


class JetStreamBus:
    """One connection to a NATS server or cluster. Make it with `connect`."""

    def __init__(
        self, settings: Settings, *, name: str, clock: Clock | None = None, watcher: Watcher | None = None
    ) -> None:
        self._settings = settings
        self._name = name
        self._watcher = watcher = ContainedWatcher(watcher) if watcher is not None else None
        self._server: Server | None = None
        self._server_id = ""
        self._restarts = 0
        self._started_anew = asyncio.Event()
        self._forgets = False
        self._clock: Clock = clock or SystemClock()
        self._timeout = settings.request_timeout
        self._subjects = Subjects(settings.namespace)
        self._letters = self._subjects.dead_letters.removesuffix(">")
        self._streams: dict[StreamKind, str] = {
            "work": self._subjects.work_stream,
            "handoffs": self._subjects.work_stream,  # until `set_up` has seen otherwise
            "log": self._subjects.log_stream,
            "dead": self._subjects.dead_stream,
            "limits": self._subjects.limits_stream,
            "artifacts": f"OBJ_{self._subjects.artifacts_bucket}",
        }
        self._nc = NatsClient()
        self._asking = Asking(self._nc, self._timeout, self._nobody_answers)
        self.ask, self.api = self._asking.ask, self._asking.api
        self._refused: asyncio.Future[None] | None = None
        self._reason = ""
        self._listeners: set[Callable[[], None]] = set()
        self._consumers: set[PullConsumer] = set()
        self._set_up_once = False
        self._restoring: asyncio.Task[None] | None = None
        self._reader = StreamReader(self, self._timeout)
        self._writer = StreamWriter(self, self._reader, self._clock, watcher)
        self._artifacts = Artifacts(self, self._subjects.artifacts_bucket, settings.max_body, self._clock)
        alive = 3 * settings.heartbeat  # seconds, by its card
        self._registry = KeyValueRegistry(
            self, self._writer, self._reader, self._subjects.agents_bucket, alive, self._clock
        )
        self._listening = Listening(self, self._nc, self._artifacts.whole, self._clock, self._timeout)
        self._handing = Handing(self, settings.namespace, alive, self._artifacts.whole)

    # The connection

    async def open(self, wait: float | None) -> None:
        """Connect for the first time; `connect` calls it."""
        settings = self._settings
        self._refused = asyncio.get_running_loop().create_future()
        trying = asyncio.ensure_future(
            self._nc.connect(
                [url.strip() for url in settings.url.split(",")],
                name=self._name,
                user=settings.user,
                password=settings.password,
                token=settings.token,
                user_credentials=settings.credentials,
                max_reconnect_attempts=-1,
                reconnect_time_wait=_RECONNECT,  # type: ignore[arg-type]  # only ever slept for
                ping_interval=_PING,  # type: ignore[arg-type]
                error_cb=self._on_error,
                disconnected_cb=self._on_disconnected,
                reconnected_cb=self._on_reconnected,
            )
        )
        try:
            await asyncio.wait({trying, self._refused}, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            if self._refused.done():
                raise ConfigurationError(
                    f"{settings.servers} refuses the connection: {self._reason}; "
                    "look at POINTSMAN_CREDENTIALS, _USER, _PASSWORD and _TOKEN"
                )
            if not trying.done():
                raise BusUnavailable(
                    f"no broker at {settings.servers} within {wait} s: "
                    f"{self._reason or 'no answer'}; `pointsman up` starts one, "
                    "POINTSMAN_URL or --url names another"
                )
            try:
                trying.result()
            except (*FAILURES, ValueError) as error:
                raise ConfigurationError(f"cannot connect to {settings.servers}: {error}") from error
        finally:
            if not trying.done():
                trying.cancel()
                await asyncio.gather(trying, return_exceptions=True)
            self._refused.cancel()
            self._refused = None
        await self.hear(self._asking.replies.subject, self._asking.replies.arrived)
        if self._settings.trace_broker and self._watcher is not None:
            self._writer.hops = self.new_inbox()
            await self.hear(self._writer.hops, self._writer.passed)
        self._server = self._nc.server or self._server
        self._server_id = self._nc.server_id
        self._asking.up.set()
        _log.info("bus_connected", server=settings.servers, client=self._name)

    @property
    def connected(self) -> bool:
        return self._asking.connected

    @property
    def max_payload(self) -> int:
        return self._nc.max_payload

    @property
    def max_body(self) -> int:
        return self._settings.max_body

    @property
    def registry(self) -> KeyValueRegistry:
        return self._registry

    @property
    def closed(self) -> bool:
        return self._asking.closed

    @property
    def server(self) -> Server | None:
        return self._server

    @property
    def forgets(self) -> bool:
        return self._forgets

    @property
    def restarts(self) -> int:
        return self._restarts

    async def restarted(self, seen: int) -> None:
        while self._restarts <= seen:
            self._started_anew.clear()
            await self._started_anew.wait()

    @property
    def listeners(self) -> set[Callable[[], None]]:
        return self._listeners

    async def close(self) -> None:
        if self._asking.closed:
            return
        self._asking.closed = True
        if self._restoring is not None:
            self._restoring.cancel()
            await asyncio.gather(self._restoring, return_exceptions=True)
        with suppress(asyncio.TimeoutError):
            async with asyncio.timeout(self._timeout):
                await self._registry.close()
                await asyncio.gather(*(consumer.close() for consumer in list(self._consumers)))
                if self.connected:
                    with suppress(*FAILURES):
                        await self._nc.flush(int(self._timeout) + 1)
        self._asking.up.clear()
        self._asking.replies.abandon()
        with suppress(*FAILURES):
            async with asyncio.timeout(self._timeout):
                await self._nc.shut()

    async def _on_error(self, error: Exception) -> None:
        reason = str(error) or type(error).__name__
        if self._refused is not None and not self._refused.done() and "uthoriz" in reason:
            self._reason = reason
            self._refused.set_result(None)
        elif reason != self._reason:  # one line per reason: a broker that is away gives the same one twice a second
            self._reason = reason
            hint = None if self.connected else "it is tried again until it answers; `pointsman doctor` looks from here"
            _log.warning("bus_error", reason=reason, server=self._settings.servers, connected=self.connected, hint=hint)

    async def _on_disconnected(self) -> None:
        self._asking.up.clear()
        self._nc.drop_deliveries_of(self._subjects.handoffs_stream)  # there only where the broker need not sync it
        self._registry.broker_left()
        if not self._asking.closed:
            _log.warning("bus_disconnected", reason=self._reason or None)
        self._asking.replies.abandon()  # none comes; to wait would delay the recovery
        for listener in list(self._listeners):
            listener()

    async def _on_reconnected(self) -> None:
        self._reason = ""
        self._registry.broker_came_back()
        self._server = self._nc.server or self._server
        if self._nc.server_id != self._server_id:
            self._server_id = self._nc.server_id
            self._restarts += 1
            self._started_anew.set()
        self._asking.up.set()
        url = self._nc.connected_url
        _log.info("bus_reconnected", server=url.netloc.rpartition("@")[2] if url else None)
        self._begin_restoring()

    def _nobody_answers(self, subject: str) -> None:
        if subject.startswith(self._letters):  # whose stream nobody else would miss: no consumer is on it
            self._begin_restoring()

    def _begin_restoring(self) -> None:
        if self._set_up_once and not self._asking.closed and (self._restoring is None or self._restoring.done()):
            self._restoring = asyncio.create_task(self._restore())

    async def _restore(self) -> None:
        """Make again what `set_up` made, should the broker be without it: consumers, readers and letters wait."""
        try:
            await self.set_up()
        except (BusUnavailable, ConfigurationError, PeerError, UnknownOutcome) as error:
            _log.error("streams_unsure", reason=str(error), hint="start any process of the namespace to make them")

    # Streams

    async def set_up(self, *, create: bool = True) -> None:
        deadline = self._clock.monotonic() + _PATIENCE
        while True:
            try:
                self._forgets = await ensure_streams(
                    self,
                    self._subjects,
                    self._settings,
                    create=create,
                    again=self._set_up_once,
                    clustered=self._nc.is_clustered,
                )
                apart = self._subjects.handoffs_stream
                self._streams["handoffs"] = apart if self._forgets else self._subjects.work_stream
                self._set_up_once = self._set_up_once or create
                return
            except BusUnavailable as error:
                if self.connected and not self._nc.has_jetstream:
                    where = self._settings.servers
                    raise ConfigurationError(f"{where} runs without JetStream; start it with -js") from error
                if self._clock.monotonic() > deadline:
                    raise
                await asyncio.sleep(_RECONNECT)

    # Messages

    def publish(
        self,
        subject: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        expect: int | None = None,
        message_id: str | None = None,
    ) -> Coroutine[Any, Any, int]:
        """It is under way when this returns, so that several are together: unless the connection is away, or `body`
        has to be kept apart first."""
        orders = {EXPECTED_SEQUENCE: str(expect)} if expect is not None else {}
        if message_id is not None:
            orders[MESSAGE_ID] = message_id
        return self._store(subject, subject, body, headers, orders)()

    def _store(
        self, name: str, subject: str, body: bytes, headers: Mapping[str, str], orders: dict[str, str]
    ) -> UnderWay[int]:
        """Store on `name` what is for `subject`. What is refused here is refused to whoever waits: others are under
        way beside it."""
        try:
            check_subject(name)
            check_subject(subject)
            wire = wire_headers(headers, orders)
            if self._artifacts.fits(body):
                return self._writer.begin(name, body, wire)
        except PointsmanError as error:
            return partial(_refuse, error)
        return partial(self._store_claimed, name, subject, body, wire)

    async def _store_claimed(self, name: str, subject: str, body: bytes, wire: dict[str, str]) -> int:
        return await self._writer.store(name, *await self._artifacts.claimed(subject, body, wire))

    def schedule(
        self, name: str, at: datetime, target: str, body: bytes, headers: Mapping[str, str]
    ) -> Coroutine[Any, Any, bool]:
        """Under way when this returns, as with `publish`."""
        moment = at.astimezone(UTC).isoformat().replace("+00:00", "Z")
        # Expected of the target and not of `name`: what has fired meanwhile has left its own subject.
        orders = {
            "Nats-Schedule": f"@at {moment}",
            "Nats-Schedule-Target": target,
            EXPECTED_SEQUENCE: "0",
            EXPECTED_OF: target,
        }
        return self._scheduled(self._store(name, target, body, headers, orders))

    async def _scheduled(self, storing: UnderWay[int]) -> bool:
        try:
            await storing()
        except Conflict:
            return False
        return True

    async def purge(self, stream: StreamKind, subject: str) -> None:
        check_subject(subject)
        answer = await self.api(f"STREAM.PURGE.{self._streams[stream]}", {"filter": subject})
        if error_code(answer):
            raise PeerError(f"the broker does not purge {subject}: {said(answer)}")

    async def time(self) -> datetime:
        return await self._reader.now(self._streams["work"])

    async def lacks_room(self, stream: StreamKind) -> str:
        name = self._streams[stream]
        answer = await self.api(f"STREAM.INFO.{name}")
        if error_code(answer):
            raise BusUnavailable(f"the broker does not describe {name}: {said(answer)}")
        config, state = answer["config"], answer["state"]
        if config["discard"] == "old":
            return ""
        # Where the bound of bytes comes first depends on the message: the largest has to fit.
        for bound, unit, room in (("max_msgs", "messages", 1), ("max_bytes", "bytes", self._nc.max_payload)):
            if 0 < (limit := config.get(bound, -1)) < (held := state[unit]) + room:
                return f"{name} holds {held} {unit} of at most {limit}"
        return ""

    async def subjects(self, stream: StreamKind, subject: str) -> Sequence[str]:
        check_filter(subject)
        found: list[str] = []
        while True:
            query = {"subjects_filter": subject, "offset": len(found)}
            answer = await self.api(f"STREAM.INFO.{self._streams[stream]}", query)
            if error_code(answer):
                raise BusUnavailable(f"the broker does not describe {self._streams[stream]}: {said(answer)}")
            page = answer["state"].get("subjects") or {}
            found += page
            if not page or len(found) >= answer.get("total", 0):
                return sorted(found)

    async def last(self, stream: StreamKind, subject: str) -> Stored | None:
        check_filter(subject)
        found = await self._reader.from_leader(self._streams[stream], {"last_by_subj": subject})
        return found and await self._artifacts.whole(found)

    async def get(self, stream: StreamKind, sequence: int) -> Stored | None:
        found = await self._reader.from_leader(self._streams[stream], {"seq": sequence})
        return found and await self._artifacts.whole(found)

    async def delete(self, stream: StreamKind, sequence: int) -> bool:
        answer = await self.api(f"STREAM.MSG.DELETE.{self._streams[stream]}", {"seq": sequence, "no_erase": True})
        if error_code(answer):
            if await self.get(stream, sequence) is None:
                return False
            raise PeerError(f"the broker does not delete {sequence} of {self._streams[stream]}: {said(answer)}")
        return True

    def read(self, stream: StreamKind, subject: str, *, after: int = 0) -> AsyncIterator[Stored]:
        check_filter(subject)
        return self._whole(self._reader.read(self._streams[stream], subject, after))

    def follow(self, stream: StreamKind, subjects: Sequence[str], *, after: int = 0) -> AsyncIterator[Stored]:
        for subject in subjects:
            check_filter(subject)
        return self._whole(self._reader.follow(self._streams[stream], subjects, after))

    async def _whole(self, messages: AsyncGenerator[Stored, None]) -> AsyncGenerator[Stored, None]:
        async with aclosing(messages):
            async for stored in messages:
                yield stored if stored.body else await self._artifacts.whole(stored)

    # Consumers

    async def consumer(
        self, name: str, stream: StreamKind, subject: str, *, ack_wait: float, max_in_flight: int = 1000
    ) -> PullConsumer:
        check_filter(subject)
        token(name, "consumer")
        config = durable(name, subject, ack_wait, max_in_flight)

        def handed_out(amount: int) -> None:
            if self._watcher is not None:
                self._watcher.received(subject, self._server, name, amount)

        whole = self._artifacts.whole
        consumer = PullConsumer(
            self,
            self._streams[stream],
            config,
            self._consumers.discard,
            handed_out,
            whole,
            forgets=self._forgets and stream == "handoffs",
        )
        await consumer.open()
        self._consumers.add(consumer)
        return consumer

    async def hand_on(self, name: str, message: Arrival) -> bool:
        return await self._handing.hand_on(name, message)

    async def receive(self, name: str, handed: Callable[[Delivery], None]) -> AbstractAsyncContextManager[None]:
        return self._handing.receiving(token(name, "receiver"), handed)

    async def depth(self, name: str, stream: StreamKind) -> QueueDepth | None:
        answer = await self.api(f"CONSUMER.INFO.{self._streams[stream]}.{token(name, 'consumer')}")
        if code := error_code(answer):
            if code in (NO_CONSUMER, NO_STREAM):
                return None
            raise PeerError(f"the broker does not describe the consumer {name}: {said(answer)}")
        return QueueDepth(answer["num_pending"], answer["num_ack_pending"], answer["ack_floor"]["stream_seq"])

    # Core NATS

    async def send(self, subject: str, body: bytes = b"", *, reply: str = "", headers: bytes = b"") -> None:
        """Hand it to the connection, which keeps it while it is away, as far as it has room. What it does not take is
        dropped: whoever uses this has another way to notice."""
        with suppress(*FAILURES):
            await self._nc.hand_over(subject, reply, headers, body)

    def new_inbox(self) -> str:
        return self._nc.new_inbox()

    async def hear(self, subject: str, heard: Callable[[Arrival], None]) -> Inbox:
        try:
            return await self._nc.hear(subject, heard)
        except FAILURES as error:
            raise BusUnavailable(f"cannot listen on {subject}: {error}") from error

    async def broadcast(self, subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        check_subject(subject)
        body, wire = await self._artifacts.claimed(subject, body, wire_headers(headers))
        block = header_bytes(wire)
        check_size(subject, len(block), len(body), self.max_payload)
        if self._asking.up.is_set():
            await self.send(subject, body, headers=block)

    async def listen(
        self, subject: str, heard: Callable[[Stored], Awaitable[None]]
    ) -> AbstractAsyncContextManager[None]:
        return await self._listening.listen(subject, heard)

    async def serve(self, service: Service) -> AbstractAsyncContextManager[None]:
        return await self._listening.serve(service)


async def _refuse(error: PointsmanError) -> NoReturn:
    raise error
