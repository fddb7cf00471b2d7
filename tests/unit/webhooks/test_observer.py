"""An observer finds the oldest due attempt and reads each receipt once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

from pointsman.bus.memory.bus import MemoryBus
from pointsman.engine.process.consumers import webhook_consumers
from pointsman.ports.bus import StoredMessage, StreamKind
from pointsman.webhooks.deliveries import DeliveryState, DeliveryStatus
from pointsman.webhooks.endpoint_store import EndpointStore
from pointsman.webhooks.observer import Observer
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import Subjects

NOW = datetime(2026, 1, 31, tzinfo=UTC)
SUBJECTS = Subjects()


class CountingBus(MemoryBus):
    """A bus that counts reads of receipts."""

    receipts_read = 0

    def read(self, stream: StreamKind, subject: str, *, after: int = 0) -> AsyncIterator[StoredMessage]:
        messages = super().read(stream, subject, after=after)
        return self._counted(messages) if subject == SUBJECTS.receipts() else messages

    async def _counted(self, messages: AsyncIterator[StoredMessage]) -> AsyncIterator[StoredMessage]:
        async for each in messages:
            self.receipts_read += 1
            yield each

    async def store(self, endpoint: str, event: str, status: DeliveryStatus, due: datetime | None = None) -> None:
        state = DeliveryState(
            endpoint=endpoint, event=event, type="workflow.ended", workflow_id="wf_1", status=status, attempts=1,
            at=NOW, next_at=due, order=1,
        )  # fmt: skip
        await self.publish(SUBJECTS.receipt(endpoint, "wf_1", event), dump(state), {})


async def test_each_receipt_is_read_once_and_only_those_after_the_settled_deliveries() -> None:
    bus = CountingBus()
    store = await EndpointStore.open(bus, SUBJECTS)
    endpoint = (await store.create("https://a.b/")).endpoint.id
    wanted = webhook_consumers(SUBJECTS)[-1]
    consumer = await bus.consumer(wanted.name, wanted.stream, wanted.subject, ack_wait=300.0)
    for number in range(20):
        await bus.store(endpoint, f"old_{number}", "delivered")
    for event in ("evt_1", "evt_2"):
        await bus.publish(SUBJECTS.delivery(endpoint, "wf_1", event), b"{}", {})
    first, _ = await consumer.take(2)
    await first.ack()
    await bus.store(endpoint, "evt_1", "delivered")
    await bus.store(endpoint, "evt_2", "retrying", NOW)
    observer = Observer(bus, SUBJECTS, store)

    due = (await observer.observe()).oldest_due
    read_at_first = bus.receipts_read
    again = (await observer.observe()).oldest_due
    await bus.store(endpoint, "evt_2", "retrying", NOW + timedelta(hours=1))
    later = (await observer.observe()).oldest_due
    await bus.store(endpoint, "evt_2", "delivered")
    none = (await observer.observe()).oldest_due

    assert (due, again, later, none) == (NOW, NOW, NOW + timedelta(hours=1), None)
    assert (read_at_first, bus.receipts_read) == (2, 4)


async def test_retries_that_will_not_be_made_are_not_due() -> None:
    bus = CountingBus()
    store = await EndpointStore.open(bus, SUBJECTS)
    enabled, disabled, deleted = [(await store.create("https://a.b/")).endpoint.id for _ in range(3)]
    observer = Observer(bus, SUBJECTS, store)
    for endpoint, hours in ((enabled, 3), (disabled, 2), (deleted, 1)):
        await bus.store(endpoint, "evt_1", "retrying", NOW + timedelta(hours=hours))
    await bus.store(enabled, "evt_0", "retrying", NOW)
    at_first = (await observer.observe()).oldest_due

    forgotten = await bus.last("deliveries", SUBJECTS.receipt(enabled, "wf_1", "evt_0"))
    assert forgotten is not None
    await bus.delete("deliveries", forgotten.sequence)
    await store.disable(disabled, "disabled by ops")
    await store.delete(deleted)
    after_changes = (await observer.observe()).oldest_due
    await store.enable(disabled)
    after_enabling = (await observer.observe()).oldest_due

    assert at_first == NOW
    assert after_changes == NOW + timedelta(hours=3)
    assert after_enabling == NOW + timedelta(hours=2)
