"""A broker inside the process, with the semantics of the real one: whatever holds here holds on JetStream, and back.

Its state is a function of what was done and of the clock's time. There are no background tasks: whoever looks first
brings it up to now, and whoever waits sleeps until the next moment at which something is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count

from pointsman.bus.artifacts import Artifacts
from pointsman.bus.checks import (
    EXPECTED_SEQUENCE,
    MESSAGE_ID,
    check_filter,
    check_size,
    check_subject,
    header_size,
    matches,
    own_headers,
    wire_headers,
)
from pointsman.bus.clock import SystemClock
from pointsman.bus.memory_listening import Listening
from pointsman.bus.memory_registry import MemoryRegistry
from pointsman.bus.memory_streams import Durable, Stream
from pointsman.errors import BusUnavailable, Conflict
from pointsman.ports import Clock, Delivery, QueueDepth, Server, Service, Stored, StreamKind
from pointsman_schemas.claim import MAX_BODY
from pointsman_schemas.ids import token
from pointsman_schemas.subjects import Subjects

__all__ = ["MemoryBroker", "MemoryBus"]

_MAX_PAYLOAD = 1_048_576  # bytes: nats-server's own default
_TICK = 1e-6  # seconds: a loop fires what is due within its clock's resolution, and would find nothing due yet

_STREAM_OF: Mapping[str, StreamKind] = {
    "request": "work",
    "handoff": "handoffs",
    "step": "work",
    "inbox": "work",
    "schedule": "work",
    "log": "log",
    "event": "log",
    "outcome": "log",
    "dead": "dead",
    "limit": "limits",
}


class MemoryBroker:
    """What several `MemoryBus` connections share: streams, consumers, schedules, cards, listeners, services."""

    def __init__(
        self,
        namespace: str = "pointsman",
        clock: Clock | None = None,
        max_payload: int = _MAX_PAYLOAD,
        heartbeat: float = 5.0,
        max_body: int = MAX_BODY,
        unsynced_handoffs: bool = False,
    ) -> None:
        self.namespace = token(namespace, "namespace")
        self.clock: Clock = clock or SystemClock()
        self.max_payload = max_payload
        self.max_body = max_body
        self.registry = MemoryRegistry(self.clock, time_to_live=3 * heartbeat)
        self.listening = Listening()
        self.services: list[Service] = []
        """Those served now, oldest first."""
        self.advisories: list[tuple[str, int, str]] = []
        """Terminated messages: consumer, stream sequence, reason."""
        self._streams: dict[StreamKind, Stream] = {
            "work": Stream(),
            "log": Stream(),
            "dead": Stream(),
            "limits": Stream(),
            "artifacts": Stream(),
        }
        self.forgets = unsynced_handoffs
        if unsynced_handoffs:
            self._streams["handoffs"] = Stream()
        self.restarts = 0
        self._started_anew = asyncio.Event()
        self._synced = Stream(), dict[str, _Schedule]()
        self._synced_consumers: dict[str, tuple[int, Sequence[int]]] = {}
        self._durables: dict[tuple[StreamKind, str], Durable] = {}
        self._schedules: dict[str, _Schedule] = {}
        self._waiting: dict[asyncio.Future[None], Durable | None] = {}
        """Who waits for what, woken in the order they came, so that runs repeat. None waits for anything at all."""
        self._numbers = count(1)
        self._objects = f"$O.{Subjects(namespace).artifacts_bucket}."

    def connect(self) -> MemoryBus:
        """One more connection to this broker."""
        return MemoryBus(broker=self)

    def stream(self, kind: StreamKind) -> Stream:
        self._catch_up()
        return self._streams[self.apart(kind)]

    def apart(self, kind: StreamKind) -> StreamKind:
        """The stream that what is asked for as `kind` is in."""
        return "work" if kind == "handoffs" and not self.forgets else kind

    def stream_of(self, subject: str) -> StreamKind:
        """Raises `BusUnavailable` when no stream takes `subject`: the real broker has nobody to answer, either."""
        if subject.startswith(self._objects):
            return "artifacts"
        prefix = self.namespace + "."
        kind = _STREAM_OF.get(subject[len(prefix) :].split(".")[0]) if subject.startswith(prefix) else None
        if kind is None or subject.count(".") < 2:
            raise BusUnavailable(
                f"no stream takes {subject}; its streams begin with {prefix} and one of {', '.join(_STREAM_OF)}"
            )
        return self.apart(kind)

    def store(self, subject: str, body: bytes, wire: Mapping[str, str]) -> int:
        kind = self.stream_of(subject)
        stream = self.stream(kind)
        now = self.clock.monotonic()
        message_id = wire.get(MESSAGE_ID)
        if message_id is not None and (known := stream.recent(message_id, now)):
            return known
        if (expect := wire.get(EXPECTED_SEQUENCE)) is not None and stream.ends_at(subject) != int(expect):
            raise Conflict(
                f"{subject} ends at {stream.ends_at(subject)}, expected {expect}; read it again, then decide"
            )
        return self._append(kind, subject, body, own_headers(wire), self.clock.now(), message_id)

    def schedule(self, name: str, at: datetime, target: str, body: bytes, headers: Mapping[str, str]) -> bool:
        if self.stream(self.stream_of(target)).ends_at(target):
            return False
        due = self.clock.monotonic() + max(0.0, (at - self.clock.now()).total_seconds())
        self._schedules[name] = _Schedule(due, next(self._numbers), target, body, own_headers(headers))
        self._changed()
        return True

    def delete(self, kind: StreamKind, sequence: int) -> bool:
        self._catch_up()
        kind = self.apart(kind)
        stored = self._streams[kind].remove(sequence)
        if stored is None:
            return False
        for (of, _), durable in self._durables.items():
            if of == kind:
                durable.settle(sequence)
        return True

    def purge(self, kind: StreamKind, subject: str) -> None:
        if kind in ("work", "handoffs"):
            self._schedules.pop(subject, None)
        for stored in self.stream(kind).select(subject):
            self.delete(kind, stored.sequence)

    def durable(self, kind: StreamKind, name: str, subject: str, ack_wait: float, max_in_flight: int) -> Durable:
        self._catch_up()
        kind = self.apart(kind)
        found = self._durables.get((kind, name))
        if found is None:
            found = Durable(name, subject, ack_wait, max_in_flight)
            found.ready.extend(stored.sequence for stored in self._streams[kind].select(subject))
            self._durables[kind, name] = found
        found.ack_wait, found.max_in_flight = ack_wait, max_in_flight
        return found

    def find_durable(self, kind: StreamKind, name: str) -> Durable | None:
        self._catch_up()
        return self._durables.get((self.apart(kind), name))

    # What a broker forgets that does not sync its handoffs

    def sync_handoffs(self) -> None:
        """What the handoffs are now, and those that wait for their time, a power cut will leave."""
        waiting = {name: plan for name, plan in self._schedules.items() if self._is_handoff(plan)}
        self._synced = self.stream("handoffs").copy(), waiting

    def sync_consumers(self) -> None:
        """Where the consumers of handoffs stand now, a power cut will leave."""
        end = self.stream("handoffs").end
        self._synced_consumers = {name: (end, durable.unsettled) for name, durable in self._of_handoffs()}

    def power_cut(self) -> None:
        """Start anew with what was synced: the latest handoffs are gone, and their numbers will be given again.
        Consumers that are ahead of the stream are moved back to its end."""
        self._catch_up()
        synced, waiting = self._synced
        stream = self._streams["handoffs"] = synced.copy()
        for name in [name for name, plan in self._schedules.items() if self._is_handoff(plan)]:
            del self._schedules[name]
        self._schedules.update(waiting)
        for name, durable in self._of_handoffs():
            end, unsettled = self._synced_consumers.get(name, (0, ()))
            since = [stored.sequence for stored in stream.select(durable.subject, end)]
            durable.put_back([*(sequence for sequence in unsettled if stream.at(sequence)), *since])
        self.sync_consumers()
        self.restarts += 1
        self._started_anew.set()
        self._changed()

    async def restarted(self, seen: int) -> None:
        while self.restarts <= seen:
            self._started_anew.clear()
            await self._started_anew.wait()

    def _of_handoffs(self) -> Iterator[tuple[str, Durable]]:
        return ((name, durable) for (kind, name), durable in self._durables.items() if kind == "handoffs")

    def _is_handoff(self, plan: _Schedule) -> bool:
        return self.stream_of(plan.target) == "handoffs"

    async def until_changed(self, durable: Durable | None = None) -> None:
        """Return when something was stored for `durable` or handed back to it, or may be due for it; for anybody."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[changed] = durable
        due = self._next_due(durable)
        timer = None
        if due is not None:
            wait = max(due - self.clock.monotonic(), _TICK)
            timer = asyncio.ensure_future(self.clock.sleep(wait))
        try:
            await asyncio.wait({changed, timer} if timer else {changed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._waiting[changed]
            if timer is not None:
                timer.cancel()
                await asyncio.wait({timer})  # and not `await timer`: its cancellation is not the caller's

    def wake(self, durable: Durable | None = None) -> None:
        self._changed(None if durable is None else [durable])

    def _append(
        self,
        kind: StreamKind,
        subject: str,
        body: bytes,
        headers: Mapping[str, str],
        at: datetime,
        message_id: str | None = None,
    ) -> int:
        older = self._streams[kind].ends_at(subject) if kind == "limits" else 0
        stored = self._streams[kind].append(subject, body, headers, at, message_id, self.clock.monotonic())
        self._streams[kind].remove(older)
        takers = [
            durable for (of, _), durable in self._durables.items() if of == kind and matches(durable.subject, subject)
        ]
        for durable in takers:
            durable.ready.append(stored.sequence)
        self._changed(takers)
        return stored.sequence

    def _catch_up(self) -> None:
        now = self.clock.monotonic()
        due = sorted(
            (plan for plan in self._schedules.items() if plan[1].due <= now),
            key=lambda plan: (plan[1].due, plan[1].number),
        )
        for name, plan in due:
            del self._schedules[name]
            at = self.clock.now() - timedelta(seconds=now - plan.due)
            self._append(self.stream_of(plan.target), plan.target, plan.body, plan.headers, at)
        for durable in self._durables.values():
            durable.catch_up(now)

    def _next_due(self, only: Durable | None) -> float | None:
        moments = [plan.due for plan in self._schedules.values()]
        concerned = self._durables.values() if only is None else (only,)
        moments += [moment for durable in concerned if (moment := durable.next_due()) is not None]
        return min(moments, default=None)

    def _changed(self, concerned: Sequence[Durable] | None = None) -> None:
        """Wake whoever waits for one of those concerned, or for anything; None concerns everybody."""
        for waiter, waits_for in self._waiting.items():
            if not waiter.done() and (concerned is None or waits_for is None or waits_for in concerned):
                waiter.set_result(None)


@dataclass(frozen=True, slots=True)
class _Schedule:
    due: float
    number: int
    target: str
    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Delivery:
    message: Stored
    delivered: int
    _broker: MemoryBroker
    _durable: Durable
    _era: int

    async def ack(self) -> None:
        if self._era != self._durable.era:
            return
        self._durable.settle(self.message.sequence)
        if self._durable.ready:  # there was no room for it in flight, maybe
            self._broker.wake(self._durable)

    async def nak(self, delay: float = 0.0) -> None:
        self._again_in(delay)
        self._broker.wake(self._durable)

    async def term(self, reason: str) -> None:
        if self._era == self._durable.era and self._durable.is_unsettled(self.message.sequence):
            self._broker.advisories.append((self._durable.name, self.message.sequence, reason))
        await self.ack()

    async def in_progress(self) -> None:
        self._again_in(self._durable.ack_wait)

    async def hand_on(self, name: str) -> bool:
        return self._era == self._durable.era and self._broker.listening.hand_on(name, self)

    def _again_in(self, seconds: float) -> None:
        if self._era == self._durable.era:
            self._durable.put_off(self.message.sequence, self._broker.clock.monotonic() + seconds)


class _Consumer:
    def __init__(self, bus: MemoryBus, durable: Durable, kind: StreamKind) -> None:
        self._bus = bus
        self._durable = durable
        self._kind: StreamKind = kind
        self._closed = False

    @property
    def bound(self) -> bool:
        return self._bus.connected and not self._closed

    async def take(self, room: int) -> Sequence[_Delivery]:
        broker = self._bus.broker
        await asyncio.sleep(0)  # or one process that never waits would leave nothing to those it shares with
        while True:
            if not self.bound:
                raise BusUnavailable(f"the consumer {self._durable.name} is closed")
            stream = broker.stream(self._kind)
            taken: list[_Delivery] = []
            while len(taken) < room and (sequence := self._durable.hand_out(broker.clock.monotonic())) is not None:
                if (stored := stream.at(sequence)) is not None:
                    count, era = self._durable.counts[sequence], self._durable.era
                    stored = await self._bus.whole(stored)
                    taken.append(_Delivery(stored, count, broker, self._durable, era))
            if taken:
                return taken
            await broker.until_changed(self._durable)

    async def close(self) -> None:
        self._closed = True
        self._bus.broker.wake()


class MemoryBus:
    """One connection to a `MemoryBroker`; to one of its own when none is given."""

    def __init__(
        self,
        namespace: str = "pointsman",
        clock: Clock | None = None,
        max_payload: int = _MAX_PAYLOAD,
        *,
        max_body: int = MAX_BODY,
        broker: MemoryBroker | None = None,
    ) -> None:
        self.broker = broker or MemoryBroker(namespace, clock, max_payload, max_body=max_body)
        bucket = Subjects(self.broker.namespace).artifacts_bucket
        self._artifacts = Artifacts(self, bucket, self.broker.max_body, self.broker.clock)
        self._closed = False

    @property
    def connected(self) -> bool:
        return not self._closed

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def server(self) -> Server | None:
        return None

    @property
    def forgets(self) -> bool:
        return self.broker.forgets

    @property
    def restarts(self) -> int:
        return self.broker.restarts

    async def restarted(self, seen: int) -> None:
        await self.broker.restarted(seen)

    @property
    def max_payload(self) -> int:
        return self.broker.max_payload

    @property
    def max_body(self) -> int:
        return self.broker.max_body

    @property
    def registry(self) -> MemoryRegistry:
        return self.broker.registry

    async def set_up(self, *, create: bool = True) -> None:
        self._open()

    async def publish(
        self,
        subject: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        expect: int | None = None,
        message_id: str | None = None,
    ) -> int:
        check_subject(subject)
        extra = {EXPECTED_SEQUENCE: str(expect)} if expect is not None else {}
        if message_id is not None:
            extra[MESSAGE_ID] = message_id
        body, wire = await self._artifacts.claimed(subject, body, wire_headers(headers, extra))
        check_size(subject, header_size(wire), len(body), self.max_payload)
        self._open()
        self.broker.listening.broadcast(Stored(subject, bytes(body), own_headers(wire), 0, self.broker.clock.now()))
        return self.broker.store(subject, body, wire)

    async def schedule(self, name: str, at: datetime, target: str, body: bytes, headers: Mapping[str, str]) -> bool:
        check_subject(name)
        check_subject(target)
        body, wire = await self._artifacts.claimed(target, body, wire_headers(headers))
        check_size(name, header_size(wire), len(body), self.max_payload)
        self._open()
        return self.broker.schedule(name, at, target, body, wire)

    async def purge(self, stream: StreamKind, subject: str) -> None:
        check_subject(subject)
        self._open()
        self.broker.purge(stream, subject)

    async def time(self) -> datetime:
        self._open()
        return self.broker.clock.now()

    async def lacks_room(self, stream: StreamKind) -> str:
        self._open()
        return ""

    async def subjects(self, stream: StreamKind, subject: str) -> Sequence[str]:
        check_filter(subject)
        self._open()
        return self.broker.stream(stream).subjects(subject)

    async def last(self, stream: StreamKind, subject: str) -> Stored | None:
        check_filter(subject)
        self._open()
        found = self.broker.stream(stream).select(subject)
        return await self._artifacts.whole(found[-1]) if found else None

    async def get(self, stream: StreamKind, sequence: int) -> Stored | None:
        self._open()
        found = self.broker.stream(stream).at(sequence)
        return found and await self._artifacts.whole(found)

    async def read(self, stream: StreamKind, subject: str, *, after: int = 0) -> AsyncIterator[Stored]:
        check_filter(subject)
        self._open()
        for stored in self.broker.stream(stream).select(subject, after):
            yield await self._artifacts.whole(stored)

    async def follow(
        self, stream: StreamKind, subjects: Sequence[str], *, after: int = 0
    ) -> AsyncGenerator[Stored, None]:
        for subject in subjects:
            check_filter(subject)
        while True:
            self._open()
            held = self.broker.stream(stream)
            for sequence in range(after + 1, held.end + 1):
                stored = held.at(sequence)
                if stored is not None and any(matches(subject, stored.subject) for subject in subjects):
                    yield await self._artifacts.whole(stored)
                after = sequence
            if self.broker.stream(stream).end == after:
                await self.broker.until_changed()

    async def consumer(
        self, name: str, stream: StreamKind, subject: str, *, ack_wait: float, max_in_flight: int = 1000
    ) -> _Consumer:
        check_filter(subject)
        token(name, "consumer")
        self._open()
        return _Consumer(self, self.broker.durable(stream, name, subject, ack_wait, max_in_flight), stream)

    async def receive(self, name: str, handed: Callable[[Delivery], None]) -> AbstractAsyncContextManager[None]:
        self._open()
        return self.broker.listening.receiving(token(name, "receiver"), handed)

    async def depth(self, name: str, stream: StreamKind) -> QueueDepth | None:
        self._open()
        durable = self.broker.find_durable(stream, name)
        if durable is None:
            return None
        fresh = sum(1 for sequence in durable.ready if sequence not in durable.counts)
        settled = min(durable.unsettled, default=self.broker.stream(stream).end + 1) - 1
        return QueueDepth(fresh, durable.in_flight + len(durable.ready) - fresh, settled)

    async def delete(self, stream: StreamKind, sequence: int) -> bool:
        self._open()
        return self.broker.delete(stream, sequence)

    async def broadcast(self, subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        check_subject(subject)
        body, wire = await self._artifacts.claimed(subject, body, wire_headers(headers))
        check_size(subject, header_size(wire), len(body), self.max_payload)
        if not self._closed:
            self.broker.listening.broadcast(Stored(subject, bytes(body), wire, 0, self.broker.clock.now()))

    async def listen(
        self, subject: str, heard: Callable[[Stored], Awaitable[None]]
    ) -> AbstractAsyncContextManager[None]:
        check_filter(subject)
        self._open()

        async def told(stored: Stored) -> None:
            await heard(await self._artifacts.whole(stored))

        return self.broker.listening.hearing(subject, told)

    async def serve(self, service: Service) -> AbstractAsyncContextManager[None]:
        self._open()
        self.broker.services.append(service)
        return _until_left(lambda: self.broker.services.remove(service))

    async def close(self) -> None:
        self._closed = True
        self.broker.wake()

    async def whole(self, stored: Stored) -> Stored:
        """`stored` with its body, wherever that is kept."""
        return await self._artifacts.whole(stored)

    def _open(self) -> None:
        if self._closed:
            raise BusUnavailable("this connection was closed; open another one")


@asynccontextmanager
async def _until_left(stop: Callable[[], None]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        stop()
