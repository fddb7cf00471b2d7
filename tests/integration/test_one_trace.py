"""Seven processes send the spans of one request to an independent collector as one trace."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from support.broker import remove_streams
from support.otlp import OtlpCollector, ReceivedSpan, orphans, roots
from support.processes import System

from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.settings import Settings
from pointsman_agents.customer_service import SAMPLE_REQUEST
from pointsman_schemas.events import Outcome

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]

TEAM = "customer-service"
WORKERS = ("billing", "technical", "account")
TREE = """\
publish NS.request.customer-service | producer pointsman-cli
  invoke_workflow customer-service | internal supervisor-customer-service
    invoke_agent account | client supervisor-customer-service
      process NS.handoff.account | consumer account
        chat offline | client account
        chat offline | client account
        execute_tool account_state | internal account
        execute_tool send_reset_link | internal account
    invoke_agent billing | client supervisor-customer-service
      process NS.handoff.billing | consumer billing
        chat offline | client billing
        chat offline | client billing
        chat offline | client billing
        execute_tool find_charges | internal billing
        execute_tool request_refund | internal billing
    invoke_agent technical | client supervisor-customer-service
      process NS.handoff.technical | consumer technical
        chat offline | client technical
        chat offline | client technical
        execute_tool rate_limits | internal technical
        execute_tool service_status | internal technical
    plan planner | internal supervisor-customer-service
      process NS.handoff.planner | consumer planner
        chat offline | client planner
    synthesize synthesizer | client supervisor-customer-service
      process NS.handoff.synthesizer | consumer synthesizer
        chat offline | client synthesizer"""
OTHER_CUSTOMER = "My customer id is C-1002."
"""A second request for a refund of the same charge has another tree. So only the first test is about C-1001."""
CALLERS_TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLERS_SPAN = "b7ad6b7169203331"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def collector() -> AsyncIterator[OtlpCollector]:
    async with OtlpCollector() as collector:
        yield collector


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(
    broker: EmbeddedBroker, collector: OtlpCollector, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[System]:
    """Yield a system with the shipped team and a process for each agent."""
    settings = Settings(url=broker.url, namespace=f"t{secrets.token_hex(4)}", log_level="debug")
    async with System(tmp_path_factory.mktemp("one-trace"), settings, **collector.environment) as system:
        await asyncio.gather(
            system.supervisor("pointsman_agents.customer_service"),
            system.worker("pointsman_agents.planner"),
            system.worker("pointsman_agents.synthesizer"),
            *(system.worker(f"pointsman_agents.customer_service.{name}") for name in WORKERS),
        )
        yield system
    await remove_streams(settings)


@pytest.fixture(scope="module")
def other_traces() -> set[str]:
    """Collect the traces of the other tests, which can run before the test of one trace."""
    return {CALLERS_TRACE}


async def test_one_request_is_one_trace_with_one_root_and_no_orphan(
    system: System, collector: OtlpCollector, other_traces: set[str]
) -> None:
    asked = await system.command("submit", TEAM, SAMPLE_REQUEST, "--correlation-id", "ticket 7", "--json")
    assert asked.code == 0, asked.errors

    def all_drawn(spans: list[ReceivedSpan]) -> bool:
        return _drawn(spans, system.settings.namespace) == TREE

    spans = await _spans_of(collector, asked.documents[-1]["trace_id"], until=all_drawn)

    everything = [span for span in await collector.spans() if span.trace_id not in other_traces]
    assert {span.trace_id for span in everything} == {span.trace_id for span in spans}
    assert len(roots(spans)) == 1
    assert orphans(everything) == []
    assert {span.status for span in spans} <= {"unset", "ok"}
    assert _drawn(spans, system.settings.namespace) == TREE
    port = urlsplit(system.settings.url).port
    over_the_bus = [span for span in spans if span.kind in ("producer", "consumer")]
    assert {(span.attributes["server.address"], span.attributes["server.port"]) for span in over_the_bus} == {
        ("127.0.0.1", port)
    }


async def test_log_lines_of_every_process_carry_the_trace_and_the_workflow(
    system: System, other_traces: set[str]
) -> None:
    workflow = await system.client.submit(TEAM, f"{SAMPLE_REQUEST} {OTHER_CUSTOMER}", correlation_id="ticket 8")
    outcome = await workflow.outcome(30)
    other_traces.add(outcome.trace_id)

    about = {"workflow_id": workflow.id, "correlation_id": "ticket 8", "trace_id": outcome.trace_id}

    assert outcome.status == "completed"
    for service in system.services:
        event = "workflow_ended" if service.name.startswith("supervisor") else "attempt_succeeded"
        assert (await service.logged(event, seconds=20, **about))["span_id"]


async def test_a_bare_request_with_a_traceparent_continues_with_its_callers_trace(
    system: System, collector: OtlpCollector
) -> None:
    outcome = await _ask_bare(system, {"traceparent": f"00-{CALLERS_TRACE}-{CALLERS_SPAN}-01"})

    spans = await _spans_of(collector, CALLERS_TRACE, callers_span=CALLERS_SPAN)

    assert (outcome.status, outcome.trace_id) == ("completed", CALLERS_TRACE)
    assert [span.name for span in spans if span.parent_id == CALLERS_SPAN] == [f"invoke_workflow {TEAM}"]


async def _ask_bare(system: System, headers: dict[str, str]) -> Outcome:
    """Publish a request as bare JSON, as any NATS client may do, and return its outcome."""
    bus, subjects = system.client.bus, system.client.subjects
    body = json.dumps({"input": f"I was charged twice. {OTHER_CUSTOMER}"}).encode()
    sequence = await bus.publish(subjects.request(TEAM, "anonymous"), body, headers)
    return await (await system.client.workflow_from_sequence(sequence)).outcome(30)


async def _spans_of(
    collector: OtlpCollector,
    trace_id: str,
    *,
    callers_span: str = "",
    until: Callable[[list[ReceivedSpan]], bool] = bool,
) -> list[ReceivedSpan]:
    """Wait until a trace has its workflow span and only the caller's span is missing as a parent. Return its spans.

    Also wait until `until` accepts the spans, up to 20 s. Each process sends its spans at its own time, so a trace can
    lack all spans of a process.
    """
    trace: list[ReceivedSpan] = []

    def whole(spans: list[ReceivedSpan]) -> bool:
        trace[:] = [span for span in spans if span.trace_id == trace_id]
        missing = {span.parent_id for span in orphans(trace)} - {callers_span}
        return any(span.name.startswith("invoke_workflow") for span in trace) and not missing

    await collector.spans(until=whole, timeout=20)
    with suppress(AssertionError):  # the caller compares the spans, and then shows the difference
        await collector.spans(until=lambda spans: whole(spans) and until(trace), timeout=20)
    return trace


def _drawn(spans: list[ReceivedSpan], namespace: str) -> str:
    """Return the tree of spans with sorted children, one span in each line.

    Spans of inputs that were batched by chance are omitted.
    """
    spans = [
        span
        for span in spans
        if not span.name.startswith(tuple(f"process {namespace}.{kind}." for kind in ("control", "result", "timer")))
    ]

    def below(parent: str | None, depth: int) -> list[str]:
        return [
            line
            for title, span in sorted(
                (_title(span, namespace), span.span_id) for span in spans if span.parent_id == parent
            )
            for line in (f"{'  ' * depth}{title}", *below(span, depth + 1))
        ]

    return "\n".join(below(None, 0))


def _title(span: ReceivedSpan, namespace: str) -> str:
    return f"{span.name.replace(namespace, 'NS')} | {span.kind} {span.service}"
