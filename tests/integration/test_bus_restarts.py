"""No operation succeeds during an outage. After it all processes continue, even if the broker lost data."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs
from support.broker import TIMEOUT_S, own_settings, restart_broker
from support.waiting import until

from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.bus.jetstream import connection, pull_consumer
from pointsman.bus.jetstream.bus import JetStreamBus, connect
from pointsman.errors import BusUnavailableError, PublishOutcomeUnknownError
from pointsman_schemas.card import AgentCard


@pytest.fixture
def info_logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Enable log lines of level `info`, which are disabled before the set-up of logging."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("info"))
    for module in (connection, pull_consumer):  # new loggers, because a logger keeps the level of its first use
        monkeypatch.setattr(module, "_log", structlog.get_logger(module.__name__))
    yield
    structlog.configure(**before)


@pytest.mark.usefixtures("info_logged")
async def test_a_consumer_continues_after_the_broker_restarted(own_broker: EmbeddedBroker, tmp_path: Path) -> None:
    bus = await connect(own_settings(own_broker), name="test", wait=TIMEOUT_S)
    await bus.set_up()
    consumer = await bus.consumer("writer", "work", "own.handoff.writer.>", ack_wait=30)
    following = bus.follow("log", ["own.log.>"])
    taking, next_log = asyncio.create_task(consumer.take(4)), asyncio.ensure_future(anext(following))
    await until(lambda: consumer.bound)
    await bus.publish("own.log.team.w", b"before", {})
    assert (await asyncio.wait_for(next_log, TIMEOUT_S)).body == b"before"
    next_log = asyncio.ensure_future(anext(following))
    second = restart_broker(own_broker, tmp_path)

    with capture_logs() as lines:
        await own_broker.stop()
        await until(lambda: not bus.connected)
        assert not consumer.bound
        async with second:
            await until(lambda: bus.connected)
            await bus.publish("own.handoff.writer.crew.w.t.1", b"after", {})
            [delivery] = await asyncio.wait_for(taking, TIMEOUT_S)
            await bus.publish("own.log.team.w", b"after", {})

            assert delivery.message.body == b"after"
            assert consumer.bound
            assert (await asyncio.wait_for(next_log, TIMEOUT_S)).body == b"after"
            await following.aclose()
            await bus.close()

    events = [line["event"] for line in lines]
    assert events.count("bus_disconnected") == 1
    assert events.count("bus_reconnected") == 1
    assert len(events) <= 8, events


async def test_publish_during_an_outage_has_an_unknown_outcome_and_acks_are_silent(
    own_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = await connect(own_settings(own_broker), name="test", wait=TIMEOUT_S)
    await bus.set_up()
    consumer = await bus.consumer("writer", "work", "own.handoff.writer.>", ack_wait=30)
    await bus.publish("own.handoff.writer.crew.w.t.1", b"1", {})
    [delivery] = await asyncio.wait_for(consumer.take(1), TIMEOUT_S)

    await own_broker.stop()
    await until(lambda: not bus.connected)
    monkeypatch.setattr(bus._connection._requests, "_timeout", 0.4)

    with pytest.raises(PublishOutcomeUnknownError):
        await bus.publish("own.log.team.w", b"x", {}, expect=0)
    with pytest.raises(BusUnavailableError):
        await bus.last("log", "own.log.team.w")
    for settle in (delivery.in_progress, delivery.nak, delivery.ack):
        await settle()
    await bus.broadcast("own.live.w.x", b"", {})
    await asyncio.wait_for(bus.close(), 4.5)  # the time-out of a request, 5 s, would take longer


async def test_a_publish_waits_for_a_broker_that_is_back_in_time(own_broker: EmbeddedBroker, tmp_path: Path) -> None:
    bus = await connect(own_settings(own_broker), name="test", wait=TIMEOUT_S)
    await bus.set_up()
    second = restart_broker(own_broker, tmp_path)
    await own_broker.stop()
    await until(lambda: not bus.connected)

    publishing = asyncio.create_task(bus.publish("own.log.team.w", b"x", {}, expect=0))
    async with second:
        assert await publishing == 1
        await bus.close()


async def test_processes_continue_after_a_restart_with_an_empty_store(
    own_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Processes are not restarted. Streams are created again, and readers accept the lower sequences."""
    settings = own_settings(own_broker, heartbeat=60.0)
    bus, agent = (
        await connect(settings, name="bus", wait=TIMEOUT_S),
        await connect(settings, name="agent", wait=TIMEOUT_S),
    )
    await bus.set_up()
    consumer = await bus.consumer("writer", "work", "own.handoff.writer.>", ack_wait=30)
    following = bus.follow("log", ["own.log.>"])
    for number in range(5):
        await bus.publish("own.log.team.w", b"before", {})
        await agent.registry.announce(AgentCard(name="old", instance=str(number), description="writes"))
        await anext(following)
    await until(lambda: _names(bus, {"old"}))
    taking, next_log = asyncio.create_task(consumer.take(1)), asyncio.ensure_future(anext(following))
    second = restart_broker(own_broker, tmp_path, "empty")

    await own_broker.stop()
    await until(lambda: not bus.connected and not agent.connected)
    async with second:
        await until(lambda: _there(bus, "OWN_LOG", "OWN_WORK", "KV_OWN_AGENTS"))
        await agent.registry.announce(AgentCard(name="writer", instance="a", description="writes"))
        await agent.publish("own.log.team.w", b"after", {})
        await agent.publish("own.handoff.writer.crew.w.t.1", b"work", {})

        await until(lambda: _names(bus, {"old", "writer"}))  # old cards stay for one time to live after the outage
        assert (await asyncio.wait_for(next_log, TIMEOUT_S)).body == b"after"
        assert [delivery.message.body for delivery in await asyncio.wait_for(taking, TIMEOUT_S)] == [b"work"]
        await following.aclose()  # type: ignore[attr-defined]
        await bus.close()
        await agent.close()


@pytest.mark.parametrize("created", [False, True])
async def test_a_reader_that_begins_after_the_loss_of_the_store_reads_the_new_stream(
    own_broker: EmbeddedBroker, tmp_path: Path, created: bool
) -> None:
    """The reader has read five messages, and has no consumer yet. The new stream begins with sequence 1."""
    bus = await connect(own_settings(own_broker), name="bus", wait=TIMEOUT_S)
    await bus.set_up()
    for _ in range(5):
        await bus.publish("own.log.team.w", b"before", {})
    second = restart_broker(own_broker, tmp_path, "empty")
    await own_broker.stop()
    await until(lambda: not bus.connected)
    following = bus.follow("log", ["own.log.>"], after=5)

    async with second:
        if created:
            await until(lambda: _there(bus, "OWN_LOG"))
            await bus.publish("own.log.team.w", b"after", {})
        next_log = asyncio.ensure_future(anext(following))
        if not created:
            await until(lambda: _there(bus, "OWN_LOG"))
            await bus.publish("own.log.team.w", b"after", {})

        assert (await asyncio.wait_for(next_log, TIMEOUT_S)).body == b"after"
        await following.aclose()  # type: ignore[attr-defined]
        await bus.close()


async def _there(bus: JetStreamBus, *streams: str) -> bool:
    return all(["error" not in await bus.api(f"STREAM.INFO.{stream}") for stream in streams])


async def _names(bus: JetStreamBus, names: set[str]) -> bool:
    return {card.name for card in await bus.registry.cards()} == names
