"""A scheduled message is delivered once, unchanged and on time, unless another message replaces its schedule."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from support.place import BrokerNamespace, take_all, take_one, until

from pointsman.errors import ConflictError, PeerError
from pointsman.ports.bus import Bus


async def test_scheduled_message_arrives_unchanged_when_it_is_due(place: BrokerNamespace, bus: Bus) -> None:
    at = datetime.now(UTC) + timedelta(seconds=0.5)
    name, target = f"{place.ns}.schedule.team.w.timer.retry", f"{place.ns}.timer.team.w.retry"

    assert await bus.schedule(name, at, target, b"body", {"ce-id": "a"})
    assert await bus.last("work", target) is None or await bus.time() >= at
    await until(lambda: bus.last("work", target))

    stored = await bus.last("work", target)
    assert stored is not None
    assert (stored.body, stored.headers) == (b"body", {"ce-id": "a"})
    assert stored.at >= at - timedelta(milliseconds=5)
    await until(lambda: _is_empty(bus, name))


async def test_a_schedule_in_the_past_comes_at_once(place: BrokerNamespace, bus: Bus) -> None:
    target = f"{place.ns}.timer.team.w.late"

    await bus.schedule(f"{place.ns}.schedule.team.w.timer.late", datetime.now(UTC) - timedelta(days=2), target, b"", {})

    await until(lambda: bus.last("work", target))


async def test_a_repeated_schedule_comes_once_and_not_again_after_it_came(place: BrokerNamespace, bus: Bus) -> None:
    name, target = f"{place.ns}.schedule.team.w.timer.once", f"{place.ns}.timer.team.w.once"
    at = datetime.now(UTC) + timedelta(seconds=0.4)

    first, second = [await bus.schedule(name, at, target, b"same", {}) for _ in range(2)]
    repeated_in_time = await bus.time() < at
    await until(lambda: bus.last("work", target))
    last = await bus.schedule(name, at, target, b"same", {})

    with pytest.raises(TimeoutError):
        await until(lambda: _second(bus, target), seconds=0.5)
    assert (first, last) == (True, False)
    assert second or not repeated_in_time


async def test_a_schedule_that_is_repeated_while_it_fires_comes_once(place: BrokerNamespace, bus: Bus) -> None:
    base = datetime.now(UTC) + timedelta(seconds=0.1)
    targets = [place.handoff(number) for number in range(10)]

    async def repeat(number: int) -> None:
        due = base + timedelta(seconds=0.02 * number)
        while await bus.schedule(f"{place.ns}.schedule.team.w.handoff.{number}", due, targets[number], b"", {}):
            await asyncio.sleep(0.001)

    await asyncio.gather(*(repeat(number) for number in range(10) for _ in range(2)))
    with pytest.raises(TimeoutError):
        await until(lambda: _second(bus, f"{place.ns}.handoff.>", of=10), seconds=0.3)


async def _second(bus: Bus, target: str, *, of: int = 1) -> bool:
    return len([stored async for stored in bus.read("work", target)]) > of


async def test_message_in_place_of_a_schedule_ends_the_schedule(place: BrokerNamespace, bus: Bus) -> None:
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=30)
    await bus.publish(place.handoff(1), b"1", {})
    for number in range(100, 110):  # on a busy machine, a message can be due before its schedule is replaced
        name, target = f"{place.ns}.schedule.team.w.timer.{number}", f"{place.ns}.timer.team.w.{number}"
        at = datetime.now(UTC) + timedelta(seconds=0.2)
        await bus.schedule(name, at, target, b"2", {})
        await bus.replace(name, b"", {}, ttl=1)
        if await bus.time() < at:
            break

    await bus.replace(f"{place.ns}.schedule.team.w.handoff.none", b"", {}, ttl=1)
    await bus.replace(place.handoff(1), b"cancelled", {})
    await bus.publish(place.handoff(3), b"3", {})

    assert [each.message.body for each in await take_all(consumer, 2)] == [b"cancelled", b"3"]
    with pytest.raises(TimeoutError):
        await until(lambda: bus.last("work", target), seconds=0.6)
    await until(lambda: _is_empty(bus, f"{place.ns}.schedule.>"))


async def _is_empty(bus: Bus, subject: str) -> bool:
    return not await bus.subjects("work", subject)


async def test_replacement_is_stored_at_the_expected_sequence_once(place: BrokerNamespace, bus: Bus) -> None:
    first = await bus.publish(place.handoff(1), b"1", {})

    with pytest.raises(ConflictError):
        await bus.replace(place.handoff(1), b"2", {}, expect=first + 1)
    second = await bus.replace(place.handoff(1), b"2", {}, expect=first, message_id="m")
    again = await bus.replace(place.handoff(1), b"3", {}, message_id="m")

    assert second == again
    assert [(each.sequence, each.body) async for each in bus.read("work", ">")] == [(second, b"2")]


@pytest.mark.parametrize(
    "subject",
    [
        "request.team.ada",
        "control.team.w.cancel.ada.c1",
        "result.team.writer.w.t.1.token",
        "step.writer.team.w.t.1.answer-1",
        "event.team.w.writer.t",
        "log.team.w",
        "outcome.team.w",
        "dead.team.w.dl_1",
        "limit.a",
    ],
)
async def test_streams_of_other_writers_refuse_schedules_and_replacements(
    place: BrokerNamespace, bus: Bus, subject: str
) -> None:
    subject = f"{place.ns}.{subject}"
    await bus.publish(subject, b"1", {})

    with pytest.raises(PeerError, match="refuses"):
        await bus.replace(subject, b"2", {})
    with pytest.raises(PeerError, match="refuses"):
        await bus.schedule(subject, datetime.now(UTC), subject.rpartition(".")[0] + ".other", b"2", {})


async def test_message_names_the_schedule_that_produced_it(place: BrokerNamespace, bus: Bus) -> None:
    name, target = f"{place.ns}.schedule.team.w.timer.wake", f"{place.ns}.timer.team.w.wake"
    consumer = await bus.consumer("timer-team", "work", f"{place.ns}.timer.team.>", ack_wait=30)

    await bus.publish(f"{place.ns}.timer.team.w.forged", b"", {"ce-id": "a"})
    await bus.schedule(name, datetime.now(UTC), target, b"", {"ce-id": "b"})

    taken = [each.message for each in await take_all(consumer, 2)]
    read = [each async for each in bus.read("work", f"{place.ns}.timer.>")]
    last = await bus.last("work", target)
    assert [each.scheduled_by for each in (*taken, *read)] == ["", name, "", name]
    assert last is not None
    assert (last.scheduled_by, last.headers) == (name, {"ce-id": "b"})


async def test_a_scheduled_message_reaches_consumers(place: BrokerNamespace, bus: Bus) -> None:
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=30)

    await bus.schedule(
        f"{place.ns}.schedule.team.w.handoff.h", datetime.now(UTC) + timedelta(seconds=0.2), place.handoff(2), b"2", {}
    )

    [delivery] = await take_one(consumer)
    assert (delivery.message.body, delivery.delivered, delivery.message.headers) == (b"2", 1, {})
