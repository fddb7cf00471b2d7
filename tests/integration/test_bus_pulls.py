"""A pull delivers at once after an idle time, is repeated if the broker is silent, and returns untaken messages."""

from __future__ import annotations

import asyncio
import json

import pytest
from support.broker import TIMEOUT_S
from support.waiting import until

from pointsman.bus.jetstream.bus import JetStreamBus, connect
from pointsman.errors import BusUnavailableError
from pointsman.ports.bus import Delivery
from pointsman.settings import Settings
from pointsman_schemas.claim_check import Claim


async def test_deleted_consumer_is_created_again(settings: Settings, bus: JetStreamBus, namespace: str) -> None:
    consumer = await bus.consumer("writer", "work", f"{namespace}.handoff.writer.>", ack_wait=30)
    taking = asyncio.create_task(consumer.take(1))
    await until(lambda: _waits(bus, namespace))

    await bus.api(f"CONSUMER.DELETE.{namespace.upper()}_WORK.writer")
    await bus.publish(f"{namespace}.handoff.writer.crew.w.t.1", b"1", {})

    assert len(await asyncio.wait_for(taking, TIMEOUT_S)) == 1


async def test_an_expired_pull_is_asked_for_again(
    bus: JetStreamBus, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pointsman.bus.jetstream.pull_request._REQUEST_EXPIRY_S", 0.5)
    monkeypatch.setattr("pointsman.bus.jetstream.pull_request._IDLE_HEARTBEAT_S", 0.2)
    send, pulls = bus.send, list[str]()

    async def count_pulls(subject: str, body: bytes = b"", **others: object) -> None:
        if subject.startswith("$JS.API.CONSUMER.MSG.NEXT"):
            pulls.append(subject)
        await send(subject, body, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(bus, "send", count_pulls)
    consumer = await bus.consumer("writer", "work", f"{namespace}.handoff.writer.>", ack_wait=30)
    taking = asyncio.create_task(consumer.take(3))

    await until(lambda: len(pulls) >= 3)  # two requests have expired
    assert not taking.done()
    await asyncio.gather(*(bus.publish(f"{namespace}.handoff.writer.crew.w.t.{n}", b"", {}) for n in range(5)))

    taken = len(await asyncio.wait_for(taking, TIMEOUT_S))
    while taken < 5:
        taken += len(await asyncio.wait_for(consumer.take(5 - taken), TIMEOUT_S))
    assert taken == 5


async def _waits(bus: JetStreamBus, namespace: str) -> bool:
    info = await bus.api(f"CONSUMER.INFO.{namespace.upper()}_WORK.writer")
    return bool(info["num_waiting"])


async def test_a_silent_pull_is_given_up_for_a_new_one(
    bus: JetStreamBus, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pointsman.bus.jetstream.pull_request._IDLE_HEARTBEAT_S", 0.2)
    consumer = await bus.consumer("writer", "work", f"{namespace}.handoff.writer.>", ack_wait=30)
    send, deaf = bus.send, [True]

    async def swallow_pulls(subject: str, body: bytes = b"", **others: object) -> None:
        if deaf and subject.startswith("$JS.API.CONSUMER.MSG.NEXT"):
            deaf.clear()
            return
        await send(subject, body, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(bus, "send", swallow_pulls)
    await bus.publish(f"{namespace}.handoff.writer.crew.w.t.1", b"", {})

    assert len(await asyncio.wait_for(consumer.take(1), TIMEOUT_S)) == 1
    assert not deaf


async def test_untaken_messages_are_handed_back(
    settings: Settings, bus: JetStreamBus, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pointsman.bus.jetstream.pull_consumer._HOLD_S", 0.2)
    other = await connect(settings, name="other", wait=TIMEOUT_S)
    idle = await bus.consumer("writer", "work", f"{namespace}.handoff.writer.>", ack_wait=60)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(idle.take(4), 0.2)

    await bus.publish(f"{namespace}.handoff.writer.crew.w.t.1", b"", {})
    busy = await other.consumer("writer", "work", f"{namespace}.handoff.writer.>", ack_wait=60)
    [delivery] = await asyncio.wait_for(busy.take(1), TIMEOUT_S)
    await delivery.ack()

    await bus.publish(f"{namespace}.handoff.writer.crew.w.t.2", b"", {})
    taken = {asyncio.create_task(idle.take(1)), asyncio.create_task(busy.take(1))}
    done, rest = await asyncio.wait(taken, timeout=TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == 1  # the idle consumer starts again with the returned message
    for task in rest:
        task.cancel()
    await other.close()


async def test_a_terminated_message_leaves_its_reason_with_the_dead(bus: JetStreamBus, namespace: str) -> None:
    consumer = await bus.consumer("writer", "work", f"{namespace}.handoff.writer.>", ack_wait=30)
    await bus.publish(f"{namespace}.handoff.writer.crew.w.t.1", b"", {})
    [delivery] = await consumer.take(1)
    advisory = f"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.{namespace.upper()}_WORK.writer"

    await delivery.term("cannot be read")

    await until(lambda: bus.last("dead", advisory))
    stored = await bus.last("dead", advisory)
    assert stored is not None
    assert json.loads(stored.body)["reason"] == "cannot be read"


async def test_unfetchable_body_is_redelivered_and_others_do_not_wait(
    bus: JetStreamBus, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, fetch, away = b"x" * (bus.max_payload + 1), bus._claim_check._load_body, [True]

    async def fetch_later(claim: Claim) -> bytes:
        if away:
            away.clear()
            raise BusUnavailableError("not now")
        return await fetch(claim)

    monkeypatch.setattr(bus._claim_check, "_load_body", fetch_later)
    consumer = await bus.consumer("writer", "work", f"{namespace}.handoff.writer.>", ack_wait=30)
    await bus.publish(f"{namespace}.handoff.writer.crew.w.t.1", large, {})
    await bus.publish(f"{namespace}.handoff.writer.crew.w.t.2", b"small", {})

    taken: list[Delivery] = []
    while len(taken) < 2:
        taken += await asyncio.wait_for(consumer.take(2 - len(taken)), TIMEOUT_S)

    assert [(delivery.message.body == large, delivery.delivered) for delivery in taken] == [(False, 1), (True, 2)]
