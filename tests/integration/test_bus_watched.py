"""An observer of a bus gets each message with its stream and sequence."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest
from support.broker import TIMEOUT_S
from support.spans import exporting
from support.waiting import until

from pointsman.bus.jetstream.bus import JetStreamBus, connect
from pointsman.errors import ConflictError
from pointsman.ports.bus import Server, TraceHop
from pointsman.settings import Settings
from pointsman.telemetry import bus_observer, traces


class Watching:
    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def on_published(self, subject: str, server: Server | None, seconds: float, error: str | None) -> None:
        assert seconds > 0
        self.told.append((subject, server, error))

    def on_received(self, subject: str, server: Server | None, consumer: str, amount: int) -> None:
        self.told.append((subject, server, consumer, amount))

    def on_hop(self, hop: TraceHop) -> None:
        self.told.append((hop,))


async def test_observer_sees_each_message_stored_refused_and_taken(bus: JetStreamBus, settings: Settings) -> None:
    watching = Watching()
    watched = await connect(settings, name="watched", observer=watching)
    address = urlsplit(settings.url)
    server = Server(address.hostname or "", address.port or 0)
    subject = f"{settings.namespace}.request.team.anonymous"
    consumer = await watched.consumer("team", "requests", subject, ack_wait=30)

    await watched.publish(subject, b"{}", {})
    with pytest.raises(ConflictError):
        await watched.publish(subject, b"{}", {}, expect=0)
    [delivery] = await asyncio.wait_for(consumer.take(1), TIMEOUT_S)
    await delivery.ack()
    await watched.close()

    assert watching.told == [(subject, server, None), (subject, server, "conflict"), (subject, server, "team", 1)]
    assert watched.server == server


async def test_the_route_of_a_message_is_a_span_of_its_trace(bus: JetStreamBus, settings: Settings) -> None:
    with exporting() as exporter:
        chosen = settings.model_copy(update={"trace_broker": True})
        watched = await connect(chosen, name="watched", observer=bus_observer())
        ns = settings.namespace
        subject, log = f"{ns}.request.crew.anonymous", f"{ns}.log.crew.w"
        consumer = await watched.consumer("crew", "requests", subject, ack_wait=30)

        with traces.span("asking") as asking:
            assert asking.context is not None
            headers = {"traceparent": asking.context.traceparent}
            await watched.publish(subject, b"{}", headers)
            await watched.publish(log, b"{}", {**headers, "traceparent": headers["traceparent"][:-1] + "0"})
            await watched.publish(log, b"{}", headers, expect=1)
            with pytest.raises(ConflictError):
                await watched.publish(log, b"{}", headers, expect=1)
        await until(lambda: len(exporter.get_finished_spans()) >= 4)
        [delivery] = await asyncio.wait_for(consumer.take(1), TIMEOUT_S)
        await watched.close()

    # Each stream sends its trace events itself, so the events of two streams might arrive in the other order.
    *hops, _ = sorted(exporter.get_finished_spans(), key=lambda span: (span.name == "asking", span.start_time))
    assert [span.name for span in hops] == [
        f"store {ns}.request.crew",
        f"store {ns}.log.crew",
        f"store {ns}.log.crew",
    ]
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
