"""Inject typical faults of a broker into a bus, and kill the process of the bus. A seed determines the faults.

| Fault | Effect |
|---|---|
| slow | a call, an answer or a settlement takes up to `Faults.max_latency` |
| unavailable | the call is refused at once, without an effect |
| lost | a publish never arrives, and is not answered |
| unanswered | a publish is stored, and its answer is lost |
| late | a publish is not answered, and is stored later; until then, no publish with `expect` to its subject succeeds |
| unsettled | an acknowledgement of any kind, or a forwarded delivery, never arrives |
| repeated | a message is delivered again while it is being processed |
| unheard | a broadcast is lost |
| outage | for 0.5 to 8 seconds no call of this process reaches the broker |
| crash | the process dies before a call, or after its effect |
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import Any, TypeVar

from pointsman.errors import BusUnavailableError, PointsmanError, PublishOutcomeUnknownError
from pointsman.ports.bus import (
    Bus,
    Consumer,
    Delivery,
    QueueDepth,
    Registry,
    Server,
    Service,
    StoredMessage,
    StreamKind,
)
from pointsman.ports.key_value import KeyValue
from pointsman.testing.simulation import SimulatedProcess
from pointsman_schemas.card import AgentCard

__all__ = ["RATES", "Faults", "FaultyBus"]

T = TypeVar("T")

RATES: Mapping[str, float] = {
    "slow": 0.04,
    "unavailable": 0.01,
    "lost": 0.01,
    "unanswered": 0.02,
    "late": 0.01,
    "unsettled": 0.05,
    "repeated": 0.04,
    "unheard": 0.2,
    "outage": 0.002,
    "crash": 0.008,
}
"""Probability of each fault for a call. A workflow of some 50 calls has several faults."""


def _nothing(what: str) -> None: ...


@dataclass(slots=True)
class Faults:
    """Rates and counts of faults. Times are in seconds of the loop's clock.

    Attributes:
        chance: The source of random numbers.
        rates: The probability of each fault. Default: `RATES`.
        until: Time after which no faults happen. Default: never.
        max_latency: Maximum delay of a slow call. Default: 3.
        counts: The number of faults so far, by kind.
        log: Called with a text for each fault. Default: no call.
    """

    chance: Random
    rates: Mapping[str, float] = field(default_factory=lambda: RATES)
    until: float = float("inf")
    crashes: int = 10
    """Maximum number of processes that will still be killed."""
    latency: float = 0.002
    """Average delay of a call on its way to the broker, and of the answer on its way back."""
    max_latency: float = 3.0
    timeout: float = 1.0
    """Maximum time to wait for an answer."""
    counts: Counter[str] = field(default_factory=Counter)
    log: Callable[[str], None] = _nothing
    in_flight: Counter[str] = field(default_factory=Counter)
    """Number of publishes that are late and not stored yet, by subject."""
    # The tasks are kept here, because the loop has only weak references to them.
    _tasks: dict[asyncio.Task[None], None] = field(default_factory=dict)

    @property
    def is_idle(self) -> bool:
        """True if no delayed effect is pending."""
        return not self._tasks

    @property
    def active(self) -> bool:
        """True while faults can happen: before the time `until`."""
        return asyncio.get_running_loop().time() < self.until

    def occurs(self, fault: str, where: str) -> bool:
        """Return True if a fault happens now, and count the fault.

        Args:
            fault: The kind of fault.
            where: The process and the call, for `log`.

        Returns:
            True if the fault happens.
        """
        if not self.active or self.chance.random() >= self.rates.get(fault, 0.0):
            return False
        if fault == "crash":
            if self.crashes == 0:
                return False
            self.crashes -= 1
        self.counts[fault] += 1
        self.log(f"{fault}: {where}")
        return True

    def pick(self, where: str, *faults: str) -> str | None:
        """Choose the fault that happens now, and count the fault.

        Args:
            where: The process and the call, for `log`.
            faults: The kinds of faults to choose from, in this order.

        Returns:
            The first fault that happens; None without a fault.
        """
        return next((fault for fault in faults if self.occurs(fault, where)), None)

    async def delay(self, where: str) -> None:
        """Wait for the time that a message takes to or from the broker.

        Args:
            where: The process and the call, for `log`.
        """
        if self.occurs("slow", where):
            await asyncio.sleep(self.chance.uniform(0.0, self.max_latency))
        else:
            await asyncio.sleep(self.chance.expovariate(1 / self.latency))

    def schedule(self, delay: float, effect: Callable[[], Awaitable[Any]], subject: str = "") -> None:
        """Run an effect later. The effect also happens if its process dies meanwhile, because the message was sent.

        Args:
            delay: The delay in seconds.
            effect: The effect.
            subject: The subject of a late publish. Default: none.
        """

        async def arrive() -> None:
            await asyncio.sleep(delay)
            self.in_flight[subject] -= 1
            with suppress(PointsmanError):
                await effect()

        self.in_flight[subject] += 1
        task = asyncio.get_running_loop().create_task(arrive(), context=contextvars.Context())
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None), context=contextvars.Context())


class FaultyBus(Bus):
    """The bus of one process, with faults. After the death of the process, its calls have no effect.

    Args:
        bus: The bus without faults.
        faults: The faults.
        process: The process that uses the bus.
    """

    def __init__(self, bus: Bus, faults: Faults, process: SimulatedProcess) -> None:
        self._bus = bus
        self._faults = faults
        self._process = process
        self._away_until = 0.0
        self._registry = _FaultyRegistry(self, bus.registry)

    # Faults in transit

    def check_alive(self) -> None:
        """Raise `CancelledError` if the process is dead."""
        if not self._process.alive:
            raise asyncio.CancelledError(f"{self._process.name} is dead")

    def may_crash(self, where: str) -> None:
        """Kill the process if a crash happens now, and raise `CancelledError` if the process is dead.

        Args:
            where: The call, for `Faults.log`.
        """
        self.check_alive()
        if self._faults.occurs("crash", f"{self._process.name} {where}"):
            self._process.kill()
            self.check_alive()

    @property
    def is_disconnected(self) -> bool:
        """True during an outage. Each read of this property may begin an outage."""
        now = asyncio.get_running_loop().time()
        if now >= self._away_until and self._faults.occurs("outage", self._process.name):
            self._away_until = now + self._faults.chance.uniform(0.5, 8.0)
        return now < self._away_until

    async def wait_until_back(self) -> None:
        """Return when there is no outage of this process."""
        while self.is_disconnected:  # noqa: ASYNC110  # the outage ends with time, and each read may begin another
            await asyncio.sleep(self._away_until - asyncio.get_running_loop().time())

    async def call(self, what: str, effect: Callable[[], Awaitable[T]]) -> T:
        """Make a call with an effect at the broker, with the faults that happen now.

        Args:
            what: The call, for `Faults.log`.
            effect: The effect.

        Returns:
            The answer.
        """
        where = f"{self._process.name} {what}"
        await self._send(what, where)
        answer = await effect()
        await self._receive(what, where)
        return answer

    async def _send(self, what: str, where: str) -> None:
        self.may_crash(f"before {what}")
        if self.is_disconnected:
            await asyncio.sleep(self._faults.timeout)
            raise BusUnavailableError(f"{where}: the broker is unavailable")
        if self._faults.occurs("unavailable", where):
            raise BusUnavailableError(f"{where}: the broker did not answer")
        await self._faults.delay(where)
        self.check_alive()

    async def _receive(self, what: str, where: str) -> None:
        self.may_crash(f"after {what}")
        await self._faults.delay(where)

    async def _store(self, what: str, subject: str, store: Callable[[], Awaitable[T]], expect: int | None) -> T:
        where = f"{self._process.name} {what}"
        await self._send(what, where)
        if expect is not None and self._faults.in_flight[subject]:
            await asyncio.sleep(self._faults.timeout)
            raise PublishOutcomeUnknownError(f"{where}: an earlier publish to the subject is still in transit")
        fate = self._faults.pick(where, "lost", "unanswered", "late")
        if fate == "late":
            self._faults.schedule(self._faults.chance.uniform(0.0, 2 * self._faults.max_latency), store, subject)
        if fate in ("lost", "late"):
            self.may_crash(f"while waiting for the answer to {what}")
            await asyncio.sleep(self._faults.timeout)
            raise PublishOutcomeUnknownError(f"{where}: no answer in {self._faults.timeout} s")
        answer = await store()
        await self._receive(what, where)
        if fate == "unanswered":
            await asyncio.sleep(self._faults.timeout)
            raise PublishOutcomeUnknownError(f"{where}: no answer in {self._faults.timeout} s")
        return answer

    async def settle(self, what: str, effect: Callable[[], Awaitable[None]]) -> None:
        """Send a settlement, which the broker does not answer. It arrives now, later or never.

        Args:
            what: The call, for `Faults.log`.
            effect: The effect.
        """
        where = f"{self._process.name} {what}"
        self.may_crash(f"before {what}")
        if not self.is_disconnected and not self._faults.occurs("unsettled", where):
            if self._faults.occurs("slow", where):
                self._faults.schedule(self._faults.chance.uniform(0.0, self._faults.max_latency), effect)
            else:
                await effect()
        self.may_crash(f"after {what}")

    def repeat(self, delivery: Delivery) -> None:
        """Let the broker deliver a message again, if the fault `repeated` happens now.

        Args:
            delivery: The delivery that the process has.
        """
        where = f"{self._process.name} has {delivery.message.subject}"
        if self._faults.occurs("repeated", where):
            self._faults.schedule(self._faults.chance.uniform(0.0, self._faults.max_latency), delivery.nak)

    async def forward(self, name: str, delivery: Delivery) -> bool:
        """Forward a delivery to another process, with the faults that happen now.

        Args:
            name: The name of the receiver.
            delivery: The delivery.

        Returns:
            False if the delivery was certainly not forwarded.
        """
        where = f"{self._process.name} forward {delivery.message.subject}"
        self.may_crash(f"before {where}")
        if self.is_disconnected:
            return False

        async def arrive() -> bool:
            return await delivery.forward(name)

        arrived = True
        if not self._faults.occurs("unsettled", where):
            if self._faults.occurs("slow", where):
                self._faults.schedule(self._faults.chance.uniform(0.0, self._faults.max_latency), arrive)
            else:
                arrived = await arrive()
        self.may_crash(f"after {where}")
        return arrived

    # The bus

    @property
    def connected(self) -> bool:
        return self._process.alive and self._bus.connected

    @property
    def closed(self) -> bool:
        return self._bus.closed

    @property
    def server(self) -> Server | None:
        return self._bus.server

    @property
    def handoffs_unsynced(self) -> bool:
        return self._bus.handoffs_unsynced

    def stream_name(self, stream: StreamKind) -> str:
        return self._bus.stream_name(stream)

    @property
    def restarts(self) -> int:
        return self._bus.restarts

    async def restarted(self, seen: int) -> None:
        await self._bus.restarted(seen)

    @property
    def max_payload(self) -> int:
        return self._bus.max_payload

    @property
    def domain(self) -> str:
        return self._bus.domain

    @property
    def max_body(self) -> int:
        return self._bus.max_body

    @property
    def registry(self) -> Registry:
        return self._registry

    async def set_up(self, *, create: bool = True) -> None:
        await self.call("set_up", lambda: self._bus.set_up(create=create))

    async def publish(
        self,
        subject: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        expect: int | None = None,
        message_id: str | None = None,
    ) -> int:
        def store() -> Awaitable[int]:
            return self._bus.publish(subject, body, headers, expect=expect, message_id=message_id)

        return await self._store(f"publish {subject}", subject, store, expect)

    async def replace(
        self,
        subject: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        expect: int | None = None,
        message_id: str | None = None,
        ttl: float | None = None,
    ) -> int:
        def store() -> Awaitable[int]:
            return self._bus.replace(subject, body, headers, expect=expect, message_id=message_id, ttl=ttl)

        return await self._store(f"replace {subject}", subject, store, expect)

    async def schedule(self, name: str, at: datetime, target: str, body: bytes, headers: Mapping[str, str]) -> bool:
        def store() -> Awaitable[bool]:
            return self._bus.schedule(name, at, target, body, headers)

        return await self._store(f"schedule {target}", target, store, None)

    async def capacity_problem(self, stream: StreamKind) -> str:
        return await self.call(f"capacity_problem {stream}", lambda: self._bus.capacity_problem(stream))

    async def subjects(self, stream: StreamKind, subject: str) -> Sequence[str]:
        return await self.call(f"subjects {subject}", lambda: self._bus.subjects(stream, subject))

    async def last(self, stream: StreamKind, subject: str) -> StoredMessage | None:
        return await self.call(f"last {subject}", lambda: self._bus.last(stream, subject))

    async def get(self, stream: StreamKind, sequence: int, subject: str = ">") -> StoredMessage | None:
        return await self.call(f"get {stream} {sequence}", lambda: self._bus.get(stream, sequence, subject))

    async def read(self, stream: StreamKind, subject: str, *, after: int = 0) -> AsyncIterator[StoredMessage]:
        async def held() -> list[StoredMessage]:
            return [stored async for stored in self._bus.read(stream, subject, after=after)]

        for stored in await self.call(f"read {subject}", held):
            yield stored

    def follow(self, stream: StreamKind, subjects: Sequence[str], *, after: int = 0) -> AsyncIterator[StoredMessage]:
        return self._bus.follow(stream, subjects, after=after)

    async def consumer(
        self,
        name: str,
        stream: StreamKind,
        subject: str,
        *,
        ack_wait: float,
        max_in_flight: int = 1000,
        ranked: bool = False,
    ) -> Consumer:
        def open_it() -> Awaitable[Consumer]:
            return self._bus.consumer(
                name, stream, subject, ack_wait=ack_wait, max_in_flight=max_in_flight, ranked=ranked
            )

        return _FaultyConsumer(self, await self.call(f"consumer {name}", open_it), name)

    async def receive_forwarded(
        self, name: str, on_delivery: Callable[[Delivery], None]
    ) -> AbstractAsyncContextManager[None]:
        def received(delivery: Delivery) -> None:
            if self._process.alive:
                self.repeat(delivery)
                on_delivery(_FaultyDelivery(self, delivery))

        return await self.call(f"receive {name}", lambda: self._bus.receive_forwarded(name, received))

    async def depth(self, name: str, stream: StreamKind) -> QueueDepth | None:
        return await self.call(f"depth {name}", lambda: self._bus.depth(name, stream))

    async def delete(self, stream: StreamKind, sequence: int, *, erase: bool = False) -> bool:
        def remove() -> Awaitable[bool]:
            return self._bus.delete(stream, sequence, erase=erase)

        return await self.call(f"delete {stream} {sequence}", remove)

    async def trim(self, stream: StreamKind, subject: str, last: int) -> None:
        await self.call(f"trim {stream} {subject}", lambda: self._bus.trim(stream, subject, last))

    async def time(self) -> datetime:
        return await self.call("time", self._bus.time)

    def optional_requests(self, *prefixes: str) -> AbstractContextManager[None]:
        return self._bus.optional_requests(*prefixes)

    async def key_value(self, bucket: str, group: str = "") -> KeyValue:
        # The returned bucket has no faults, because no simulated process uses a bucket.
        return await self.call("key_value", lambda: self._bus.key_value(bucket, group))

    async def broadcast(self, subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        self.may_crash(f"before broadcast {subject}")
        if not self.is_disconnected and not self._faults.occurs("unheard", f"{self._process.name} broadcast {subject}"):
            await self._bus.broadcast(subject, body, headers)
        self.may_crash(f"after broadcast {subject}")

    async def listen(
        self, subject: str, on_message: Callable[[StoredMessage], Awaitable[None]]
    ) -> AbstractAsyncContextManager[None]:
        return await self.call(f"listen {subject}", lambda: self._bus.listen(subject, on_message))

    async def serve(self, service: Service) -> AbstractAsyncContextManager[None]:
        return await self.call(f"serve {service.name}", lambda: self._bus.serve(service))

    async def close(self) -> None:
        await self._bus.close()


class _FaultyRegistry:
    def __init__(self, bus: FaultyBus, registry: Registry) -> None:
        self._bus = bus
        self._registry = registry

    async def announce(self, card: AgentCard) -> None:
        await self._bus.call(f"announce {card.name}", lambda: self._registry.announce(card))

    async def withdraw(self, card: AgentCard) -> None:
        await self._bus.call(f"withdraw {card.name}", lambda: self._registry.withdraw(card))

    async def cards(self) -> Sequence[AgentCard]:
        self._bus.check_alive()
        return await self._registry.cards()

    async def refused(self) -> Mapping[str, str]:
        self._bus.check_alive()
        return await self._registry.refused()


class _FaultyConsumer:
    def __init__(self, bus: FaultyBus, consumer: Consumer, name: str) -> None:
        self._bus = bus
        self._consumer = consumer
        self._name = name

    async def take(self, room: int) -> Sequence[Delivery]:
        await self._bus.wait_until_back()
        self._bus.may_crash(f"before take {self._name}")
        taken = await self._consumer.take(room)
        self._bus.may_crash(f"after take {self._name}")
        for delivery in taken:
            self._bus.repeat(delivery)
        return [_FaultyDelivery(self._bus, delivery) for delivery in taken]

    async def withdraw(self) -> Sequence[Delivery]:
        return [_FaultyDelivery(self._bus, delivery) for delivery in await self._consumer.withdraw()]

    def set_rank(self, rank: int) -> None:
        self._consumer.set_rank(rank)

    @property
    def bound(self) -> bool:
        return self._consumer.bound

    async def close(self) -> None:
        self._bus.check_alive()
        await self._consumer.close()


class _FaultyDelivery:
    def __init__(self, bus: FaultyBus, delivery: Delivery) -> None:
        self._bus = bus
        self._delivery = delivery

    @property
    def message(self) -> StoredMessage:
        return self._delivery.message

    @property
    def delivered(self) -> int:
        return self._delivery.delivered

    async def ack(self) -> None:
        await self._bus.settle(f"ack {self.message.subject}", self._delivery.ack)

    async def nak(self, delay: float = 0.0) -> None:
        await self._bus.settle(f"nak {self.message.subject}", lambda: self._delivery.nak(delay))

    async def term(self, reason: str) -> None:
        await self._bus.settle(f"term {self.message.subject}", lambda: self._delivery.term(reason))

    async def in_progress(self) -> None:
        await self._bus.settle(f"in_progress {self.message.subject}", self._delivery.in_progress)

    async def forward(self, name: str) -> bool:
        return await self._bus.forward(name, self._delivery)
