"""Ask the broker if a webhook service of a namespace runs, and when the oldest attempt is due."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from datetime import datetime
from typing import NamedTuple

from pointsman.engine.log.reader import as_async_generator
from pointsman.engine.process.consumers import webhook_consumers
from pointsman.ports.bus import Bus, QueueDepth, StoredMessage
from pointsman.webhooks.deliveries import parse_state
from pointsman.webhooks.endpoint_store import EndpointStore
from pointsman.webhooks.endpoints import Endpoint
from pointsman_schemas.subjects import Subjects

__all__ = ["Observation", "Observer", "ServiceState", "read_service"]

_MAX_CHECKS = 20  # largest number of retries that one observation reads again, to see if the retries still exist


class ServiceState(NamedTuple):
    """The state of the webhook services of a namespace.

    Attributes:
        running: True if a service has asked the broker for events or deliveries.
        waiting: Number of deliveries that no service has received yet.
    """

    running: bool
    waiting: int


class Observation(NamedTuple):
    """The endpoints of a namespace and the state of their deliveries.

    Attributes:
        endpoints: The endpoints, oldest first.
        service: The state of the webhook services.
        oldest_due: The time at which the oldest open attempt is due; None without an open attempt. Open attempts are
            of two kinds. The first attempt at a delivery that no service has received is due when the delivery is
            stored. A retry for an enabled endpoint can also be due in the future.
    """

    endpoints: Sequence[Endpoint]
    service: ServiceState
    oldest_due: datetime | None


class _Retry(NamedTuple):
    endpoint: str
    at: datetime


async def read_service(bus: Bus, subjects: Subjects) -> ServiceState:
    """Return the state of the webhook services. A service runs if the broker has an open pull request of the service.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.

    Returns:
        The state.

    Raises:
        PeerError: The broker does not describe a consumer.
    """
    return _service_of(await _read_depths(bus, subjects))


class Observer:
    """Observe the webhook services.

    A receipt is a message with the state of a delivery. The first observation reads all receipts of deliveries that
    are not settled. Each later observation with the same observer reads only the new receipts.

    Memory: some 300 bytes for each retry. There are at most `MAX_WAITING_DELIVERIES` retries.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        store: The endpoints.
    """

    def __init__(self, bus: Bus, subjects: Subjects, store: EndpointStore) -> None:
        self._bus = bus
        self._subjects = subjects
        self._store = store
        self._retries: dict[str, _Retry] = {}  # by the subject of the receipt
        self._read_through = 0  # receipts up to this sequence are in `_retries`
        self._settled_through = 0

    async def observe(self) -> Observation:
        """Observe the services now.

        Returns:
            The observation.

        Raises:
            PeerError: The broker does not describe a consumer.
            PermissionDeniedError: The user of the broker may not read endpoints or deliveries.
        """
        depths = await _read_depths(self._bus, self._subjects)
        deliveries = depths[-1]
        await self._read_receipts(0 if deliveries is None else deliveries.settled_through)
        # The endpoints are read after the receipts. So if the endpoint of a receipt is missing, it was deleted.
        endpoints = await self._store.list()
        waiting, retry = await self._oldest_waiting(deliveries), await self._earliest_retry(endpoints)
        due = min((each for each in (waiting, retry) if each is not None), default=None)
        return Observation(endpoints, _service_of(depths), due)

    async def _read_receipts(self, settled_through: int) -> None:
        """Update the retries from the receipts that were stored since the last call.

        A delivery with a retry is not settled, and its receipt follows the delivery in the stream. So no receipt with a
        retry precedes the oldest delivery that is not settled, and the first call starts there.
        """
        # a smaller number means that the stream or the consumer was deleted and created again, so read all again
        if settled_through < self._settled_through:
            self._retries.clear()
            self._read_through = 0
        self._settled_through = settled_through
        after = self._read_through or settled_through
        async for stored in self._bus.read("deliveries", self._subjects.receipts(), after=after):
            self._apply(stored)
            self._read_through = stored.sequence

    def _apply(self, stored: StoredMessage) -> None:
        state = parse_state(stored)
        if state is None or state.status != "retrying" or state.next_at is None:
            self._retries.pop(stored.subject, None)
        else:
            self._retries[stored.subject] = _Retry(state.endpoint, state.next_at)

    async def _oldest_waiting(self, deliveries: QueueDepth | None) -> datetime | None:
        """Return the time of the oldest delivery that no service has received."""
        if deliveries is None or not deliveries.pending:
            return None
        wanted = webhook_consumers(self._subjects)[-1]
        waiting = self._bus.read(wanted.stream, wanted.subject, after=deliveries.delivered_through)
        async with aclosing(as_async_generator(waiting)) as messages:
            first = await anext(messages, None)
        return None if first is None else first.at

    async def _earliest_retry(self, endpoints: Sequence[Endpoint]) -> datetime | None:
        """Return the earliest time of the retries for enabled endpoints."""
        known = {each.id: each.disabled_at is None for each in endpoints}
        for subject in [subject for subject, retry in self._retries.items() if retry.endpoint not in known]:
            del self._retries[subject]
        for _ in range(_MAX_CHECKS):
            wanted = ((retry.at, subject) for subject, retry in self._retries.items() if known[retry.endpoint])
            earliest, subject = min(wanted, default=(None, ""))
            if earliest is None:
                return None
            stored = await self._bus.last("deliveries", subject)
            if stored is None:  # the receipt expired, or was deleted with the workflow
                del self._retries[subject]
                continue
            self._apply(stored)
            if (retry := self._retries.get(subject)) is not None and retry.at == earliest:
                return earliest
        return None  # the next observation checks the other retries


async def _read_depths(bus: Bus, subjects: Subjects) -> Sequence[QueueDepth | None]:
    return [await bus.depth(each.name, each.stream) for each in webhook_consumers(subjects)]


def _service_of(depths: Sequence[QueueDepth | None]) -> ServiceState:
    deliveries = depths[-1]
    running = any(depth is not None and depth.pulls > 0 for depth in depths)
    return ServiceState(running, 0 if deliveries is None else deliveries.pending)
