"""A body that is larger than a message goes to the object store. Every read returns the body or an error."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest
from support.place import TIMEOUT_S, BrokerNamespace, take_all

from pointsman.bus.validation import header_size
from pointsman.errors import BodyLostError, ConflictError
from pointsman.ports.bus import Bus, StoredMessage
from pointsman_schemas.envelope import decode

LARGE = b"".join(b"%08d" % number for number in range(150_000))
"""1.2 MB, which is above the limit of a message. All chunks differ."""


async def artifacts(place: BrokerNamespace, bus: Bus, part: str = "M") -> list[StoredMessage]:
    """Count the messages in the object store: `M` for descriptions of objects, `C` for chunks."""
    return [stored async for stored in bus.read("artifacts", f"$O.{place.ns.upper()}_ARTIFACTS.{part}.>")]


@pytest.mark.parametrize("headers", [{}, {"ce-id": "1", "long": "h" * 1000, "wide": "ü" * 10}])
async def test_body_is_stored_apart_exactly_when_a_message_cannot_hold_it(
    place: BrokerNamespace, bus: Bus, headers: dict[str, str]
) -> None:
    room = bus.max_payload - header_size(headers)

    for number, size in enumerate((room - 1, room), 1):
        await bus.publish(place.handoff(number), b"x" * size, headers)
    inline = await artifacts(place, bus)
    await bus.publish(place.handoff(3), b"x" * (room + 1), headers)

    assert inline == []
    assert len(await artifacts(place, bus)) == 1
    held = [stored async for stored in bus.read("work", place.handoffs)]
    assert [len(stored.body) for stored in held] == [room - 1, room, room + 1]
    assert [stored.headers for stored in held] == [headers] * 3


async def test_compare_and_set_header_counts_towards_the_size_of_a_body(place: BrokerNamespace, bus: Bus) -> None:
    added = header_size({"Nats-Expected-Last-Subject-Sequence": "0"})

    await bus.publish(place.log, b"x" * (bus.max_payload - added), {}, expect=0)
    inline = await artifacts(place, bus)
    await bus.publish(f"{place.log}2", b"x" * (bus.max_payload - added + 1), {}, expect=0)

    assert inline == []
    assert len(await artifacts(place, bus)) == 1


async def test_a_large_body_is_read_in_every_way_as_it_was_published(place: BrokerNamespace, bus: Bus) -> None:
    body, headers = LARGE, {"ce-id": "1"}
    heard: asyncio.Queue[StoredMessage] = asyncio.Queue()
    async with await bus.listen(f"{place.ns}.>", heard.put):
        sequence = await bus.publish(place.handoff(1), body, headers)
        await bus.broadcast(f"{place.ns}.live.w.a", body, headers)
        told = [await asyncio.wait_for(heard.get(), TIMEOUT_S) for _ in range(2)]
    now = await bus.time()
    await bus.schedule(
        f"{place.ns}.schedule.team.w.handoff.retry", now + timedelta(seconds=0.2), place.handoff(2), body, headers
    )

    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=30.0)
    async with asyncio.timeout(TIMEOUT_S):
        taken = await take_all(consumer, 2)
    followed = await anext(aiter(bus.follow("work", [place.handoff(2)])))
    seen = [
        *told,
        *(delivery.message for delivery in taken),
        followed,
        await bus.last("work", place.handoff(1)),
        await bus.get("work", sequence),
        *[stored async for stored in bus.read("work", place.handoffs)],
    ]

    assert [stored and (stored.body == body, stored.headers) for stored in seen] == [(True, headers)] * len(seen)


async def test_the_same_large_body_is_stored_once(place: BrokerNamespace, bus: Bus) -> None:
    other = await place.connect()

    await bus.publish(place.handoff(1), LARGE, {})
    once = await artifacts(place, bus, "C")
    await other.publish(place.handoff(2), LARGE, {"ce-id": "2"})
    with pytest.raises(ConflictError):
        await bus.publish(place.handoff(1), LARGE, {}, expect=0)

    assert await artifacts(place, bus, "C") == once
    assert b"".join(chunk.body for chunk in once) == LARGE


async def test_concurrent_stores_of_one_large_body_do_not_disturb_each_other(place: BrokerNamespace, bus: Bus) -> None:
    others = [bus, *[await place.connect() for _ in range(3)]]

    await asyncio.gather(*(one.publish(place.handoff(n), LARGE, {}) for n, one in enumerate(others)))

    assert {stored.body async for stored in bus.read("work", place.handoffs)} == {LARGE}
    assert len(await artifacts(place, bus)) == 1


async def test_deleted_large_body_is_stored_again(place: BrokerNamespace, bus: Bus) -> None:
    await bus.publish(place.handoff(1), LARGE, {})
    (description,), chunks = await artifacts(place, bus), await artifacts(place, bus, "C")
    removed = {**json.loads(description.body), "deleted": True, "size": 0, "chunks": 0, "digest": ""}
    await bus.publish(description.subject, json.dumps(removed).encode(), {})
    await bus.trim("artifacts", chunks[0].subject, 2**53)

    await bus.publish(place.handoff(2), LARGE, {})

    stored = await bus.last("work", place.handoff(2))
    assert stored is not None
    assert stored.body == LARGE


@pytest.mark.parametrize("harm", ["gone", "its chunks gone", "cut", "longer", "unreadable", "older copy"])
async def test_missing_or_damaged_large_body_is_refused_by_decode(place: BrokerNamespace, bus: Bus, harm: str) -> None:
    await bus.publish(place.handoff(1), LARGE, {"ce-id": "1"})
    (description,), chunks = await artifacts(place, bus), await artifacts(place, bus, "C")

    match harm:
        case "gone":
            await bus.trim("artifacts", description.subject, 2**53)
        case "its chunks gone":
            await bus.trim("artifacts", chunks[0].subject, 2**53)
        case "cut":
            await bus.delete("artifacts", chunks[1].sequence)
        case "longer":
            await bus.publish(chunks[0].subject, b"more", {})
        case "unreadable":
            await bus.publish(description.subject, b"{}", {})
        case _:
            await bus.delete("artifacts", chunks[0].sequence)
            await bus.publish(chunks[0].subject, chunks[0].body, {})
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=30.0)
    (delivery,) = await asyncio.wait_for(consumer.take(1), TIMEOUT_S)

    assert delivery.message.body == b""
    with pytest.raises(BodyLostError, match=f"{place.ns.upper()}_ARTIFACTS"):
        decode(delivery.message.headers, delivery.message.body)


@pytest.mark.parametrize(
    "reference",
    ["https://example.org/body", "nats-object://OTHER_ARTIFACTS/x?size=1&sha256=" + "0" * 64, "\xff", "", "x" * 9_000],
)
async def test_a_reference_to_elsewhere_is_not_followed(place: BrokerNamespace, bus: Bus, reference: str) -> None:
    await bus.publish(place.log, b"", {"CE-DataRef": reference})

    stored = await bus.last("log", place.log)

    assert stored is not None
    assert (stored.body, stored.headers) == (b"", {"CE-DataRef": reference})
    with pytest.raises(BodyLostError):
        decode(stored.headers, stored.body)


async def test_event_with_a_body_may_hold_any_reference(place: BrokerNamespace, bus: Bus) -> None:
    headers = {"ce-dataref": "https://example.org/body"}

    await bus.publish(place.log, b"{}", headers)

    stored = await bus.last("log", place.log)
    assert stored is not None
    assert decode(stored.headers, stored.body) == (None, b"{}")


async def test_body_with_missing_chunks_is_stored_again_when_resent(place: BrokerNamespace, bus: Bus) -> None:
    await bus.publish(place.handoff(1), LARGE, {})
    chunks = await artifacts(place, bus, "C")
    await bus.trim("artifacts", chunks[0].subject, 2**53)

    await bus.publish(place.handoff(2), LARGE, {})

    held = [stored async for stored in bus.read("work", place.handoffs)]
    assert [stored.body == LARGE for stored in held] == [True, True]
