"""The refiner, the judge and the reviewer work in a team on the memory bus, with the real engines and offline."""

from __future__ import annotations

import pytest

from pointsman.authoring.agent import Agent, agent
from pointsman.authoring.context import Context
from pointsman.errors import TaskError
from pointsman.testing import run_team
from pointsman_agents.judge import judge
from pointsman_agents.refiner import refiner
from pointsman_agents.reviewer import reviewer
from pointsman_agents.synthesizer import synthesizer
from pointsman_schemas.strategies import Check, FanOut, Pipeline, Stage
from pointsman_schemas.team import Limits, RetryPolicy, Team

LIMITS, RETRY = Limits(deadline=20), RetryPolicy(backoff=0.01)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_MODEL", "offline")


def calendar(name: str, day: str) -> Agent:
    @agent(name=name, description=f"Knows the calendar of {name}")
    async def look(context: Context) -> dict[str, str]:
        return {"due": day}

    return look


async def test_a_contradiction_is_decided_and_the_outcome_has_the_reason() -> None:
    members = [calendar("sales", "Monday"), calendar("legal", "Friday"), calendar("ops", "Friday")]
    team = Team(name="dates", agents=("sales", "legal", "ops"), strategy=FanOut(), limits=LIMITS, retry=RETRY)

    outcome = await run_team(team, [*members, synthesizer, judge], "When is it due?")

    assert outcome.status == "completed"
    assert [(each.decision, each.reason) for each in outcome.conflicts] == [("due: Friday", "2 of 3 say so")]


async def test_a_task_that_failed_twice_succeeds_in_better_words() -> None:
    heard: list[str] = []

    @agent(name="clerk", description="Files reports")
    async def clerk(context: Context) -> str:
        heard.append(context.handoff.intent)
        if "no form was named" not in context.handoff.intent:
            raise TaskError("no form was named", retryable=True)
        return "filed"

    team = Team(name="office", agents=("clerk",), strategy=FanOut(synthesizer=None), limits=LIMITS, retry=RETRY)

    outcome = await run_team(team, [clerk, refiner], "File the report")

    assert outcome.status == "completed"
    assert len(heard) == 3
    assert heard[0] == heard[1]
    assert heard[2].startswith(heard[0])


async def test_stage_passes_once_it_heeds_the_review() -> None:
    heard: list[str] = []

    @agent(name="look", description="Looks up the charge")
    async def look(context: Context) -> str:
        return "ch-5003 over $49.00"

    @agent(name="write", description="Writes the letter")
    async def write(context: Context) -> str:
        heard.append(context.feedback)
        return "Your charge ch-5003 over $49.00 is paid back" + (" within 3 days." if len(heard) == 1 else ".")

    check = Check(judge="reviewer", criteria="Every figure in it stands in a result")
    stages = (Stage(agent="look"), Stage(agent="write", check=check))
    team = Team(name="letters", strategy=Pipeline(stages=stages), limits=LIMITS, retry=RETRY)

    outcome = await run_team(team, [look, write, reviewer], "Write to the customer")

    assert (outcome.status, outcome.answer) == ("completed", "Your charge ch-5003 over $49.00 is paid back.")
    said = "3 stands in no result and not in the request; leave out what does not"
    assert heard == ["", f"reviewer returned the output: {said}"]
