"""State of an in-memory broker that all connections share: stored messages, schedules, waiting consumers.

The state depends only on the calls and on the clock's time. The broker has no background tasks. Instead, each call
first publishes the scheduled messages that are due, and each waiting caller sleeps until the next message is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count

from pointsman.bus.memory.registry import MemoryRegistry
from pointsman.bus.memory.streams import Durable, Stream
from pointsman.bus.memory.subscriptions import MemorySubscriptions
from pointsman.bus.stream_names import SCHEDULING_STREAMS, STORED_KINDS, stream_kind_of
from pointsman.bus.validation import (
    EXPECTED_SEQUENCE_HEADER,
    MESSAGE_ID_HEADER,
    REQUEST_DUPLICATE_WINDOW_S,
    ROLLUP_HEADER,
    TTL_HEADER,
    event_headers,
    matches,
)
from pointsman.clock import SystemClock
from pointsman.errors import BusUnavailableError, ConflictError, PeerError
from pointsman.ports.bus import Service, StreamKind
from pointsman.ports.clock import Clock
from pointsman_schemas.claim_check import MAX_BODY_BYTES
from pointsman_schemas.ids import token
from pointsman_schemas.subjects import Subjects

__all__ = ["MAX_PAYLOAD_BYTES", "Broker"]

MAX_PAYLOAD_BYTES = 1_048_576  # the default of nats-server
# The shortest wait, in seconds. An event loop can fire a timer early by up to the resolution of its clock. The rest of
# the wait can then be shorter than the loop can measure.
_CLOCK_RESOLUTION_S = 1e-6
_NEWEST_ONLY: frozenset[StreamKind] = frozenset({"deliveries", "limits"})
"""The streams that store only the newest message of each subject."""


class Broker:
    """State that all connections share: streams, consumers, schedules, cards, listeners, services.

    Args:
        namespace: Namespace of the subjects. Default: `pointsman`.
        clock: Clock of the broker. Default: the system clock.
        max_payload: Maximum size in bytes of headers and body in one message. Default: 1 MiB, as in nats-server.
        heartbeat: Seconds between the announcements of a card; a card expires after three times this value. Default: 5.
        max_body: Maximum size in bytes of headers and body of one event. Default: `MAX_BODY_BYTES`.
        unsynced_handoffs: True for a separate stream of handoffs, which loses its newest messages at a power cut.
            Default: False.
    """

    def __init__(
        self,
        namespace: str = "pointsman",
        clock: Clock | None = None,
        max_payload: int = MAX_PAYLOAD_BYTES,
        heartbeat: float = 5.0,
        max_body: int = MAX_BODY_BYTES,
        unsynced_handoffs: bool = False,
    ) -> None:
        self.namespace = token(namespace, "namespace")
        self.clock: Clock = clock or SystemClock()
        self.max_payload = max_payload
        self.max_body = max_body
        self.registry = MemoryRegistry(self.clock, time_to_live=3 * heartbeat)
        self.listening = MemorySubscriptions()
        self.services: list[Service] = []
        """Services that are served now, oldest first."""
        self.advisories: list[tuple[str, int, str]] = []
        """Terminated messages: consumer, stream sequence, reason."""
        self._streams: dict[StreamKind, Stream] = {
            "requests": Stream(REQUEST_DUPLICATE_WINDOW_S),
            "controls": Stream(),
            "results": Stream(),
            "work": Stream(),
            "log": Stream(),
            "dead": Stream(),
            "deliveries": Stream(),
            "limits": Stream(),
            "artifacts": Stream(),
        }
        self._buckets: dict[str, Stream] = {}
        self.handoffs_unsynced = unsynced_handoffs
        if unsynced_handoffs:
            self._streams["handoffs"] = Stream()
        self.restarts = 0
        self._restarted = asyncio.Event()
        self._synced = Stream(), dict[str, _Schedule]()
        self._synced_consumers: dict[str, tuple[int, Sequence[int]]] = {}
        self._durables: dict[tuple[StreamKind, str], Durable] = {}
        self._schedules: dict[str, _Schedule] = {}
        self._expiring: list[tuple[float, StreamKind, int]] = []  # due time, stream and sequence of messages with a TTL
        self._waiting: dict[asyncio.Future[None], Durable | None] = {}
        """By waiter: the consumer to wait for; None for any change. Waiters wake in the order of the dictionary, which
        makes runs repeatable."""
        self._sequence_counter = count(1)
        self._subjects = Subjects(namespace)
        self._objects = f"$O.{self._subjects.artifacts_bucket}."

    def stream(self, kind: StreamKind) -> Stream:
        self._publish_due()
        return self._streams[self.separate_stream(kind)]

    def bucket(self, name: str) -> Stream:
        return self._buckets.setdefault(name, Stream())

    def separate_stream(self, kind: StreamKind) -> StreamKind:
        """Return the stream that stores the messages of `kind`."""
        return "work" if kind == "handoffs" and not self.handoffs_unsynced else kind

    def stream_of(self, subject: str) -> StreamKind:
        """Return the stream of `subject`.

        Raises:
            BusUnavailableError: No stream stores `subject`. The real broker does not answer such a publish.
        """
        if subject.startswith(self._objects):
            return "artifacts"
        if (kind := stream_kind_of(self._subjects, subject)) is None:
            raise BusUnavailableError(
                f"no stream stores {subject}; expected {self.namespace}.KIND and the tokens of the kind, where KIND is "
                f"one of {', '.join(STORED_KINDS)}"
            )
        return self.separate_stream(kind)

    def store(self, subject: str, body: bytes, wire: Mapping[str, str]) -> int:
        kind = self.stream_of(subject)
        stream = self.stream(kind)
        now = self.clock.monotonic()
        if (ROLLUP_HEADER in wire or TTL_HEADER in wire) and kind not in SCHEDULING_STREAMS:
            raise PeerError(f"the broker refuses {subject}: its stream accepts no rollup and no time to live")
        message_id = wire.get(MESSAGE_ID_HEADER)
        if message_id is not None and (known := stream.recent(message_id, now)):
            return known
        if (expect := wire.get(EXPECTED_SEQUENCE_HEADER)) is not None and stream.last_sequence_of(subject) != int(
            expect
        ):
            raise ConflictError(
                f"the last message of {subject} has the sequence {stream.last_sequence_of(subject)}, expected "
                f"{expect}; read the subject again"
            )
        if kind in SCHEDULING_STREAMS:
            self._schedules.pop(subject, None)  # a message replaces the schedule of the same name
        if ROLLUP_HEADER in wire:
            for stored in stream.select(subject):
                self.delete(kind, stored.sequence)
        sequence = self._append(kind, subject, body, event_headers(wire), self.clock.now(), message_id)
        if (ttl := wire.get(TTL_HEADER)) is not None:
            self._expiring.append((now + float(ttl.removesuffix("s")), kind, sequence))
        return sequence

    def schedule(self, name: str, at: datetime, target: str, body: bytes, headers: Mapping[str, str]) -> bool:
        if (kind := self.stream_of(name)) not in SCHEDULING_STREAMS or self.stream_of(target) != kind:
            raise PeerError(f"the broker refuses {name}: its stream has no schedules, or does not store {target}")
        if self.stream(kind).last_sequence_of(target):
            return False
        due = self.clock.monotonic() + max(0.0, (at - self.clock.now()).total_seconds())
        self._schedules[name] = _Schedule(due, next(self._sequence_counter), target, body, event_headers(headers))
        self._notify()
        return True

    def delete(self, kind: StreamKind, sequence: int) -> bool:
        self._publish_due()
        kind = self.separate_stream(kind)
        return self._remove(kind, sequence)

    def _remove(self, kind: StreamKind, sequence: int) -> bool:
        if self._streams[kind].remove(sequence) is None:
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

    def trim(self, kind: StreamKind, subject: str, last: int) -> None:
        for stored in self.stream(kind).select(subject):
            if stored.sequence <= last:
                self.delete(kind, stored.sequence)

    def open_durable(self, kind: StreamKind, name: str, subject: str, ack_wait: float, max_in_flight: int) -> Durable:
        self._publish_due()
        kind = self.separate_stream(kind)
        found = self._durables.get((kind, name))
        if found is None:
            found = Durable(name, subject, ack_wait, max_in_flight)
            found.ready.extend(stored.sequence for stored in self._streams[kind].select(subject))
            self._durables[kind, name] = found
        attended = bool(found.pulling) or found.in_flight > 0
        asked = sorted({ack_wait, found.ack_wait} if attended else {ack_wait})
        found.ack_waits = tuple(asked) if len(asked) > 1 else ()
        found.ack_wait, found.max_in_flight = asked[-1], max_in_flight
        return found

    def find_durable(self, kind: StreamKind, name: str) -> Durable | None:
        self._publish_due()
        return self._durables.get((self.separate_stream(kind), name))

    # Loss of handoffs at a broker that does not sync them

    def sync_handoffs(self) -> None:
        """Sync the present handoffs and the scheduled handoffs, which then survive a power cut."""
        waiting = {name: plan for name, plan in self._schedules.items() if self._is_handoff(plan)}
        self._synced = self.stream("handoffs").copy(), waiting

    def sync_consumers(self) -> None:
        """Sync the positions of the consumers of handoffs, which then survive a power cut."""
        end = self.stream("handoffs").end
        self._synced_consumers = {name: (end, durable.unsettled) for name, durable in self._handoff_durables()}

    def power_cut(self) -> None:
        """Restart with the synced state.

        Handoffs that were stored after the sync are lost, and new handoffs receive the lost sequence numbers. A
        consumer whose position is after the end of the stream moves back to this end.
        """
        self._publish_due()
        synced, waiting = self._synced
        stream = self._streams["handoffs"] = synced.copy()
        for name in [name for name, plan in self._schedules.items() if self._is_handoff(plan)]:
            del self._schedules[name]
        self._schedules.update(waiting)
        for name, durable in self._handoff_durables():
            end, unsettled = self._synced_consumers.get(name, (0, ()))
            since = [stored.sequence for stored in stream.select(durable.subject, end)]
            durable.restore_pending([*(sequence for sequence in unsettled if stream.get(sequence)), *since])
        self.sync_consumers()
        self.restarts += 1
        self._restarted.set()
        self._notify()

    async def restarted(self, seen: int) -> None:
        while self.restarts <= seen:
            self._restarted.clear()
            await self._restarted.wait()

    def _handoff_durables(self) -> Iterator[tuple[str, Durable]]:
        return ((name, durable) for (kind, name), durable in self._durables.items() if kind == "handoffs")

    def _is_handoff(self, plan: _Schedule) -> bool:
        return self.stream_of(plan.target) == "handoffs"

    async def until_changed(self, durable: Durable | None = None) -> None:
        """Wait until `durable` has a new or returned message, or until a message is due.

        With None, wait for a message of any consumer, or for any other change.
        """
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[changed] = durable
        due = self._next_due(durable)
        timer = None
        if due is not None:
            wait = max(due - self.clock.monotonic(), _CLOCK_RESOLUTION_S)
            timer = asyncio.ensure_future(self.clock.sleep(wait))
        try:
            await asyncio.wait({changed, timer} if timer else {changed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._waiting[changed]
            if timer is not None:
                timer.cancel()
                await asyncio.wait(
                    {timer}
                )  # not `await timer`, because the cancellation of the timer must not reach the caller

    def wake(self, durable: Durable | None = None) -> None:
        self._notify(None if durable is None else [durable])

    def _append(
        self,
        kind: StreamKind,
        subject: str,
        body: bytes,
        headers: Mapping[str, str],
        at: datetime,
        message_id: str | None = None,
        scheduled_by: str = "",
    ) -> int:
        older = self._streams[kind].last_sequence_of(subject) if kind in _NEWEST_ONLY else 0
        stored = self._streams[kind].append(
            subject, body, headers, at, message_id, self.clock.monotonic(), scheduled_by
        )
        self._streams[kind].remove(older)
        takers = [
            durable for (of, _), durable in self._durables.items() if of == kind and matches(durable.subject, subject)
        ]
        for durable in takers:
            durable.ready.append(stored.sequence)
        self._notify(takers)
        return stored.sequence

    def _publish_due(self) -> None:
        now = self.clock.monotonic()
        due = sorted(
            (plan for plan in self._schedules.items() if plan[1].due <= now),
            key=lambda plan: (plan[1].due, plan[1].number),
        )
        for name, plan in due:
            del self._schedules[name]
            at = self.clock.now() - timedelta(seconds=now - plan.due)
            self._append(self.stream_of(plan.target), plan.target, plan.body, plan.headers, at, scheduled_by=name)
        for expiry in [expiry for expiry in self._expiring if expiry[0] <= now]:
            self._expiring.remove(expiry)
            self._remove(*expiry[1:])
        for durable in self._durables.values():
            durable.expire_deadlines(now)

    def _next_due(self, only: Durable | None) -> float | None:
        moments = [plan.due for plan in self._schedules.values()]
        concerned = self._durables.values() if only is None else (only,)
        moments += [moment for durable in concerned if (moment := durable.next_due()) is not None]
        return min(moments, default=None)

    def _notify(self, concerned: Sequence[Durable] | None = None) -> None:
        """Wake the waiters for the `concerned` consumers, and the waiters for any change. None wakes all waiters."""
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
