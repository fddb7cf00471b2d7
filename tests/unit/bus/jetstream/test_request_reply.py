"""Each answer reaches its pending request, and no request is pending for ever."""

from __future__ import annotations

import asyncio

import pytest

from pointsman.bus.jetstream.protocol import WireMessage
from pointsman.bus.jetstream.request_reply import ConnectionLostError, ReplyInbox

LONG = 60.0


async def test_each_answer_reaches_its_waiter_in_any_order() -> None:
    replies = ReplyInbox("_INBOX.x", LONG)
    (one, first), (other, second) = replies.register(), replies.register()

    replies.on_message(WireMessage(other, "", b"2"))
    replies.on_message(WireMessage(one, "", b"1"))

    assert [(await first).data, (await second).data] == [b"1", b"2"]


async def test_missing_answer_times_out_without_its_neighbours() -> None:
    replies = ReplyInbox("_INBOX.x", 0.05)
    reply, late = replies.register()
    with pytest.raises(TimeoutError):
        await late
    _, next_one = replies.register()

    replies.on_message(WireMessage(reply, "", b"too late"))

    assert not next_one.done()
    next_one.cancel()


async def test_a_lost_connection_ends_all_that_wait() -> None:
    replies = ReplyInbox("_INBOX.x", LONG)
    waiting = [replies.register()[1] for _ in range(3)]

    replies.fail_all()

    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(error) for error in found] == [ConnectionLostError] * 3


def test_status_line_is_distinguished_from_headers() -> None:
    status = WireMessage("s", "", b"", b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 3\r\n\r\n")
    event = WireMessage("s", "r", b"{}", b"NATS/1.0\r\nce-id: 1\r\n\r\n")

    assert status.status == "408 Request Timeout"
    assert status.headers == {"Nats-Pending-Messages": "3"}
    assert event.status == ""
    assert event.headers == {"ce-id": "1"}


async def test_answer_without_a_waiter_leaves_no_unretrieved_error() -> None:
    overlooked: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: overlooked.append(told["message"]))
    lost, late = ReplyInbox("_INBOX.x", LONG), ReplyInbox("_INBOX.y", 0.0)
    lost.register()
    late.register()
    _, last = late.register()

    lost.fail_all()
    await asyncio.wait([last])
    del last  # asyncio reports an unread exception when the future is deleted

    assert overlooked == []
