"""Mechanisms of docs/patterns.md that only a whole team can show, on the memory bus."""

from __future__ import annotations

import asyncio

import pytest

from pointsman.authoring.agent import agent
from pointsman.authoring.context import Context
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.testing import run_team, running_team
from pointsman.testing.models import ScriptedModel, text_reply
from pointsman_agents.judge import judge
from pointsman_agents.planner import planner
from pointsman_agents.refiner import refiner
from pointsman_agents.synthesizer import synthesizer
from pointsman_schemas.card import Role
from pointsman_schemas.log import PlanAccepted, TaskDispatched
from pointsman_schemas.plan import Plan, PlannedTask
from pointsman_schemas.role_io import PlannerInput
from pointsman_schemas.team import Limits, Team

TEAM = Team(name="crew", agents=("tides", "winds", "stars"), limits=Limits(deadline=20))


def plan_of(*agents: str) -> Plan:
    tasks = (PlannedTask(id=f"t{number}", agent=name, intent=f"Ask {name}") for number, name in enumerate(agents, 1))
    return Plan(goal="know it", tasks=tuple(tasks))


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_MODEL", "offline")


async def test_plan_and_revisions_are_readable_before_their_tasks_run() -> None:
    at_work, go_on = asyncio.Event(), asyncio.Event()

    @agent(name="planner", description="Plans", role=Role.PLAN)
    async def two_plans(asked: PlannerInput) -> Plan:
        if asked.results:
            return Plan(goal="know it", tasks=(PlannedTask(id="t9", agent="winds", intent="Ask the winds"),))
        return plan_of("tides")

    @agent(name="tides", description="Knows the tides")
    async def tides(context: Context) -> str:
        at_work.set()
        await go_on.wait()
        context.replan("it is the wind")
        return "low"

    @agent(name="winds", description="Knows the winds")
    async def winds(context: Context) -> str:
        return "strong"

    team = Team(name="crew", agents=("tides", "winds"), limits=Limits(deadline=20, replans=1))
    async with running_team(team, [two_plans, tides, winds, synthesizer]) as client:
        workflow = await client.submit("crew", "May we sail?")
        async with asyncio.timeout(10):
            await at_work.wait()
        while_it_runs = await client.entries(workflow.id)
        go_on.set()
        await workflow.outcome(10)
        entries = await client.entries(workflow.id)

    assert [[task.id for task in each.plan.tasks] for each in while_it_runs if isinstance(each, PlanAccepted)] == [
        ["t1"]
    ]
    order = [
        (each.revision if isinstance(each, PlanAccepted) else each.task_id)
        for each in entries
        if isinstance(each, PlanAccepted) or (isinstance(each, TaskDispatched) and each.task_id in ("t1", "t9"))
    ]
    assert order == [1, "t1", 2, "t9"]


async def test_planner_and_synthesizer_have_a_prompt_a_model_and_a_context_each() -> None:
    plans, writes = (
        ScriptedModel(text_reply(plan_of("tides").model_dump(mode="json"))),
        ScriptedModel(text_reply({"answer": "ok"})),
    )

    @agent(name="tides", description="Knows the tides of the southern sea")
    async def tides(context: Context) -> str:
        return "low at noon"

    roles = [planner.with_model(plans), synthesizer.with_model(writes)]
    outcome = await run_team(TEAM.model_copy(update={"agents": ("tides",)}), [*roles, tides], "Sail?")

    (planned,), (written) = plans.requests, writes.requests
    assert outcome.answer == "ok"
    assert "the southern sea" in planned.turns[0].text
    assert "low at noon" not in planned.turns[0].text
    assert "low at noon" in written[0].turns[0].text
    assert "the southern sea" not in written[0].turns[0].text
    assert planned.instructions != written[0].instructions


@pytest.mark.parametrize("count", [1, 3])
async def test_successful_tasks_cost_one_model_call_each_and_two_more(count: int) -> None:
    members = [
        LLMAgent(name=name, description=f"Knows the {name}", instructions="Say what you know.", model="offline")
        for name in TEAM.agents
    ]
    plan = plan_of(*TEAM.agents[:count]).model_dump(mode="json")

    roles = [planner.with_model(ScriptedModel(text_reply(plan))), synthesizer.with_model("offline"), judge, refiner]
    outcome = await run_team(TEAM, [*roles, *members], "Sail?")

    assert outcome.status == "completed"
    assert outcome.usage.calls == count + 2  # without calls of the live judge and refiner, because nothing failed
    assert [task.usage.calls for task in outcome.tasks] == [1] * (count + 2)
