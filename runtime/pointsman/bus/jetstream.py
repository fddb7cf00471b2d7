"""The bus on NATS JetStream. The only file that imports nats.

Every wait for the broker is bounded, reconnecting goes on for ever, and the server's word is taken from its own answers:
requests are made here and their JSON read here, because nats-py's `publish_async` never resolves when the server
answers an error, and its `fetch` begins with a probe that can leave a pull behind which swallows a message.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import datetime, timezone
from typing import Any
from urllib.parse import urlsplit

import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from pydantic import ValidationError

from pointsman.bus.checks import (
    EXPECTED_SEQUENCE,
    MESSAGE_ID,
    check_filter,
    check_size,
    check_subject,
    own_headers,
    wire_headers,
)
from pointsman.bus.clock import SystemClock
from pointsman.errors import BusUnavailable, ConfigurationError, Conflict, OversizeEvent, PeerError, UnknownOutcome
from pointsman.ports import Clock, QueueDepth, Service, Stored, StreamKind
from pointsman.settings import Settings
from pointsman_schemas.card import AgentCard
from pointsman_schemas.ids import token
from pointsman_schemas.subjects import Subjects

__all__ = ["JetStreamBus", "connect"]

_log = structlog.get_logger(__name__)

_API_LEVEL = 3  # message schedules work from nats-server 2.12.8 on, which reports this level
_WORK_DAYS = 7  # what is to be done is stale long before; a weekend and its Monday fit
_DUPLICATES = 120.0  # seconds: the broker's default window, long enough for a client's retries
_MARKER = 60.0  # seconds a tombstone of the registry stays for watchers that were away
_RECONNECT = 0.5  # seconds between tries: a restart takes the broker about one
_PING = 5.0  # seconds; two unanswered pings, and a half-open connection is given up
_EXPIRES = 30.0  # seconds one pull request stays open at the broker
_HEARTBEAT = 5.0  # seconds between signs of life of an idle pull; two missing ones mean that it is lost
_HOLD = 2.0  # seconds a message nobody takes may stay here before it is handed back
_WINDOW = 256  # messages a reader has on the way: enough to hide the round trip, little enough to hold
_BATCH = 512  # messages asked for in one direct get
_LINGER = 60.0  # seconds the broker keeps a reader's consumer that nobody pulls from
_PATIENCE = 30.0  # seconds set_up waits for a cluster that is still electing its leaders
_LAG = 0.02  # seconds before a replica that is behind its leader is asked again

_NO_MESSAGE, _NO_STREAM, _NO_CONSUMER = 10037, 10059, 10014
_IN_USE = 10058  # a stream of that name exists with another configuration
_NOT_DELETED = 10057  # also what the delete of a missing message is answered with, as an internal error
_CONFLICTS = frozenset({10071, 10164})  # wrong last sequence; the same from a replicated stream
_TOO_BIG = frozenset({10054, 10097})


async def connect(settings: Settings, *, name: str, clock: Clock | None = None, wait: float | None = None) -> JetStreamBus:
    """A bus connected to `settings.url`; `name` is how the broker's monitoring shows it.

    While the broker is away it keeps trying, for `wait` seconds or for ever.

    Raises:
        BusUnavailable: no connection within `wait` seconds.
        ConfigurationError: the broker refuses the credentials, or the URL cannot be read.
    """
    bus = JetStreamBus(settings, name=name, clock=clock)
    await bus.open(wait)
    return bus


class JetStreamBus:
    """One connection to a NATS server or cluster. Make it with `connect`."""

    def __init__(self, settings: Settings, *, name: str, clock: Clock | None = None) -> None:
        self._settings = settings
        self._name = name
        self._clock: Clock = clock or SystemClock()
        self._timeout = settings.request_timeout
        self._subjects = Subjects(settings.namespace)
        self._streams: dict[StreamKind, str] = {
            "work": self._subjects.work_stream, "log": self._subjects.log_stream, "dead": self._subjects.dead_stream}
        self._nc = _Client()
        self._up = asyncio.Event()
        self._closing = False
        self._refused: asyncio.Future[None] | None = None
        self._reason = ""
        self._pulls: set[_Pull] = set()
        self._consumers: set[_Consumer] = set()
        self._registry = _Registry(self, self._subjects.agents_bucket, 3 * settings.heartbeat)

    # The connection

    async def open(self, wait: float | None) -> None:
        """Connect for the first time; `connect` calls it."""
        settings = self._settings
        self._refused = asyncio.get_running_loop().create_future()
        trying = asyncio.ensure_future(self._nc.connect(
            [url.strip() for url in settings.url.split(",")], name=self._name, user=settings.user,
            password=settings.password, token=settings.token, user_credentials=settings.credentials,
            max_reconnect_attempts=-1, reconnect_time_wait=_RECONNECT, ping_interval=_PING,  # type: ignore[arg-type]
            error_cb=self._on_error, disconnected_cb=self._on_disconnected, reconnected_cb=self._on_reconnected))
        try:
            await asyncio.wait({trying, self._refused}, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            if self._refused.done():
                raise ConfigurationError(f"{_shown(settings.url)} refuses the connection: {self._reason}; "
                                         "look at POINTSMAN_CREDENTIALS, _USER, _PASSWORD and _TOKEN")
            if not trying.done():
                raise BusUnavailable(f"no broker at {_shown(settings.url)} within {wait} s: {self._reason or 'no answer'}; "
                                     "start it, or set POINTSMAN_URL")
            try:
                trying.result()
            except (nats.errors.Error, OSError, ValueError) as error:
                raise ConfigurationError(f"cannot connect to {_shown(settings.url)}: {error}") from error
        finally:
            if not trying.done():
                trying.cancel()
                await asyncio.gather(trying, return_exceptions=True)
            self._refused.cancel()
            self._refused = None
        self._up.set()
        _log.info("bus_connected", server=_shown(settings.url), client=self._name)

    @property
    def connected(self) -> bool:
        return self._up.is_set() and self._nc.is_connected

    @property
    def max_payload(self) -> int:
        return self._nc.max_payload

    @property
    def registry(self) -> _Registry:
        return self._registry

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        with suppress(asyncio.TimeoutError):
            async with asyncio.timeout(self._timeout):
                await self._registry.close()
                await asyncio.gather(*(consumer.close() for consumer in list(self._consumers)))
                if self.connected:
                    with suppress(nats.errors.Error, OSError):
                        await self._nc.flush(int(self._timeout) + 1)
        self._up.clear()
        with suppress(asyncio.TimeoutError, nats.errors.Error, OSError):
            await asyncio.wait_for(self._nc.close(), self._timeout)

    async def _on_error(self, error: Exception) -> None:
        reason = str(error) or type(error).__name__
        if self._refused is not None and not self._refused.done() and "uthoriz" in reason:
            self._reason = reason
            self._refused.set_result(None)
        elif reason != self._reason:  # one line per reason: a broker that is away gives the same one twice a second
            self._reason = reason
            _log.warning("bus_error", reason=reason, connected=self.connected)

    async def _on_disconnected(self) -> None:
        self._up.clear()
        if not self._closing:
            _log.warning("bus_disconnected", reason=self._reason or None)
        for pull in list(self._pulls):
            pull.lose("disconnected")

    async def _on_reconnected(self) -> None:
        self._reason = ""
        self._up.set()
        url = self._nc.connected_url
        _log.info("bus_reconnected", server=url.netloc.rpartition("@")[2] if url else None)

    # Asking the broker

    async def request(self, subject: str, body: bytes = b"", headers: dict[str, str] | None = None, *,
                      lost: type[BusUnavailable] = BusUnavailable) -> Msg:
        """One answer. Raises `lost` when there is none in time, and waits that long for a connection that is away."""
        try:
            if not self._up.is_set():
                await asyncio.wait_for(self._up.wait(), self._timeout)
            return await self._nc.request(subject, body, timeout=self._timeout, headers=headers)
        except nats.errors.NoRespondersError:
            raise BusUnavailable(f"nobody answers on {subject}: no JetStream there, or no stream that takes it; "
                                 "run set_up, or wait for the cluster to elect a leader") from None
        except asyncio.TimeoutError:
            raise lost(f"no answer on {subject} within {self._timeout} s, "
                       f"{'connected' if self.connected else 'not connected'}") from None
        except (nats.errors.Error, OSError) as error:
            raise BusUnavailable(f"cannot ask on {subject}: {error}") from error

    async def api(self, verb: str, payload: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The JetStream API's answer, which may hold an `error`."""
        reply = await self.request(f"$JS.API.{verb}", json.dumps(payload).encode() if payload is not None else b"")
        answer: dict[str, Any] = json.loads(reply.data)
        if (code := _code(answer)) and code != _NOT_DELETED and answer["error"].get("code", 0) >= 500:
            raise BusUnavailable(f"the broker cannot do {verb}: {_said(answer)}")
        return answer

    async def store(self, subject: str, body: bytes, wire: dict[str, str]) -> int:
        """Publish and return the sequence the stream gave it."""
        check_size(subject, wire, body, self.max_payload)
        answer = json.loads((await self.request(subject, body, wire, lost=UnknownOutcome)).data)
        if not (code := _code(answer)):
            return int(answer["seq"])
        if code in _CONFLICTS:
            raise Conflict(f"{subject} does not end at {wire.get(EXPECTED_SEQUENCE)}: {_said(answer)}; "
                           "read it again, then decide")
        if code in _TOO_BIG:
            raise OversizeEvent(f"the broker refuses {subject}: {_said(answer)}")
        kind = BusUnavailable if answer["error"].get("code", 0) >= 500 else PeerError
        raise kind(f"the broker refuses {subject}: {_said(answer)}")

    # Streams

    async def set_up(self) -> None:
        deadline = self._clock.monotonic() + _PATIENCE
        while True:
            try:
                return await self._set_up()
            except BusUnavailable as error:
                if not self._nc._server_info.get("jetstream") and self.connected:
                    raise ConfigurationError(f"{_shown(self._settings.url)} runs without JetStream; start it with -js") from error
                if self._clock.monotonic() > deadline:
                    raise
                await asyncio.sleep(_RECONNECT)

    async def _set_up(self) -> None:
        info = await self.api("INFO")
        if _code(info):
            raise ConfigurationError(f"JetStream is not to be had at {_shown(self._settings.url)}: {_said(info)}")
        level = int(info.get("api", {}).get("level", 0))
        if level < _API_LEVEL:
            raise ConfigurationError(
                f"the broker has JetStream API level {level}, expected {_API_LEVEL} or more for message schedules; "
                "run nats-server 2.12.8 or newer")
        for config in _stream_configs(self._subjects, self._settings):
            await self._ensure_stream(config)

    async def _ensure_stream(self, wanted: dict[str, Any]) -> None:
        name = wanted["name"]
        answer = await self.api(f"STREAM.INFO.{name}")
        if _code(answer) == _NO_STREAM:
            answer = await self.api(f"STREAM.CREATE.{name}", wanted)
            if _code(answer) == _IN_USE:  # another process was faster, with other settings
                answer = await self.api(f"STREAM.INFO.{name}")
        if _code(answer):
            raise ConfigurationError(f"the stream {name} cannot be made: {_said(answer)}")
        found = answer["config"]
        for key in _MUST_FIT:
            want, have = wanted.get(key), found.get(key)
            if isinstance(want, list):
                want, have = sorted(want), sorted(have or [])
            if want is not None and (have or want.__class__()) != want:
                raise ConfigurationError(f"the stream {name} has {key} {have!r}, expected {want!r}; change it with the "
                                         "nats CLI, or choose another POINTSMAN_NAMESPACE")

    # Messages

    async def publish(self, subject: str, body: bytes, headers: Mapping[str, str], *, expect: int | None = None,
                      message_id: str | None = None) -> int:
        check_subject(subject)
        extra = {EXPECTED_SEQUENCE: str(expect)} if expect is not None else {}
        if message_id is not None:
            extra[MESSAGE_ID] = message_id
        return await self.store(subject, body, wire_headers(headers, extra))

    async def schedule(self, name: str, at: datetime, target: str, body: bytes, headers: Mapping[str, str]) -> bool:
        check_subject(name), check_subject(target)
        if await self.last("work", target) is not None:
            return False
        moment = at.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")
        try:
            await self.store(name, body, wire_headers(headers, {
                "Nats-Schedule": f"@at {moment}", "Nats-Schedule-Target": target, EXPECTED_SEQUENCE: "0"}))
        except Conflict:
            return False
        return True

    async def last(self, stream: StreamKind, subject: str) -> Stored | None:
        check_filter(subject)
        return await self._stored(self._streams[stream], {"last_by_subj": subject})

    async def get(self, stream: StreamKind, sequence: int) -> Stored | None:
        return await self._stored(self._streams[stream], {"seq": sequence})

    async def delete(self, stream: StreamKind, sequence: int) -> bool:
        answer = await self.api(f"STREAM.MSG.DELETE.{self._streams[stream]}", {"seq": sequence, "no_erase": True})
        if _code(answer):
            if await self.get(stream, sequence) is None:
                return False
            raise PeerError(f"the broker does not delete {sequence} of {self._streams[stream]}: {_said(answer)}")
        return True

    def read(self, stream: StreamKind, subject: str, *, after: int = 0) -> AsyncIterator[Stored]:
        check_filter(subject)
        return self.read_stream(self._streams[stream], subject, after)

    def follow(self, stream: StreamKind, subjects: Sequence[str], *, after: int = 0,
               new_only: bool = False) -> AsyncIterator[Stored]:
        for subject in subjects:
            check_filter(subject)
        return self.follow_stream(self._streams[stream], subjects, after, new_only)

    async def _stored(self, stream: str, query: Mapping[str, Any]) -> Stored | None:
        """Read from the stream's leader: a direct get may be answered by a replica that is behind."""
        answer = await self.api(f"STREAM.MSG.GET.{stream}", query)
        if code := _code(answer):
            if code == _NO_MESSAGE:
                return None
            raise PeerError(f"the broker does not read {query} of {stream}: {_said(answer)}")
        message = answer["message"]
        return Stored(message["subject"], b64decode(message.get("data", "")), _header_block(message.get("hdrs", "")),
                      message["seq"], _instant(message["time"]))

    async def read_stream(self, stream: str, subject: str, after: int) -> AsyncGenerator[Stored, None]:
        """What `subject` holds now. The leader names its last sequence, batched direct gets bring everything up to there.

        One leader read and one request per `_BATCH` messages, where a consumer would cost three requests and leave a
        thing to clean up. A replica that answers from behind is asked again until it has what the leader named.
        """
        end = await self._stored(stream, {"last_by_subj": subject})
        while end is not None and after < end.sequence:
            reached = after
            for stored in await self._direct_batch(stream, subject, after + 1):
                if stored.sequence > after:
                    after = stored.sequence
                    yield stored
            if after == reached:  # behind, or the last one was deleted meanwhile
                await asyncio.sleep(_LAG)
                end = await self._stored(stream, {"last_by_subj": subject})

    async def _direct_batch(self, stream: str, subject: str, sequence: int) -> list[Stored]:
        batch: list[Stored] = []
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def arrived(message: Msg) -> None:
            headers = message.headers or {}
            if "Nats-Sequence" in headers:
                batch.append(Stored(headers["Nats-Subject"], message.data, own_headers(headers),
                                    int(headers["Nats-Sequence"]), _instant(headers["Nats-Time-Stamp"])))
            elif not done.done():
                done.set_result(None)

        query = json.dumps({"batch": _BATCH, "next_by_subj": subject, "seq": sequence}).encode()
        inbox = self._nc.new_inbox()
        subscription = await self._nc.subscribe(inbox, cb=arrived, pending_msgs_limit=0, pending_bytes_limit=0)
        try:
            await self.send(f"$JS.API.DIRECT.GET.{stream}", query, reply=inbox)
            await asyncio.wait_for(done, self._timeout)
        except asyncio.TimeoutError:
            raise BusUnavailable(f"no answer to a read of {subject} in {stream} within {self._timeout} s") from None
        finally:
            await _drop(subscription)
        return batch

    async def follow_stream(self, stream: str, subjects: Sequence[str], after: int, new_only: bool = False,
                            ) -> AsyncGenerator[Stored, None]:
        """What the subjects hold above `after`, then what comes.

        An ephemeral consumer counts its deliveries: the first number that does not follow means that something was lost
        on the way, and a new consumer begins after the last message that was handed out.
        """
        if new_only:
            info = await self.api(f"STREAM.INFO.{stream}")
            after = max(after, int(info["state"]["last_seq"]))
        while True:
            try:
                name = await self._reader(stream, subjects, after)
            except BusUnavailable as error:
                if self._closing:
                    raise
                _log.debug("follow_waits", stream=stream, reason=str(error))
                await asyncio.sleep(_RECONNECT)
                continue
            pull = _Pull(self, stream, name)
            try:
                await pull.open()
                expected = 1
                while pull.buffer or not pull.lost:
                    await pull.refill(_WINDOW)
                    if not pull.buffer:
                        await pull.wait()
                        continue
                    meta = _Meta(pull.buffer[0].reply)
                    if meta.delivery != expected:
                        break
                    expected += 1
                    after = meta.sequence
                    yield _stored(pull.buffer.popleft(), meta)
            finally:
                await pull.close()
                await self.send(f"$JS.API.CONSUMER.DELETE.{stream}.{name}", reply=self._nc.new_inbox())

    async def _reader(self, stream: str, subjects: Sequence[str], after: int) -> str:
        name = f"reader_{self._nc.new_inbox().rpartition('.')[2]}"
        answer = await self.api(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": {
            "name": name, "filter_subjects": list(subjects), "ack_policy": "none", "max_deliver": -1,
            "deliver_policy": "by_start_sequence", "opt_start_seq": after + 1, "replay_policy": "instant",
            "mem_storage": True, "num_replicas": 1, "inactive_threshold": _ns(_LINGER)}})
        if _code(answer):
            raise BusUnavailable(f"no reader on {stream}: {_said(answer)}")
        return name

    # Consumers

    async def consumer(self, name: str, stream: StreamKind, subject: str, *, ack_wait: float,
                       max_in_flight: int = 1000) -> _Consumer:
        check_filter(subject), token(name, "consumer")
        consumer = _Consumer(self, self._streams[stream], name, {
            "durable_name": name, "name": name, "filter_subject": subject, "ack_policy": "explicit",
            "deliver_policy": "all", "replay_policy": "instant", "ack_wait": _ns(ack_wait), "max_deliver": -1,
            "max_ack_pending": max_in_flight, "max_waiting": 4096})  # pulls of as many processes as one agent may have
        await consumer.open()
        self._consumers.add(consumer)
        return consumer

    async def depth(self, name: str, stream: StreamKind) -> QueueDepth | None:
        answer = await self.api(f"CONSUMER.INFO.{self._streams[stream]}.{token(name, 'consumer')}")
        if code := _code(answer):
            if code in (_NO_CONSUMER, _NO_STREAM):
                return None
            raise PeerError(f"the broker does not describe the consumer {name}: {_said(answer)}")
        return QueueDepth(pending=answer["num_pending"], in_flight=answer["num_ack_pending"])

    # Core NATS

    async def send(self, subject: str, body: bytes = b"", *, reply: str = "", headers: dict[str, str] | None = None) -> None:
        """Hand it to the connection. What cannot be sent is dropped: whoever uses this has another way to notice."""
        with suppress(nats.errors.Error, OSError):
            await self._nc.publish(subject, body, reply=reply, headers=headers)

    async def broadcast(self, subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        check_subject(subject)
        wire = wire_headers(headers)
        check_size(subject, wire, body, self.max_payload)
        if self._up.is_set():
            await self.send(subject, body, headers=wire or None)

    async def listen(self, subject: str, heard: Callable[[Stored], Awaitable[None]]) -> AbstractAsyncContextManager[None]:
        check_filter(subject)

        async def arrived(message: Msg) -> None:
            await heard(Stored(message.subject, message.data, own_headers(message.headers), 0, self._clock.now()))

        return await self._subscribed({subject: arrived})

    async def serve(self, service: Service) -> AbstractAsyncContextManager[None]:
        started = self._clock.now().isoformat().replace("+00:00", "Z")

        def answering(verb: str) -> Callable[[Msg], Awaitable[None]]:
            async def asked(message: Msg) -> None:
                if message.reply:
                    await self.send(message.reply, json.dumps(_micro(verb, service, started)).encode())
            return asked

        name = token(service.name, "service")
        return await self._subscribed({
            f"$SRV.{verb}{scope}": answering(verb)
            for verb in ("PING", "INFO", "STATS") for scope in ("", f".{name}", f".{name}.{token(service.id, 'instance')}")})

    async def _subscribed(self, handlers: Mapping[str, Callable[[Msg], Awaitable[None]]],
                          ) -> AbstractAsyncContextManager[None]:
        try:
            subscriptions = [await self._nc.subscribe(subject, cb=handler) for subject, handler in handlers.items()]
            if self.connected:  # else reconnecting brings the subscriptions along
                await self._nc.flush(int(self._timeout) + 1)
        except (nats.errors.Error, OSError) as error:
            raise BusUnavailable(f"cannot listen on {', '.join(handlers)}: {error}") from error
        return _until_left(subscriptions)


class _Client(Client):
    """nats-py's client, except that no error of the server's ends it for ever.

    As it comes it closes itself on any `-ERR` but a stale connection, expired credentials among them; there is no
    option to have it reconnect instead.
    """

    async def _process_err(self, err_msg: str) -> None:
        if "permissions violation" in err_msg.lower() or not self.is_connected:
            await super()._process_err(err_msg)
            return
        error = nats.errors.Error(f"nats: {err_msg}")
        await self._error_cb(error)
        await self._process_op_err(error)


class _Meta:
    """What a delivery's reply subject says: `$JS.ACK.[domain.account.]stream.consumer.delivered.sequence.delivery.time.…`."""

    __slots__ = ("at", "delivered", "delivery", "sequence")

    def __init__(self, reply: str) -> None:
        tokens = reply.split(".")
        delivered, sequence, delivery, at = tokens[4:8] if len(tokens) == 9 else tokens[6:10]
        self.delivered, self.sequence, self.delivery = int(delivered), int(sequence), int(delivery)
        self.at = datetime.fromtimestamp(int(at) / 1e9, timezone.utc)


class _Pull:
    """One inbox at which the broker delivers for a pull consumer, and the count of messages it still may send there.

    `asked` falls with every message, and by what an expired pull request says it left undelivered. Whatever makes that
    count doubtful (a lost connection, a new leader, silence) sets `lost`: the inbox is then given up for a new one, and
    the broker drops the requests that wait on it.
    """

    def __init__(self, bus: JetStreamBus, stream: str, consumer: str) -> None:
        self.buffer: deque[Msg] = deque()
        self.asked = 0
        self.lost = ""
        self._bus = bus
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox = bus._nc.new_inbox()
        self._subscription: Subscription | None = None
        self._loop = asyncio.get_running_loop()
        self._stirred = asyncio.Event()
        self._heard = self._loop.time()
        self._watchdog = self._loop.call_later(_HEARTBEAT, self._watch)
        self.on_arrival: Callable[[], None] | None = None

    async def open(self) -> None:
        # Without limits: what may be on its way is bounded by `asked`, and nats-py drops what exceeds its limits.
        self._subscription = await self._bus._nc.subscribe(
            self._inbox, cb=self._arrived, pending_msgs_limit=0, pending_bytes_limit=0)
        self._bus._pulls.add(self)

    async def refill(self, room: int) -> None:
        """Ask for what is missing to `room`, once half of it is: one request then serves many messages."""
        outstanding = self.asked + len(self.buffer)
        if self.lost or 2 * outstanding > room or room == 0:
            return
        self.asked += room - outstanding
        self._heard = self._loop.time()
        await self._bus.send(self._subject, b'{"batch":%d,"expires":%d,"idle_heartbeat":%d}' % (
            room - outstanding, _ns(_EXPIRES), _ns(_HEARTBEAT)), reply=self._inbox)

    async def wait(self) -> None:
        """Return when something came, or the pull was lost."""
        self._stirred.clear()
        if not self.buffer and not self.lost:
            await self._stirred.wait()

    def lose(self, reason: str) -> None:
        self.lost = self.lost or reason
        self._stirred.set()

    async def close(self, *, drain: bool = False) -> None:
        """Give the inbox up. With `drain`, what the broker sent before it noticed still arrives in the buffer."""
        self._watchdog.cancel()
        self._bus._pulls.discard(self)
        self.lose("closed")
        if (subscription := self._subscription) is not None:
            self._subscription = None
            if drain and self._bus.connected:
                with suppress(nats.errors.Error, OSError, asyncio.TimeoutError):
                    await asyncio.wait_for(subscription.drain(), 1.0)
            await _drop(subscription)

    async def _arrived(self, message: Msg) -> None:
        self._heard = self._loop.time()
        if message.reply:
            self.asked = max(0, self.asked - 1)
            self.buffer.append(message)
            if self.on_arrival is not None:
                self.on_arrival()
        else:
            headers = message.headers or {}
            status = headers.get("Status", "")
            if status == "100":
                return
            left = headers.get("Nats-Pending-Messages")
            if status in ("404", "408") and left is not None:
                self.asked = max(0, self.asked - int(left))
            else:
                self.lost = self.lost or f"{status} {headers.get('Description', '')}".strip()
        self._stirred.set()

    def _watch(self) -> None:
        if self.asked and self._loop.time() - self._heard > 2 * _HEARTBEAT:
            self.lose("no heartbeat")
        if not self.lost:
            self._watchdog = self._loop.call_later(_HEARTBEAT, self._watch)


class _Consumer:
    def __init__(self, bus: JetStreamBus, stream: str, name: str, config: dict[str, Any]) -> None:
        self._bus = bus
        self._stream = stream
        self._name = name
        self._config = config
        self._pull: _Pull | None = None
        self._taking = False
        self._closed = False
        self._hold: asyncio.TimerHandle | None = None
        self._returning: set[asyncio.Task[None]] = set()

    @property
    def bound(self) -> bool:
        return not self._closed and self._bus.connected and self._pull is not None and not self._pull.lost

    async def open(self) -> None:
        """Make the durable if it is missing, and listen at a new inbox. Idempotent at the broker."""
        answer = await self._bus.api(f"CONSUMER.CREATE.{self._stream}.{self._name}.{self._config['filter_subject']}",
                                     {"stream_name": self._stream, "config": self._config})
        if _code(answer):
            raise ConfigurationError(f"the consumer {self._name} of {self._stream} cannot be made: {_said(answer)}")
        pull = _Pull(self._bus, self._stream, self._name)
        pull.on_arrival = self._hold_for_a_while
        await pull.open()
        if (old := self._pull) is not None:
            await old.close()
            pull.buffer.extend(old.buffer)
        self._pull = pull

    async def take(self, room: int) -> Sequence[_Delivery]:
        self._taking = True
        try:
            while True:
                if self._closed or self._pull is None:
                    raise BusUnavailable(f"the consumer {self._name} is closed; open it again")
                pull = self._pull
                if pull.buffer:
                    return await self._hand_out(pull, room)
                if pull.lost:
                    await self._recover(pull.lost)
                    continue
                await pull.refill(room)
                await pull.wait()
        finally:
            self._taking = False
            if self._pull is not None and self._pull.buffer:
                self._hold_for_a_while()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._bus._consumers.discard(self)
        await self._hand_back()

    async def _hand_out(self, pull: _Pull, room: int) -> list[_Delivery]:
        taken = [_Delivery(self._bus, pull.buffer.popleft()) for _ in range(min(room, len(pull.buffer)))]
        await pull.refill(room - len(taken))
        return taken

    async def _recover(self, reason: str) -> None:
        try:
            await self.open()
            _log.info("consumer_resumed", consumer=self._name, stream=self._stream, reason=reason)
        except (BusUnavailable, nats.errors.Error) as error:
            if self._bus._closing:
                raise BusUnavailable(f"the bus of the consumer {self._name} was closed") from error
            await asyncio.sleep(_RECONNECT)

    def _hold_for_a_while(self) -> None:
        """Nobody may be taking any more: then what came is handed back, and the broker is told to send no more."""
        if not self._taking and self._hold is None:
            self._hold = asyncio.get_running_loop().call_later(_HOLD, self._let_go)

    def _let_go(self) -> None:
        self._hold = None
        if not self._taking and self._pull is not None and self._pull.buffer:
            task = asyncio.ensure_future(self._hand_back())
            self._returning.add(task)
            task.add_done_callback(self._returning.discard)

    async def _hand_back(self) -> None:
        if self._hold is not None:
            self._hold.cancel()
            self._hold = None
        if (pull := self._pull) is not None:
            await pull.close(drain=True)
            while pull.buffer:
                await _Delivery(self._bus, pull.buffer.popleft()).nak()


class _Delivery:
    __slots__ = ("_bus", "_reply", "delivered", "message")

    def __init__(self, bus: JetStreamBus, message: Msg) -> None:
        meta = _Meta(message.reply)
        self._bus = bus
        self._reply = message.reply
        self.delivered = meta.delivered
        self.message = _stored(message, meta)

    async def ack(self) -> None:
        await self._bus.send(self._reply, b"+ACK")

    async def nak(self, delay: float = 0.0) -> None:
        await self._bus.send(self._reply, b'-NAK {"delay": %d}' % _ns(delay) if delay > 0 else b"-NAK")

    async def term(self, reason: str) -> None:
        await self._bus.send(self._reply, f"+TERM {reason}".encode("utf-8", "replace"))

    async def in_progress(self) -> None:
        await self._bus.send(self._reply, b"+WPI")


class _Registry:
    """Cards in a key-value bucket, each with a time to live that its agent's heartbeat renews.

    The broker leaves a marker when a card expires, and watchers see it. A watcher that was away longer than the marker
    stays would never know, so cards also expire here, by the time to live they were announced with.
    """

    def __init__(self, bus: JetStreamBus, bucket: str, time_to_live: float) -> None:
        self._bus = bus
        self._stream = f"KV_{bucket}"
        self._prefix = f"$KV.{bucket}."
        self._time_to_live = time_to_live
        self._alive: dict[str, tuple[AgentCard, float]] = {}
        self._sorted: list[AgentCard] | None = None
        self._next_expiry = 0.0
        self._starting = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None

    async def announce(self, card: AgentCard) -> None:
        await self._bus.store(self._subject(card), card.model_dump_json(exclude_none=True).encode(),
                              {"Nats-TTL": _ttl(self._time_to_live)})

    async def withdraw(self, card: AgentCard) -> None:
        await self._bus.store(self._subject(card), b"", {"KV-Operation": "DEL", "Nats-TTL": _ttl(_MARKER)})

    async def cards(self) -> Sequence[AgentCard]:
        if self._watch is None:
            async with self._starting:
                if self._watch is None:
                    await self._start()
        now = self._bus._clock.monotonic()
        if self._sorted is None or now >= self._next_expiry:
            self._alive = {key: entry for key, entry in self._alive.items() if entry[1] > now}
            self._next_expiry = min((until for _, until in self._alive.values()), default=float("inf"))
            self._sorted = sorted((card for card, _ in self._alive.values()), key=lambda card: (card.name, card.instance))
        return tuple(self._sorted)

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)

    async def _start(self) -> None:
        after = 0
        async for stored in self._bus.read_stream(self._stream, f"{self._prefix}>", 0):
            self._note(stored)
            after = stored.sequence
        self._watch = asyncio.create_task(self._keep_current(after))

    async def _keep_current(self, after: int) -> None:
        async for stored in self._bus.follow_stream(self._stream, [f"{self._prefix}>"], after):
            self._note(stored)

    def _note(self, stored: Stored) -> None:
        key = stored.subject.removeprefix(self._prefix)
        self._sorted = None
        if not stored.body:  # withdrawn, or expired: a marker has no body
            self._alive.pop(key, None)
            return
        try:
            card = AgentCard.model_validate_json(stored.body)
        except ValidationError as error:
            _log.warning("card_unreadable", key=key, problems=error.error_count())
            return
        self._alive[key] = card, self._bus._clock.monotonic() + self._time_to_live

    def _subject(self, card: AgentCard) -> str:
        return f"{self._prefix}{card.name}.{token(card.instance, 'instance')}"


_MUST_FIT = ("subjects", "retention", "storage", "discard", "allow_direct", "allow_rollup_hdrs", "allow_msg_ttl",
             "allow_msg_schedules", "max_msgs_per_subject")


def _stream_configs(subjects: Subjects, settings: Settings) -> list[dict[str, Any]]:
    ns, days = subjects.namespace, 86_400.0
    advisory = "$JS.EVENT.ADVISORY.CONSUMER"
    common: dict[str, Any] = {
        "retention": "limits", "storage": "file", "discard": "old", "num_replicas": settings.replicas,
        "duplicate_window": _ns(_DUPLICATES), "max_msgs_per_subject": -1, "allow_direct": True}
    bucket = {**common, "discard": "new", "max_msgs_per_subject": 1, "allow_rollup_hdrs": True, "deny_delete": True}
    return [
        {**common, "name": subjects.work_stream, "max_age": _ns(_WORK_DAYS * days), "allow_msg_schedules": True,
         "allow_msg_ttl": True, "allow_rollup_hdrs": True,
         "subjects": [f"{ns}.{kind}.>" for kind in ("request", "handoff", "inbox", "schedule")]},
        {**common, "name": subjects.log_stream, "max_age": _ns(settings.retention_days * days),
         "subjects": [f"{ns}.{kind}.>" for kind in ("log", "event", "outcome")]},
        {**common, "name": subjects.dead_stream, "max_age": _ns(settings.retention_days * days),
         "subjects": [f"{ns}.dead.>", f"{advisory}.MAX_DELIVERIES.{subjects.work_stream}.>",
                      f"{advisory}.MSG_TERMINATED.{subjects.work_stream}.>"]},
        {**bucket, "name": f"KV_{subjects.agents_bucket}", "subjects": [f"$KV.{subjects.agents_bucket}.>"],
         "allow_msg_ttl": True, "subject_delete_marker_ttl": _ns(_MARKER)},
        {**common, "discard": "new", "name": f"OBJ_{subjects.artifacts_bucket}", "allow_rollup_hdrs": True,
         "max_age": _ns(settings.retention_days * days),
         "subjects": [f"$O.{subjects.artifacts_bucket}.C.>", f"$O.{subjects.artifacts_bucket}.M.>"]},
    ]


def _micro(verb: str, service: Service, started: str) -> dict[str, Any]:
    """An answer of the NATS micro protocol (ADR-32); its times are in nanoseconds."""
    answer: dict[str, Any] = {"type": f"io.nats.micro.v1.{verb.lower()}_response", "name": service.name, "id": service.id,
                              "version": service.version, "metadata": dict(service.metadata)}
    endpoint: dict[str, Any] = {"name": service.name, "subject": service.subject, "queue_group": "q"}
    if verb == "INFO":
        answer |= {"description": service.description, "endpoints": [{**endpoint, "metadata": {}}]}
    elif verb == "STATS":
        spent = _ns(service.processing_time)
        answer |= {"started": started, "endpoints": [{
            **endpoint, "num_requests": service.requests, "num_errors": service.errors, "last_error": service.last_error,
            "processing_time": spent, "average_processing_time": spent // service.requests if service.requests else 0}]}
    return answer


@asynccontextmanager
async def _until_left(subscriptions: Sequence[Subscription]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for subscription in subscriptions:
            await _drop(subscription)


async def _drop(subscription: Subscription) -> None:
    with suppress(nats.errors.Error, OSError):
        await subscription.unsubscribe()


def _stored(message: Msg, meta: _Meta) -> Stored:
    return Stored(message.subject, message.data, own_headers(message.headers), meta.sequence, meta.at)


def _header_block(encoded: str) -> dict[str, str]:
    lines = b64decode(encoded).decode("utf-8", "replace").split("\r\n")[1:]
    return own_headers({name.strip(): value.strip() for name, sep, value in (line.partition(":") for line in lines) if sep})


def _instant(text: str) -> datetime:
    """RFC 3339 as Go writes it, with up to nine digits of a second; Python keeps six."""
    seconds, _, fraction = text.removesuffix("Z").partition(".")
    return datetime.fromisoformat(f"{seconds}.{fraction[:6]:0<6}+00:00")


def _code(answer: Mapping[str, Any]) -> int:
    error = answer.get("error")
    return int(error.get("err_code") or error.get("code") or -1) if error else 0


def _said(answer: Mapping[str, Any]) -> str:
    return f"{answer['error'].get('description', 'no reason given')} ({_code(answer)})"


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


def _ttl(seconds: float) -> str:
    """A message's time to live, rounded up: the broker counts in whole seconds and refuses less than one."""
    return f"{max(1, -int(-seconds // 1))}s"


def _shown(urls: str) -> str:
    """Addresses without their credentials."""
    return ", ".join(urlsplit(url if "//" in url else f"//{url}").netloc.rpartition("@")[2] for url in urls.split(","))
