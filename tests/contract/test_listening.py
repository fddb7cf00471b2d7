"""A subscriber gets messages only while it is subscribed. A service answers only while it is served."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs
from support.place import BrokerNamespace, until

from pointsman.errors import BusUnavailableError
from pointsman.ports.bus import Bus, Service, StoredMessage


async def test_broadcast_reaches_subscribers_and_is_not_stored(place: BrokerNamespace, bus: Bus) -> None:
    other = await place.connect()
    heard: list[StoredMessage] = []

    async def hear(stored: StoredMessage) -> None:
        heard.append(stored)

    async def has_come() -> bool:
        return bool(heard)

    async with await other.listen(f"{place.ns}.live.*.cancelled", hear):
        await bus.broadcast(f"{place.ns}.live.w.other", b"no", {})
        await bus.broadcast(f"{place.ns}.live.w.cancelled", b"yes", {"ce-id": "a"})
        await until(has_come)
    await bus.broadcast(f"{place.ns}.live.w.cancelled", b"late", {})

    async with await other.listen(f"{place.ns}.live.w.marker", hear):  # earlier messages have arrived now
        await bus.broadcast(f"{place.ns}.live.w.marker", b"marker", {})
        await until(lambda: len(heard) > 1)
    assert [(each.body, each.headers, each.sequence) for each in heard] == [
        (b"yes", {"ce-id": "a"}, 0), (b"marker", {}, 0)]  # fmt: skip


async def test_subscriber_receives_messages_as_they_are_published_to_a_stream(place: BrokerNamespace, bus: Bus) -> None:
    heard: asyncio.Queue[StoredMessage] = asyncio.Queue()

    async with await bus.listen(place.log, heard.put):
        await bus.publish(place.log, b"{}", {"ce-id": "1"}, expect=0)
        async with asyncio.timeout(5):
            message = await heard.get()

    assert (message.subject, message.body, message.sequence) == (place.log, b"{}", 0)
    assert message.headers["ce-id"] == "1"


async def test_a_listener_that_fails_continues_listening(place: BrokerNamespace, bus: Bus) -> None:
    heard: list[bytes] = []

    async def fail_first(stored: StoredMessage) -> None:
        heard.append(stored.body)
        if len(heard) == 1:
            raise ValueError("not this one")

    async def both() -> bool:
        return len(heard) == 2

    async with await bus.listen(f"{place.ns}.live.>", fail_first):
        await bus.broadcast(f"{place.ns}.live.w.a", b"1", {})
        await bus.broadcast(f"{place.ns}.live.w.a", b"2", {})
        await until(both)

    assert heard == [b"1", b"2"]


@pytest.mark.parametrize("error", [ValueError("my own fault"), BusUnavailableError("my own fault")])
async def test_subscriber_error_is_logged(place: BrokerNamespace, bus: Bus, error: Exception) -> None:
    async def fail(stored: StoredMessage) -> None:
        raise error

    with capture_logs() as lines:
        async with await bus.listen(f"{place.ns}.live.>", fail):
            await bus.broadcast(f"{place.ns}.live.w.a", b"1", {})
            await until(lambda: len(lines) > 0)

    assert [line["log_level"] for line in lines] == ["warning"]
    assert "my own fault" in str(lines)


async def test_a_service_can_be_served_and_left(place: BrokerNamespace, bus: Bus) -> None:
    service = Service(name="writer", id="i1", version="1.0.0", description="writes", subject=place.handoffs)

    async with await bus.serve(service):
        assert bus.connected
