"""A delivery of an unsynced stream is only valid until the broker restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from structlog.testing import capture_logs
from support.waiting import until

from pointsman.bus.jetstream.forwarding import Forwarder
from pointsman.bus.jetstream.protocol import ForwardingConnection, WireMessage
from pointsman.errors import BusUnavailableError
from pointsman.ports.bus import Delivery, StoredMessage

FORGETFUL, KEPT = (f"$JS.ACK.{stream}.agent-a.1.95.7.1700000000000000000.0" for stream in ("OWN_HANDOFFS", "OWN_WORK"))


class Inbox:
    refused = None

    async def unsubscribe(self) -> None: ...
    async def drain(self) -> None: ...


class Broker:
    """A connection to a scripted server."""

    connected = True

    def __init__(self) -> None:
        self.restarts = 0
        self.settled: list[tuple[str, bytes]] = []
        self.heard: dict[str, Callable[[WireMessage], None]] = {}

    def new_inbox(self) -> str:
        return "_INBOX.x"

    async def subscribe(self, subject: str, heard: Callable[[WireMessage], None]) -> Inbox:
        self.heard[subject] = heard
        return Inbox()

    async def flush(self) -> None: ...

    async def send(self, subject: str, body: bytes = b"", **_: Any) -> None:
        self.settled.append((subject, body))


def handing(broker: Broker, whole: BaseException | None = None) -> Forwarder:
    async def fetched(stored: StoredMessage) -> StoredMessage:
        if whole is not None:
            raise whole
        return stored

    return Forwarder(cast(ForwardingConnection, broker), "own", 15, fetched)


@pytest.mark.parametrize(("reply", "settles"), [(FORGETFUL, False), (KEPT, True)], ids=["forgets", "keeps"])
async def test_delivery_from_before_a_broker_start_is_settled_only_if_still_valid(reply: str, settles: bool) -> None:
    broker, received = Broker(), list[Delivery]()

    async with handing(broker).receive("two", received.append):
        broker.heard["own.handed.two.>"](
            WireMessage("own.handed.two.handoff.a.crew.w.t.1", f"_INBOX.y.two.{reply}", b"1")
        )
        await received[0].nak()
        broker.restarts += 1
        await received[0].ack()

    assert received[0].message.subject == "own.handoff.a.crew.w.t.1"
    assert broker.settled == [(reply, b"-NAK"), *([(reply, b"+ACK")] if settles else [])]


@pytest.mark.parametrize("wrong", [BusUnavailableError("away"), ValueError("not that")], ids=["away", "something else"])
async def test_delivery_with_a_missing_body_is_handed_back(wrong: Exception) -> None:
    broker, received = Broker(), list[Delivery]()

    with capture_logs() as logs:
        async with handing(broker, wrong).receive("two", received.append):
            broker.heard["own.handed.two.>"](
                WireMessage("own.handed.two.handoff.a.crew.w.t.1", f"_INBOX.y.two.{KEPT}", b"")
            )

    assert received == []
    assert broker.settled == [(KEPT, b'-NAK {"delay": 500000000}')]
    assert [line["event"] for line in logs] == ["body_fetch_failed"]


async def test_delivery_is_handed_back_if_loading_its_body_is_cancelled() -> None:
    broker, received = Broker(), list[Delivery]()

    async with handing(broker, asyncio.CancelledError()).receive("two", received.append):
        broker.heard["own.handed.two.>"](
            WireMessage("own.handed.two.handoff.a.crew.w.t.1", f"_INBOX.y.two.{KEPT}", b"")
        )
        await until(lambda: bool(broker.settled))

    assert broker.settled == [(KEPT, b"-NAK")]


@pytest.mark.parametrize(("reply", "settles"), [(FORGETFUL, False), (KEPT, True)], ids=["forgets", "keeps"])
async def test_unreceived_delivery_is_handed_back_unless_the_broker_restarted(reply: str, settles: bool) -> None:
    broker = Broker()

    async with handing(broker).receive("one", lambda _: None):
        broker.heard["_INBOX.x.>"](WireMessage(f"_INBOX.x.two.{reply}", "", b"", b"NATS/1.0 503\r\n\r\n"))
        broker.restarts += 1

    assert broker.settled == ([(reply, b"-NAK")] if settles else [])
