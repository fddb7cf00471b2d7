"""A worker reports progress, times, counters and a trace together with the result."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from opentelemetry.trace import SpanKind
from support import factory
from support.handoffs import TRACEPARENT, SupervisorDouble
from support.prometheus import exposing, samples
from support.spans import exporting
from support.waiting import until

from pointsman.authoring.agent import agent
from pointsman.authoring.context import Context
from pointsman.authoring.tools import tool
from pointsman.bus.memory.bus import MemoryBroker, MemoryBus
from pointsman.engine.worker import handoff_processor
from pointsman.telemetry import semconv, traces
from pointsman.testing.clock import VirtualClock
from pointsman_schemas.envelope import decode
from pointsman_schemas.events import ATTEMPT_STARTED, Progress, Usage
from pointsman_schemas.strict_json import parse


async def reports(desk: SupervisorDouble, workflow: str = "wf_1") -> list[Progress]:
    found = [stored async for stored in desk.bus.read("results", desk.subjects.workflow_events(workflow))]
    return [parse(Progress, stored.body) for stored in found]


@pytest.fixture
def no_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not report the begin of an attempt that a busy machine delays."""
    monkeypatch.setattr(handoff_processor, "_STARTED_REPORT_DELAY_S", 60.0)


@pytest.mark.usefixtures("no_begins")
@pytest.mark.parametrize("own_loop", [False, True])
async def test_reports_tools_events_and_usage_travel_with_the_work(own_loop: bool) -> None:
    desk = SupervisorDouble(MemoryBus())

    @tool
    def search(query: str) -> str:
        """Searches."""
        return query.upper()

    @agent(name="busy", description="d")
    async def busy(text: str, context: Context) -> Any:
        context.progress("looking", step=1)
        found = await context.call(search, query=text)
        await context.emit("found", {"what": found})
        context.record_usage(Usage(calls=2, cost=0.5))
        context.set_confidence(0.75)
        context.replan("more to do")
        return found

    async with factory.running(factory.worker(desk.bus, busy, own_loop=own_loop)):
        handoff = await desk.publish_handoff("busy", "tea")
        result = await desk.result(handoff)

    assert (result.output, result.usage.calls, result.confidence) == ("TEA", 2, 0.75)
    assert result.replan_hint == "more to do"
    assert {each.kind: (each.name, each.message, each.data) for each in await reports(desk)} == {
        "progress": ("", "looking", {"step": 1}),
        "tool": ("search", "", None),
        "found": ("found", "", {"what": "TEA"}),
    }
    assert await desk.bus.last("results", desk.subjects.event("team", "wf_1", "busy", "found")) is not None


async def test_worker_reports_a_begin_unless_the_attempt_ends_at_once() -> None:
    clock = VirtualClock()
    desk = SupervisorDouble(MemoryBus(clock=clock), clock=clock)

    @agent(name="busy", description="d")
    async def busy(seconds: float) -> None:
        await clock.sleep(seconds)

    async with factory.running(factory.worker(desk.bus, busy, clock=clock)):
        quick, slow = await desk.publish_handoff("busy", 0.4), await desk.publish_handoff("busy", 30, task="T2")
        await clock.settle()
        await clock.advance(0.6)
        early = await reports(desk)
        await clock.advance(30)
        results = [await desk.result(quick), await desk.result(slow)]

    assert [each.status for each in results] == ["succeeded"] * 2
    assert [(each.kind, each.name, each.task_id) for each in early] == [("progress", ATTEMPT_STARTED, "T2")]
    assert early[0].started_at == results[1].started_at
    assert await reports(desk) == early


@pytest.mark.usefixtures("no_begins")
async def test_reports_have_the_brokers_time() -> None:
    clock = VirtualClock()  # years ahead of the worker's clock
    desk = SupervisorDouble(MemoryBus(clock=clock), clock=clock)

    @tool
    def search(query: str) -> str:
        """Searches."""
        return query

    @agent(name="busy", description="d")
    async def busy(context: Context) -> None:
        context.progress("looking")
        await context.call(search, query="tea")
        await context.emit("found")

    async with factory.running(factory.worker(desk.bus, busy)):
        await desk.result(await desk.publish_handoff("busy"))

    said = [stored async for stored in desk.bus.read("results", desk.subjects.workflow_events("wf_1"))]
    times = [report.started_at for report in await reports(desk)]
    times += [envelope.time for stored in said if (envelope := decode(stored.headers, stored.body)[0]) is not None]
    assert len(times) == 6
    assert all(abs(at - clock.now()) < timedelta(minutes=1) for at in times)


async def test_counters_match_the_work_done() -> None:
    broker = MemoryBroker()
    desk = SupervisorDouble(broker.connect())

    @agent(name="picky", description="d")
    async def picky(number: int) -> int:
        return number

    async with factory.running(factory.worker(desk.bus, picky)):
        await desk.result(await desk.publish_handoff("picky", 1))
        await desk.result(await desk.publish_handoff("picky", "one", task="T2"))
        await until(lambda: desk.settled("picky"))
        (service,) = broker.services

    assert (service.requests, service.errors, service.last_error) == (2, 1, "invalid_input")
    assert service.processing_time > 0


async def test_redelivered_attempt_says_so_and_links_to_its_sender() -> None:
    desk = SupervisorDouble(MemoryBus())
    handoff = await desk.publish_handoff("echo", "tea")
    handoffs = desk.subjects.agent_handoffs("echo")
    lost = await desk.bus.consumer("agent-echo", "handoffs", handoffs, ack_wait=10, max_in_flight=1)
    (delivery,) = await lost.take(1)
    await delivery.nak()
    await lost.close()

    with exporting() as exporter, exposing() as measured:
        async with factory.running(factory.worker(desk.bus)):
            await desk.result(handoff)
            await until(lambda: desk.settled("echo"))
        seen = samples(measured)

    assert "pointsman_queue_duration_seconds_count" not in seen, (
        "the wait of a redelivered handoff is unknown and must not be measured"
    )
    (process,) = exporter.get_finished_spans()
    assert [f"{link.context.span_id:016x}" for link in process.links] == [TRACEPARENT.split("-")[2]]
    assert [(event.name, dict(event.attributes or {})) for event in process.events] == [
        (semconv.HANDOFF_REDELIVERED, {semconv.DELIVERED: 2})
    ]


@pytest.mark.usefixtures("no_begins")
@pytest.mark.parametrize("own_loop", [False, True])
async def test_one_trace_runs_through_worker_handler_thread_and_tool(own_loop: bool) -> None:
    desk = SupervisorDouble(MemoryBus())

    @tool
    def count(word: str) -> int:
        """Counts letters."""
        with traces.span("inside"):
            return len(word)

    @agent(name="traced", description="d")
    def traced(text: str, context: Context) -> Any:
        return context.run_sync(context.call(count, word=text))

    with exporting() as exporter:
        async with factory.running(factory.worker(desk.bus, traced, own_loop=own_loop)):
            handoff = await desk.publish_handoff("traced", "four")
            result = await desk.result(handoff)
            await until(lambda: desk.settled("traced"))

    spans = {each.name: each for each in exporter.get_finished_spans()}
    process, execute, inside = (
        spans[name] for name in ("process pointsman.handoff.traced", "execute_tool count", "inside")
    )
    assert result.output == 4
    assert process.kind is SpanKind.CONSUMER
    assert process.parent is not None
    assert f"{process.parent.span_id:016x}" == TRACEPARENT.split("-")[2]
    assert dict(process.attributes or {})["pointsman.workflow.id"] == "wf_1"
    assert inside.parent is not None
    assert inside.parent.span_id == execute.context.span_id
    assert {f"{each.context.trace_id:032x}" for each in spans.values()} == {TRACEPARENT.split("-")[1]}
    assert execute.parent is not None
    assert execute.parent.span_id == process.context.span_id
    (report,) = await reports(desk)
    assert report.span_id == f"{execute.context.span_id:016x}"
    assert report.parent_span_id == f"{process.context.span_id:016x}"
