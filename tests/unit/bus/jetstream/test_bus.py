"""Pending messages of a lost connection are sent over the next connection if they still have the same meaning."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pointsman.bus.jetstream.bus import JetStreamBus
from pointsman.errors import ContractError
from pointsman.settings import Settings

BLOCK = b"NATS/1.0\r\nce-id: 1\r\n\r\n"
DELIVERY = "a.1.95.7.1700000000000000000.0"


@pytest.mark.parametrize("domain", ["", "hub.ACCOUNT."], ids=["plain", "of a domain"])
async def test_settling_an_unsynced_delivery_does_not_wait_for_a_reconnect(domain: str) -> None:
    bus = JetStreamBus(Settings(namespace="own"), name="test")
    bus._connection.client._max_pending_size = 1 << 20  # like after the first connection
    forgetful, kept = (f"$JS.ACK.{domain}{name}.{DELIVERY}" for name in ("OWN_HANDOFFS", "OWN_WORK"))
    await bus.send(forgetful, b"+ACK")
    await bus.send("own.handed.two.handoff.a.w.t.1", b"1", reply=f"_INBOX.x.two.{forgetful}", headers=BLOCK)
    await bus.send(kept, b"+ACK")
    await bus.send("own.handed.two.inbox.a.w", b"2", reply=f"_INBOX.x.two.{kept}")
    await bus.send("own.log.a.w", forgetful.encode(), reply="_INBOX.x.1")

    await bus._connection._on_disconnected()

    client = bus._connection.client
    waiting = client._pending
    assert [command.split(b" ")[1].decode() for command in waiting] == [kept, "own.handed.two.inbox.a.w", "own.log.a.w"]
    assert client.pending_data_size == sum(map(len, waiting))


@pytest.mark.parametrize(("subject", "headers"), [("own log", {}), ("own.log.a.w", {"Nats-Rollup": "all"})])
async def test_abandoned_request_is_refused_to_its_waiter(subject: str, headers: dict[str, str]) -> None:
    bus = JetStreamBus(Settings(namespace="own"), name="test")

    publishing = bus.publish(subject, b"", headers)
    scheduling = bus.schedule("own.schedule.w.t", datetime(2026, 1, 1, tzinfo=UTC), subject, b"", headers)

    for each in (publishing, scheduling):
        with pytest.raises(ContractError):
            await each
