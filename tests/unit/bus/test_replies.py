"""Requests under way: each answer finds who waits for it, and nobody waits for ever."""

from __future__ import annotations

import asyncio

import pytest

from pointsman.bus.answers import Answers
from pointsman.bus.wire import Arrival

LONG = 60.0


async def test_each_answer_finds_who_waits_for_it_whatever_their_order() -> None:
    answers = Answers("_INBOX.x", LONG)
    (one, first), (other, second) = answers.expect(), answers.expect()

    answers.arrived(Arrival(other, "", b"2"))
    answers.arrived(Arrival(one, "", b"1"))

    assert [(await first).data, (await second).data] == [b"1", b"2"]
    answers.close()


async def test_an_answer_that_does_not_come_is_a_timeout_and_its_neighbours_wait_on() -> None:
    answers = Answers("_INBOX.x", 0.05)
    reply, late = answers.expect()
    with pytest.raises(TimeoutError):
        await late
    _, next_one = answers.expect()

    answers.arrived(Arrival(reply, "", b"too late"))

    assert not next_one.done()
    answers.close()
    next_one.cancel()


async def test_a_lost_connection_ends_all_that_wait() -> None:
    answers = Answers("_INBOX.x", LONG)
    waiting = [answers.expect()[1] for _ in range(3)]

    answers.abandon(ConnectionError)

    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(error) for error in found] == [ConnectionError] * 3
    answers.close()


def test_a_status_line_is_told_from_headers() -> None:
    status = Arrival("s", "", b"", b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 3\r\n\r\n")
    event = Arrival("s", "r", b"{}", b"NATS/1.0\r\nce-id: 1\r\n\r\n")

    assert status.status == "408 Request Timeout"
    assert status.headers == {"Nats-Pending-Messages": "3"}
    assert event.status == ""
    assert event.headers == {"ce-id": "1"}
