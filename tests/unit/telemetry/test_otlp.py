"""Spans rendered from a log equal the spans exported at run time."""

from __future__ import annotations

import re
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support import factory
from support.factory import planner_of, shaky, synthesizer
from support.history import at, completed, failing, started, tool

from pointsman import LLMAgent
from pointsman import tool as a_tool
from pointsman.core.views.trace import build_trace
from pointsman.telemetry.otlp import to_otlp
from pointsman.testing import ScriptedModel, text_reply, tool_reply
from pointsman_schemas.log import Entry
from pointsman_schemas.team import Limits, RetryPolicy, Team

TEAM = Team(name="crew", limits=Limits(deadline=30), retry=RetryPolicy(backoff=0.01, attempts=2))


@a_tool
def look_up(word: str) -> str:
    """Looks a word up."""
    return word


def written(*entries: Entry, reports: Any = ()) -> list[dict[str, Any]]:
    made: Any = to_otlp(build_trace(entries, reports), namespace="ns", workflow_id="wf_1", now=at(9))
    spans: list[dict[str, Any]] = made["resourceSpans"][0]["scopeSpans"][0]["spans"]
    return spans


async def test_otlp_file_equals_the_exported_spans(
    exported: InMemorySpanExporter,
) -> None:
    model = ScriptedModel(tool_reply(("look_up", {"word": "bolt"})), text_reply("done"))
    thinker = LLMAgent(name="thinker", description="Thinks", instructions="Think.", model=model, tools=[look_up])
    plan = [{"id": "t1", "agent": "thinker", "intent": "think"}, {"id": "t2", "agent": "shaky", "intent": "shake"}]
    async with factory.team(TEAM, [planner_of(*plan), synthesizer, thinker, shaky], settled=True) as client:
        workflow = await client.submit("crew", "help")
        await workflow.outcome(20)
        root = await client.trace(workflow.id)

    made: Any = to_otlp(root, namespace="pointsman", workflow_id=workflow.id, now=at(0))

    from_log = {
        (s["name"], s["kind"], s["traceId"], s["spanId"], s.get("parentSpanId"))
        for s in made["resourceSpans"][0]["scopeSpans"][0]["spans"]
    }
    live = {
        (s.name, s.kind.value + 1, f"{s.context.trace_id:032x}", f"{s.context.span_id:016x}",
         f"{s.parent.span_id:016x}" if s.parent else None)
        for s in exported.get_finished_spans()
        if s.context is not None and not re.search(r"\.(control|result|timer)\.", s.name)
    }  # fmt: skip
    assert from_log == live


@pytest.mark.parametrize("log", [completed(), failing()], ids=["completed", "running"])
def test_every_span_has_a_unique_id_and_an_existing_parent(log: list[Entry]) -> None:
    reports = [tool("a", 2, 3, span=""), tool("b", 2, 3, span=""), tool("c", 2, 3, span="s")]

    spans = written(*log, reports=reports)

    ids = [span["spanId"] for span in spans]
    assert len(set(ids)) == len(ids)
    assert all(len(each) == 16 and int(each, 16) for each in ids)
    assert [span for span in spans if span.get("parentSpanId", ids[0]) not in ids] == []
    assert all(int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"]) for span in spans)


def test_running_span_ends_now_with_a_note() -> None:
    (publish, workflow) = written(started())

    assert publish["startTimeUnixNano"] == publish["endTimeUnixNano"]
    assert workflow["endTimeUnixNano"] == str(int(at(9).timestamp()) * 1_000_000_000)
    assert {"key": "pointsman.unfinished", "value": {"boolValue": True}} in workflow["attributes"]


def test_failed_span_has_an_error_status_with_the_reason() -> None:
    (failed,) = [span for span in written(*failing()) if span["name"] == "invoke_agent helper"]
    (planned,) = [span for span in written(*failing()) if span["name"] == "plan planner"]

    assert failed["status"] == {"code": 2, "message": "handler error: out of bolts"}
    assert planned["status"] == {}
