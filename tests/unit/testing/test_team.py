"""A whole team is tested quickly in one process, and without paid model calls."""

from __future__ import annotations

import asyncio
import os
import runpy
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from support.docs import ROOT, blocks_of

from pointsman import testing
from pointsman.authoring.agent import agent
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.authoring.tools import tool
from pointsman.engine.supervisor.engine import SupervisorEngine
from pointsman.errors import BusUnavailableError, ConfigurationError, OversizeEventError, PointsmanError
from pointsman.llm import network_guard
from pointsman.llm.anthropic import AnthropicModel
from pointsman.llm.openai import OpenAIModel
from pointsman.ports.model import Model, ModelRequest, Turn
from pointsman.settings import Settings
from pointsman.testing import (
    ScriptedModel,
    VirtualClock,
    forbid_real_models,
    run_team,
    running_team,
    text_reply,
    tool_reply,
)
from pointsman_agents.planner import planner
from pointsman_agents.synthesizer import synthesizer
from pointsman_schemas.team import ANY, FanOut, Limits, Pipeline, PlanAndExecute, Stage, Strategy, Team

TEAM = Team(name="shop", agents=ANY, strategy=PlanAndExecute(), limits=Limits(deadline=20))
REQUEST = ModelRequest(model="", instructions="", turns=(Turn("user", "hello"),))


@tool
async def price(item: str) -> str:
    """Looks up the price of an item."""
    return "4 euros"


def seller(model: Model) -> LLMAgent:
    return LLMAgent(name="seller", description="Sells tea", instructions="Sell.", tools=[price], model=model)


@pytest.fixture(autouse=True)
async def offline(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    monkeypatch.setenv("POINTSMAN_MODEL", "offline")
    yield
    for shared in (planner, synthesizer):  # so that other tests select their model again
        await shared.close()


async def test_a_team_runs_in_a_test_from_a_request_to_its_outcome() -> None:
    model = ScriptedModel(tool_reply(("price", {"item": "tea"})), text_reply("Tea is 4 euros."))

    outcome = await run_team(TEAM, [planner, synthesizer, seller(model)], "What does tea cost?")

    assert outcome.status == "completed"
    assert [task.agent for task in outcome.tasks if task.role == "work"] == ["seller"]
    assert [turn.text for turn in model.requests[1].turns if turn.role == "tool"] == ["4 euros"]


async def test_a_team_is_tested_in_less_than_a_second() -> None:
    took: list[float] = []

    for _ in range(5):
        began = time.perf_counter()
        await run_team(
            TEAM, [planner, synthesizer, seller(ScriptedModel(text_reply("4 euros")))], "What does tea cost?"
        )
        took.append(time.perf_counter() - began)

    assert min(took) < 1.0, took  # about 50 ms; the fastest run, because the machine may be busy


def test_kit_table_lists_every_name() -> None:
    assert [name for name in testing.__all__ if f"`{name}`" not in str(testing.__doc__)] == []


async def test_agent_with_a_test_model_is_otherwise_unchanged() -> None:
    wrong = text_reply({"tasks": [{"id": "t1", "agent": "absent", "intent": "?"}]})
    thinks, sells = ScriptedModel(wrong, text_reply({"cannot": "We sell tea alone."})), ScriptedModel()
    assert planner.model.provider == "offline"

    scripted = planner.with_model(thinks)
    outcome = await run_team(TEAM, [scripted, synthesizer, seller(ScriptedModel()).with_model(sells)], "Sell me a car")
    await scripted.close()

    assert ("We sell tea alone." in outcome.reason, sells.requests) == (True, [])
    first, second = thinks.requests
    assert first.instructions.startswith("You plan for a team of agents.")
    assert '"description": "Sells tea"' in first.turns[0].text
    assert "absent" in second.turns[0].text  # the next request has the errors of the plan
    assert (thinks.closed, planner.model.provider) == (True, "offline")
    with pytest.raises(ConfigurationError, match="agent planner has model=42"):
        planner.with_model(42)  # type: ignore[arg-type]


def test_the_test_of_the_page_about_schedules_passes(tmp_path: Path) -> None:
    *_, (_, block) = blocks_of((ROOT / "docs" / "schedules.md").read_text())
    (tmp_path / "test_report.py").write_text(block)

    runpy.run_path(str(tmp_path / "test_report.py"))["test_the_report_is_written_on_working_days"]()


async def test_agents_stay_live_while_the_test_moves_the_clock() -> None:
    clock = VirtualClock()

    @agent(name="seller", description="Sells tea")
    def sell(request: str) -> str:  # a function that is not async runs in a thread, which needs real time
        return "sold"

    team = Team(name="shop", strategy=Pipeline(stages=(Stage(agent="seller"),)))
    async with running_team(team, [sell], clock=clock) as client:
        await clock.advance(12 * 3600)
        workflow = await client.submit("shop", "tea")
        outcome = await workflow.outcome(20)
        agents = [card.name for card in await client.operations.agents()]

    assert (outcome.status, outcome.answer) == ("completed", "sold")
    assert abs(outcome.ended_at - clock.now()) < timedelta(seconds=60)
    assert "seller" in agents


async def test_deadline_passes_when_the_test_moves_the_clock() -> None:
    clock = VirtualClock()
    started = asyncio.Event()

    @agent(name="seller", description="Never answers")
    async def sell(request: str) -> str:
        started.set()
        await asyncio.Event().wait()
        return "sold"

    team = Team(name="shop", strategy=Pipeline(stages=(Stage(agent="seller"),)), limits=Limits(deadline=600))
    async with running_team(team, [sell], clock=clock) as client:
        workflow = await client.submit("shop", "tea")
        await started.wait()
        await clock.advance(660)
        outcome = await workflow.outcome(20)

    assert outcome.status == "failed"
    assert "deadline" in outcome.reason


async def test_a_fault_of_a_model_reaches_the_outcome() -> None:
    async with running_team(
        TEAM, [planner, synthesizer, seller(ScriptedModel(text_reply("no", finish="refusal")))]
    ) as client:
        outcome = await (await client.submit("shop", "What does tea cost?")).outcome(20)

    assert outcome.status != "completed"
    assert "refused" in outcome.gaps[0].reason


async def test_a_part_that_cannot_start_reports_it() -> None:
    with pytest.raises(ConfigurationError, match="seller"):
        await run_team(TEAM, [planner, synthesizer, *[seller(ScriptedModel())] * 2], "hello")


async def test_unplayed_role_is_reported_before_the_run() -> None:
    with pytest.raises(ConfigurationError) as caught:
        await run_team(TEAM, [seller(ScriptedModel())], "hello")

    assert str(caught.value) == (
        "the strategy PlanAndExecute of shop needs planner and synthesizer: pass pointsman_agents.planner.planner and "
        "pointsman_agents.synthesizer.synthesizer, or agents of your own with those names"
    )


async def test_renamed_role_is_reported_for_any_of_several_teams() -> None:
    team = TEAM.model_copy(update={"strategy": PlanAndExecute(planner="dispatcher")})
    first = Team(name="first", agents=("shop",), strategy=FanOut(synthesizer=None))

    with pytest.raises(ConfigurationError, match="of shop needs dispatcher: pass dispatcher, or agents of your own"):
        await run_team([first, team], [synthesizer, seller(ScriptedModel())], "hello")


async def test_the_request_is_for_the_first_of_several_teams() -> None:
    first = Team(name="first", agents=("shop",), strategy=FanOut(synthesizer=None), limits=Limits(deadline=20))

    outcome = await run_team(
        [first, TEAM], [planner, synthesizer, seller(ScriptedModel(text_reply("4 euros")))], "What does tea cost?"
    )

    assert (outcome.status, [task.agent for task in outcome.tasks]) == ("completed", ["shop"])


async def test_every_part_gets_the_given_settings() -> None:
    settings = Settings(namespace="other", max_body=4096, shutdown_grace=0.0)

    async with running_team(
        TEAM, [planner, synthesizer, seller(ScriptedModel(text_reply("4 euros")))], settings=settings
    ) as client:
        outcome = await (await client.submit("shop", "What does tea cost?")).outcome(5)

    assert outcome.status == "completed"
    assert (client.subjects.namespace, client.bus.max_body) == ("other", 4096)
    with pytest.raises(OversizeEventError):
        await run_team(TEAM, [planner, synthesizer, seller(ScriptedModel())], "x" * 5000, settings=settings)


class Late(SupervisorEngine):
    """A supervisor that starts late."""

    async def run(self, stop: asyncio.Event) -> None:
        await asyncio.sleep(0.05)
        await super().run(stop)


async def test_a_team_is_waited_for_until_its_supervisor_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pointsman.testing.team.SupervisorEngine", Late)

    async with running_team(TEAM, [planner, synthesizer, seller(ScriptedModel())]) as client:
        assert [card.name for card in await client.operations.teams()] == ["shop"]


@pytest.mark.parametrize(
    ("ends", "said"),
    [(BusUnavailableError("it is away"), "it is away"), (None, "a part of shop ended before the team was ready")],
)
async def test_part_that_ends_early_ends_all_with_the_reason(
    ends: Exception | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(self: SupervisorEngine, stop: asyncio.Event) -> None:
        if ends is not None:
            raise ends

    monkeypatch.setattr(SupervisorEngine, "run", run)

    with pytest.raises(PointsmanError, match=said):
        await run_team(TEAM, [planner, synthesizer, seller(ScriptedModel())], "hello")

    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("model", [OpenAIModel("x", api_key="k"), AnthropicModel("x", api_key="k")])
async def test_real_model_is_not_called_even_if_errors_are_swallowed(
    model: Model,
) -> None:
    async def call() -> None:
        with forbid_real_models(), suppress(ConfigurationError):
            await model.complete(REQUEST)

    with pytest.raises(AssertionError, match=f"{model.provider}:x"):
        await call()


@pytest.mark.parametrize("server", ["http://127.0.0.1:8000/v1", "http://localhost/v1", "http://[::1]:8000/v1"])
async def test_a_server_on_this_machine_may_be_called_and_no_other(server: str) -> None:
    with forbid_real_models():
        network_guard.check_allowed("openai", "x", server)

    for other in (None, "https://models.example/v1", "http://localhost.example/v1"):
        stopped = pytest.raises(AssertionError, match="1 calls of real models were stopped: openai:x")
        with stopped, forbid_real_models(), suppress(ConfigurationError):
            network_guard.check_allowed("openai", "x", other)


async def test_nested_guards_see_their_own_calls() -> None:
    def call() -> None:
        with suppress(ConfigurationError):
            network_guard.check_allowed("openai", "x", None)

    def nested() -> None:
        with forbid_real_models():
            pass
        call()
        with pytest.raises(AssertionError, match="1 calls of real models were stopped"), forbid_real_models():
            call()

    with pytest.raises(AssertionError, match=r"2 calls of real models were stopped: openai:x$"), forbid_real_models():
        nested()


def test_real_model_may_be_called_without_a_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_guard, "ACTIVE_GUARDS", [])

    network_guard.check_allowed("openai", "x", None)


async def test_agent_keeps_its_named_model_under_a_guard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    named = LLMAgent(name="seller", description="Sells tea", instructions="Sell.", model="openai:x")

    with forbid_real_models():
        assert (named.model.provider, named.model.name) == ("openai", "x")


async def test_agents_without_a_model_are_offline_under_a_guard_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("POINTSMAN_MODEL")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    agents = [LLMAgent(name="seller", description="Sells tea", instructions="Sell."), planner, synthesizer]

    with forbid_real_models():
        outcome = await run_team(TEAM, agents, "What does tea cost?")

    assert outcome.status == "completed"
    assert {agent.model.provider for agent in agents} == {"openai"}


def test_the_plugin_guards_every_test_but_those_marked(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["pointsman.testing.pytest_plugin"]')
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "from pointsman.llm import network_guard as guard\n"
        "def test_guarded():\n"
        "    assert len(guard.ACTIVE_GUARDS) == 1\n"
        "@pytest.mark.real_model\n"
        "def test_let_through():\n"
        "    assert not guard.ACTIVE_GUARDS\n"
        "def test_calls():\n"
        "    with pytest.raises(Exception):\n"
        "        guard.check_allowed('openai', 'x', None)\n"
    )

    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--strict-markers", str(tmp_path)]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=50, check=False
    )

    assert "1 failed, 2 passed" in ran.stdout, ran.stdout
    assert "1 calls of real models were stopped: openai:x" in ran.stdout


@pytest.mark.parametrize(
    ("team", "lacks"),
    [
        (Team(name="shop", agents=("seller", "smith"), strategy=FanOut(synthesizer=None)), "an agent called smith"),
        (
            Team(name="shop", strategy=Pipeline(stages=(Stage(agent="seller"), Stage(agent="ghost")))),
            "an agent called ghost",
        ),
        (Team(name="shop", strategy=Pipeline(stages=(Stage(skill="iron"),))), "an agent with the skill iron"),
        (
            Team(name="shop", agents=("seller", "a", "b"), strategy=FanOut(skills=("iron",), synthesizer=None)),
            "an agent called a and an agent called b and an agent with the skill iron",
        ),
    ],
)
async def test_missing_agent_is_reported_before_the_run(team: Team, lacks: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        await run_team(team, [seller(ScriptedModel())], "What does tea cost?")

    assert str(caught.value) == f"the team shop needs {lacks}, which is missing; add it to the agents"


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        (FanOut(synthesizer=None), "the team shop needs an agent, which is missing"),
        (PlanAndExecute(), "the strategy PlanAndExecute of shop needs planner and synthesizer"),
    ],
)
async def test_team_without_agents_names_the_missing_ones(strategy: Strategy, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        await run_team(Team(name="shop", agents=ANY, strategy=strategy), [], "What does tea cost?")


async def test_agent_at_work_at_the_timeout_is_reported_and_not_awaited() -> None:
    @agent(name="seller", description="Sells tea")
    async def slow(text: str) -> None:
        await asyncio.Event().wait()

    team = Team(name="shop", strategy=Pipeline(stages=(Stage(agent="seller"),)), limits=Limits(deadline=20))
    began = time.perf_counter()

    with pytest.raises(TimeoutError, match=r"within 0\.05 s: an agent may still be at work"):
        await run_team(team, [slow], "What does tea cost?", timeout=0.05)

    assert time.perf_counter() - began < 5, "run_team waited for the slow agent, up to a worker's usual grace of 10 s"
