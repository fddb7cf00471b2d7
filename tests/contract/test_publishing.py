"""A message is stored once and unchanged at the expected sequence, or refused before it is sent."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from support.place import BrokerNamespace, until

from pointsman.bus.validation import header_size
from pointsman.errors import BusUnavailableError, ConflictError, ContractError, InvalidTokenError, OversizeEventError
from pointsman.ports.bus import Bus


async def test_a_published_message_comes_back_as_it_was_sent(place: BrokerNamespace, bus: Bus) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)

    sequence = await bus.publish(place.log, b"\x00body\xff", {"ce-id": "a%20b", "X-Mixed-Case": "Yes"}, expect=0)

    stored = await bus.get("log", sequence)
    assert stored is not None
    assert (stored.subject, stored.body, stored.sequence) == (place.log, b"\x00body\xff", sequence)
    assert stored.headers == {"ce-id": "a%20b", "X-Mixed-Case": "Yes"}
    assert before < stored.at < datetime.now(UTC) + timedelta(seconds=1)


async def test_a_subject_takes_one_first_message(place: BrokerNamespace, bus: Bus) -> None:
    await bus.publish(place.log, b"1", {}, expect=0)

    with pytest.raises(ConflictError):
        await bus.publish(place.log, b"2", {}, expect=0)

    assert [stored.body async for stored in bus.read("log", place.log)] == [b"1"]


async def test_of_many_writers_that_expect_the_same_end_one_wins(place: BrokerNamespace, bus: Bus) -> None:
    other = await place.connect()
    first = await bus.publish(place.log, b"1", {}, expect=0)

    answers = await asyncio.gather(
        *(writer.publish(place.log, b"2", {}, expect=first) for writer in [bus, other] * 8), return_exceptions=True
    )

    assert sum(isinstance(answer, int) for answer in answers) == 1
    assert sum(isinstance(answer, ConflictError) for answer in answers) == 15


async def test_the_expected_sequence_is_the_subjects_own(place: BrokerNamespace, bus: Bus) -> None:
    first = await bus.publish(place.log, b"1", {}, expect=0)
    await bus.publish(f"{place.ns}.log.team.other", b"x", {})

    second = await bus.publish(place.log, b"2", {}, expect=first)

    assert second == first + 2


async def test_a_message_id_of_a_request_may_come_again_soon(place: BrokerNamespace, bus: Bus) -> None:
    """Callers choose message ids, so a long duplicate window would let a caller suppress another caller's request."""
    first, at_once = await asyncio.gather(
        *(bus.publish(place.request(caller), b"1", {}, message_id="m1") for caller in ("ada", "bob"))
    )

    async def later() -> int:
        sequence = await bus.publish(place.request("bob"), b"2", {}, message_id="m1")
        return 0 if sequence == first else sequence

    assert at_once == first
    assert await until(later) == first + 1


async def test_a_message_id_is_stored_once_and_stays_a_header(place: BrokerNamespace, bus: Bus) -> None:
    first = await bus.publish(place.handoff(1), b"1", {}, message_id="m1")

    second = await bus.publish(place.handoff(1), b"2", {}, message_id="m1")

    assert second == first
    stored = await bus.last("work", place.handoff(1))
    assert stored is not None
    assert (stored.body, stored.headers) == (b"1", {"Nats-Msg-Id": "m1"})


async def test_only_the_newest_message_of_a_limit_is_kept_and_compared(place: BrokerNamespace, bus: Bus) -> None:
    subject = f"{place.ns}.limit.a"
    first = await bus.publish(subject, b"1", {}, expect=0)

    second = await bus.publish(subject, b"2", {}, expect=first)

    with pytest.raises(ConflictError):
        await bus.publish(subject, b"3", {}, expect=first)
    kept = [stored async for stored in bus.read("limits", subject)]
    assert [(stored.sequence, stored.body) for stored in kept] == [(second, b"2")]


async def test_many_publishes_may_be_in_flight(place: BrokerNamespace, bus: Bus) -> None:
    sequences = await asyncio.gather(*(bus.publish(place.handoff(n), b"x", {}) for n in range(200)))

    assert sorted(sequences) == list(range(1, 201))


async def test_a_subject_no_stream_takes_is_refused(place: BrokerNamespace, bus: Bus) -> None:
    with pytest.raises(BusUnavailableError):
        await bus.publish(f"{place.ns}.nowhere.x", b"", {})


async def test_a_request_that_no_team_would_read_is_refused(place: BrokerNamespace, bus: Bus) -> None:
    with pytest.raises(BusUnavailableError):
        await bus.publish(f"{place.ns}.request.shop.ada.x", b'{"input": "hello"}', {})
    assert await bus.publish(f"{place.ns}.request.shop.ada", b'{"input": "hello"}', {}) == 1


@pytest.mark.parametrize("token", [
    "x 0\r\n\r\nPUB evil 1\r\nz\r\n", "a b", "a\tb", "a\x00b", "*", ">", "a>", "a*", "", "a..b", "\x7f", "\ud800",
    "a\u2028b", "y" * 2000,
])  # fmt: skip
async def test_a_subject_that_could_do_harm_is_never_sent(place: BrokerNamespace, bus: Bus, token: str) -> None:
    subject = f"{place.ns}.log.team.{token}"

    with pytest.raises(InvalidTokenError):
        await bus.publish(subject, b"", {})
    with pytest.raises(InvalidTokenError):
        await bus.broadcast(subject, b"", {})
    with pytest.raises(InvalidTokenError):
        await bus.schedule(subject, datetime.now(UTC), place.handoff(), b"", {})
    with pytest.raises(InvalidTokenError):
        await bus.schedule(f"{place.ns}.schedule.team.w.timer.a", datetime.now(UTC), subject, b"", {})

    assert bus.connected
    assert await bus.last("log", f"{place.ns}.log.>") is None


@pytest.mark.parametrize("headers", [
    {"a": "b\r\nc: d"}, {"a": "b\nc"}, {"a": "b\x00"}, {"a\r\nb": "c"}, {"a: b": "c"}, {"": "c"}, {"a": "\udfff"},
    {"Nats-Rollup": "all"}, {"nats-rollup": "all"}, {"Nats-Expected-Last-Sequence": "1"},
])  # fmt: skip
async def test_a_header_that_could_do_harm_is_never_sent(
    place: BrokerNamespace, bus: Bus, headers: dict[str, str]
) -> None:
    with pytest.raises(ContractError):
        await bus.publish(place.log, b"", headers)
    with pytest.raises(ContractError):
        await bus.broadcast(f"{place.ns}.live.w.a", b"", headers)

    assert bus.connected
    assert await bus.last("log", place.log) is None


@pytest.mark.parametrize("headers", [{}, {"ce-id": "1", "long": "h" * 1000, "wide": "ü" * 10}])
async def test_the_size_limit_counts_headers_and_is_exact(
    place: BrokerNamespace, bus: Bus, headers: dict[str, str]
) -> None:
    room = bus.max_body - header_size(headers)

    await bus.publish(place.handoff(1), b"x" * (room - 1), headers)
    await bus.publish(place.handoff(2), b"x" * room, headers)
    with pytest.raises(OversizeEventError):
        await bus.publish(place.handoff(3), b"x" * (room + 1), headers)

    assert bus.connected
    assert await bus.last("work", place.handoff(3)) is None


async def test_headers_larger_than_the_broker_keeps_are_refused(place: BrokerNamespace, bus: Bus) -> None:
    with pytest.raises(OversizeEventError):
        await bus.publish(place.log, b"", {"a": "h" * 66_000})
