"""Each strategy over the in-memory bus, with the real engines: from a request to its outcome."""

from __future__ import annotations

from typing import Any

from support.memory import on_memory
from support.system import echo, synthesizer

from pointsman.agent import agent
from pointsman.context import Context
from pointsman_schemas.team import Check, FanOut, Pipeline, Stage, Team


async def test_a_stage_that_is_told_what_is_missing_mends_it() -> None:
    heard: list[str] = []

    @agent(name="extract", description="Finds the customer, on the second look")
    async def extract(request: dict[str, Any], context: Context) -> dict[str, str]:
        heard.append(context.feedback)
        return {"customer": "C-1"} if context.feedback else {}

    @agent(name="write", description="Writes to the customer")
    async def write(request: dict[str, Any], context: Context) -> str:
        found: Any = context.results["extract"].output
        return f"Dear {found['customer']}"

    stages = (Stage(agent="extract", check=Check(fields=("customer",))), Stage(agent="write"))
    async with on_memory(Team(name="letters", strategy=Pipeline(stages=stages)), [extract, write]) as client:
        outcome = await (await client.submit("letters", "write to me")).outcome(10)

    assert (outcome.status, outcome.answer) == ("completed", "Dear C-1")
    assert heard == ["", "the output lacks customer, or has nothing there"]
    assert {task.task_id: task.attempts for task in outcome.tasks} == {"extract": 2, "write": 1}


async def test_members_work_side_by_side_and_are_merged() -> None:
    members = [echo("one"), echo("two"), echo("three")]
    team = Team(name="panel", agents=("one", "two", "three"), strategy=FanOut())

    async with on_memory(team, [*members, synthesizer]) as client:
        outcome = await (await client.submit("panel", {"request": "what do you say?"})).outcome(10)

    assert (outcome.status, outcome.answer) == ("completed", "joined")
    assert [task.agent for task in outcome.tasks] == ["one", "two", "three", "synthesizer"]
