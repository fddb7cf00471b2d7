"""Operators get the text of an agent's exception. Callers and models do not get it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from rich.console import Console
from structlog.testing import capture_logs
from support.spans import exporting

from pointsman.authoring.agent import agent
from pointsman.cli.render.outcome import render_workflow
from pointsman.core.views.timeline import Timeline
from pointsman.telemetry import content_capture
from pointsman.testing import ScriptedModel, running_team, text_reply
from pointsman_agents.planner import planner
from pointsman_agents.synthesizer import synthesizer
from pointsman_schemas.events import AttemptError, Outcome
from pointsman_schemas.retry import RetryPolicy
from pointsman_schemas.team import PlanAndExecute, Team

SECRET = "the vault at 10.0.0.7 is sealed"


@agent
async def connect(request: str) -> str:
    """Connects to the database."""
    raise ConnectionError(SECRET)


@agent
async def greet(request: str) -> str:
    """Greets."""
    return "hello"


@pytest.fixture(params=["none", "full"])
def mode(request: pytest.FixtureRequest) -> Iterator[content_capture.Mode]:
    content_capture.configure(request.param)
    yield request.param
    content_capture.configure("none")


async def test_exception_text_reaches_operators_and_neither_callers_nor_models(mode: content_capture.Mode) -> None:
    tasks = [{"id": "t1", "agent": "connect", "intent": "connect"}, {"id": "t2", "agent": "greet", "intent": "greet"}]
    plan, answer = ScriptedModel(text_reply({"tasks": tasks})), ScriptedModel(text_reply({"answer": "It failed."}))
    agents = [planner.with_model(plan), synthesizer.with_model(answer), connect, greet]
    team = Team(name="t", strategy=PlanAndExecute(), retry=RetryPolicy(attempts=1))

    with capture_logs() as lines, exporting() as spans:
        async with running_team(team, agents) as client:
            workflow = await client.submit("t", "go")
            outcome = await workflow.outcome(10)
            entries = await client.entries(workflow.id)
            letters = await client.operations.dead_letters()

    assert isinstance(outcome, Outcome)
    assert [gap.reason for gap in outcome.gaps] == ["agent connect raised ConnectionError"]
    assert SECRET not in outcome.model_dump_json()
    asked = "".join(turn.text for model in (plan, answer) for request in model.requests for turn in request.turns)
    assert "agent connect raised ConnectionError" in asked
    assert SECRET not in asked

    (failed,) = [line for line in lines if line["event"] == "attempt_failed"]
    assert failed["error"] == (None if mode == "none" else f"agent connect raised ConnectionError: {SECRET}")
    statuses = [str(span.status.description) for span in spans.get_finished_spans()]
    assert any(SECRET in status for status in statuses) == (mode != "none")
    console = Console(file=io.StringIO(), width=200)
    console.print(render_workflow(entries, [], datetime.now(UTC), ["connect"]))
    assert SECRET in console.file.getvalue()  # type: ignore[attr-defined]
    timeline = Timeline()
    texts = [str(timeline.render(entry)) for entry in entries]
    assert any(SECRET in text for text in texts)
    assert [letter.content.cause.detail for letter in letters] == [SECRET]


def test_an_agent_gets_an_error_without_its_detail() -> None:
    error = AttemptError(kind="handler_error", message="agent a raised OSError", detail="secret")

    assert error.for_agents == AttemptError(kind="handler_error", message="agent a raised OSError")
    assert error.for_operators == "agent a raised OSError: secret"
    assert error.for_agents.for_operators == "agent a raised OSError"
