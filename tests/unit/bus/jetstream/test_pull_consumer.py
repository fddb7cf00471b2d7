"""A delivery from before a broker restart is not settled if its stream may have lost it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pointsman.bus.jetstream.protocol import ForwardingConnection, WireMessage
from pointsman.bus.jetstream.pull_consumer import PullDelivery

REPLY = "$JS.ACK.OWN_HANDOFFS.agent-a.1.95.7.1700000000000000000.0"


class Broker:
    def __init__(self, restarts: int) -> None:
        self.restarts = restarts
        self.connected = True
        self.heard: list[bytes] = []
        self.handed: list[str] = []

    async def send(self, subject: str, body: bytes = b"", **_: Any) -> None:
        assert subject == REPLY
        self.heard.append(body)

    async def forward(self, name: str, _: WireMessage) -> bool:
        self.handed.append(name)
        return True


@pytest.mark.parametrize(
    ("since", "settles"),
    [(3, True), (2, False), (None, True)],
    ids=["since the last start", "before it", "of a stream that keeps all"],
)
async def test_a_sequence_that_may_have_been_reused_is_not_settled(since: int | None, settles: bool) -> None:
    broker = Broker(restarts=3)
    delivery = PullDelivery(
        cast(ForwardingConnection, broker), WireMessage("own.handoff.a.crew.w.t.1", REPLY, b""), since
    )

    await delivery.ack()
    await delivery.nak()
    await delivery.nak(1.0)
    await delivery.term("why")
    await delivery.in_progress()

    words = [b"+ACK", b"-NAK", b'-NAK {"delay": 1000000000}', b"+TERM why", b"+WPI"]
    assert broker.heard == (words if settles else [])


@pytest.mark.parametrize(
    ("since", "handed"),
    [(3, True), (2, False), (None, True)],
    ids=["since the last start", "before it", "of a stream that keeps all"],
)
async def test_sequence_that_may_be_reused_is_not_forwarded(since: int | None, handed: bool) -> None:
    broker = Broker(restarts=3)
    delivery = PullDelivery(
        cast(ForwardingConnection, broker), WireMessage("own.handoff.a.crew.w.t.1", REPLY, b""), since
    )

    assert await delivery.forward("two") is handed
    assert broker.handed == (["two"] if handed else [])


@pytest.mark.parametrize(("since", "words"), [(3, []), (None, [b"+ACK"])], ids=["forgets", "keeps"])
async def test_unsynced_delivery_is_not_settled_while_the_broker_is_unknown(
    since: int | None, words: list[bytes]
) -> None:
    broker = Broker(restarts=3)
    broker.connected = False

    await PullDelivery(
        cast(ForwardingConnection, broker), WireMessage("own.handoff.a.crew.w.t.1", REPLY, b""), since
    ).ack()

    assert broker.heard == words
