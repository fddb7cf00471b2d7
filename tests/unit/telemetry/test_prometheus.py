"""The metrics of a run in the form that a Prometheus server reads."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import structlog
from support import factory
from support.factory import planner_of, shaky, synthesizer
from support.prometheus import Samples, every_name, exposing, samples
from support.waiting import until

from pointsman import LLMAgent, agent, tool
from pointsman.engine.supervisor import queue_metrics
from pointsman.errors import TaskError
from pointsman.ports.model import ModelReply
from pointsman.telemetry import metrics, semconv
from pointsman.telemetry.export import start_metrics
from pointsman.testing import ScriptedModel, tool_reply
from pointsman_schemas.events import Usage
from pointsman_schemas.team import Limits, RetryPolicy, Team

ROOT = Path(__file__).parents[3]
TEAM = Team(name="crew", limits=Limits(deadline=30), retry=RetryPolicy(backoff=0.01, attempts=2))


@tool
def look_up(word: str) -> str:
    """Looks a word up."""
    return word


async def test_a_run_is_measured_from_its_queues_to_its_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_metrics, "_INTERVAL_S", 0.02)
    answer = ModelReply(text="done", usage=Usage(calls=1, input_tokens=10, output_tokens=5, cost=0.25), model="m")
    model = ScriptedModel(tool_reply(("look_up", {"word": "bolt"})), answer)
    thinker = LLMAgent(name="thinker", description="Thinks", instructions="Think.", model=model, tools=[look_up])
    plan = [{"id": "t1", "agent": "thinker", "intent": "think"}, {"id": "t2", "agent": "shaky", "intent": "shake"}]

    with exposing() as started:
        async with factory.team(TEAM, [planner_of(*plan), synthesizer, thinker, shaky], settled=True) as client:
            await (await client.submit("crew", "help")).outcome(20)

            async def measured() -> bool:
                seen = samples(started)
                looked = {labels["pointsman_queue"] for labels, _ in seen.get("pointsman_queue_depth", [])}
                ended = _total(seen, "gen_ai_workflow_duration_seconds_count") == 1
                idle = _total(seen, "pointsman_handoffs_active") == 0  # an agent settles a handoff after its answer
                waiting = _total(seen, "pointsman_queue_depth", pointsman_queue_state="waiting")
                return (
                    ended
                    and idle
                    and waiting == 0
                    and looked >= {"request-crew", "result-crew", "agent-shaky", "agent-thinker"}
                )

            await until(measured)
            seen = samples(started)

    assert _total(seen, "gen_ai_workflow_duration_seconds_count", gen_ai_workflow_name="crew") == 1
    assert _total(seen, "gen_ai_invoke_agent_duration_seconds_count", gen_ai_agent_name="shaky") == 1
    assert _total(seen, "messaging_process_duration_seconds_count", gen_ai_agent_name="shaky") == 2
    assert _total(seen, "pointsman_queue_duration_seconds_count", gen_ai_agent_name="shaky") == 2
    assert _total(seen, "pointsman_retries_total", gen_ai_agent_name="shaky") == 1
    assert _total(seen, "pointsman_handoffs_active") == 0
    assert _total(seen, "gen_ai_execute_tool_duration_seconds_count", gen_ai_tool_name="look_up") == 1
    by_agent = {"gen_ai_agent_name": "thinker", "gen_ai_request_model": "scripted"}
    assert _total(seen, "gen_ai_client_operation_duration_seconds_count", **by_agent) == 2
    assert _total(seen, "gen_ai_client_token_usage_sum", gen_ai_token_type="input", **by_agent) == 20
    assert _total(seen, "pointsman_model_cost_total", **by_agent) == 0.25
    assert _total(seen, "pointsman_queue_depth", pointsman_queue="agent-shaky", pointsman_queue_state="waiting") == 0


async def test_work_in_progress_and_dead_letters_are_counted_by_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_metrics, "_INTERVAL_S", 0.02)
    go = asyncio.Event()

    @agent(name="slow", description="Waits until it may, and fails")
    async def slow(request: str) -> str:
        await go.wait()
        raise TaskError("out of bolts")

    at_work = {"pointsman_queue": "agent-slow", "pointsman_queue_state": "in_flight"}
    with exposing() as started:
        async with factory.team(
            TEAM, [planner_of({"id": "t1", "agent": "slow", "intent": "wait"}), synthesizer, slow], settled=True
        ) as client:
            workflow = await client.submit("crew", "help")

            async def working() -> bool:
                seen = samples(started)
                active = _total(seen, "pointsman_handoffs_active", gen_ai_agent_name="slow")
                return _total(seen, "pointsman_queue_depth", **at_work) == active == 1

            await until(working)
            during = samples(started)
            go.set()
            await workflow.outcome(20)
        after = samples(started)

    assert _total(during, "pointsman_handoffs_active", gen_ai_agent_name="slow") == 1
    assert _total(during, "pointsman_dead_letters_total") == 0
    assert _total(after, "pointsman_dead_letters_total", pointsman_origin="slow") == 1


def test_every_metric_is_described() -> None:
    told = every_name()
    described = (ROOT / "docs" / "telemetry.md").read_text()

    for name in metrics.NAMES:
        plain = name.replace(".", "_")
        assert any(sample.startswith(plain) for sample in told), name
        assert f"`{name}`" in described, f"docs/telemetry.md does not describe {name}"


def test_every_named_metric_is_measured_somewhere() -> None:
    telling = {"semconv.py", "metrics.py"}
    code = "".join(f.read_text() for f in (ROOT / "runtime").rglob("*.py") if f.name not in telling)
    constants = {getattr(semconv, name): name for name in semconv.__all__ if name.isupper()}

    told = set(metrics.NAMES) - set(metrics._COUNTER_OF_HISTOGRAM.values())  # a part of the measured metric
    assert [name for name in told if f"semconv.{constants[name]}" not in code] == []


@pytest.mark.parametrize(
    ("variables", "kept"),
    [
        ({}, True),
        ({"OTEL_METRICS_EXPORTER": "prometheus"}, True),
        ({"OTEL_METRICS_EXPORTER": "none"}, False),
        ({"OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_prometheus_is_served_unless_disabled(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], kept: bool
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    started = start_metrics("test", "", exposed=True)
    measuring = metrics.metrics_enabled()
    metrics.configure(None)

    assert (started is not None and started.exposition is not None) is kept
    assert measuring is kept


def test_prometheus_without_a_port_is_reported_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "prometheus")

    with structlog.testing.capture_logs() as lines:
        assert start_metrics("test", "", exposed=False) is None
        start_metrics("test", "", exposed=True)
        metrics.configure(None)

    (line,) = lines
    assert (line["event"], line["log_level"], line["seen"]) == ("telemetry_not_exposed", "warning", "prometheus")
    assert "POINTSMAN_HEALTH_PORT" in line["hint"]


def _total(seen: Samples, name: str, **labels: str) -> float:
    return sum(value for has, value in seen.get(name, []) if labels.items() <= has.items())
