"""Archives of workflows that ran: one has a failure, and one has nested workflows."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from support import factory
from support.factory import echo, planner_of, synthesizer
from support.waiting import until

from pointsman import Context, agent
from pointsman.authoring.agent import Agent
from pointsman.engine.operations.archive import Archive
from pointsman.engine.operations.archive_export import export_workflow
from pointsman.errors import TaskError
from pointsman.testing import running_team
from pointsman_schemas.team import Limits, Pipeline, RetryPolicy, Stage, Team

TEAM = Team(name="crew", limits=Limits(deadline=30), retry=RetryPolicy(attempts=1))


@agent(name="lost", description="Cannot do it")
async def lost(request: str, context: Context) -> str:
    context.progress("looking")
    raise TaskError("nothing there")


@pytest.fixture
async def archive() -> Archive:
    """Return a workflow with a result, a report, a failure and its dead letter."""
    agents: list[Agent] = [
        planner_of({"id": "t1", "agent": "a", "intent": "help"}, {"id": "t2", "agent": "lost", "intent": "find"}),
        synthesizer, echo("a"), lost,
    ]  # fmt: skip
    async with factory.team(TEAM, agents, settled=True) as client:
        workflow = await client.submit("crew", "h\u00e9llo")
        await workflow.outcome(20)
        return await export_workflow(client.bus, client.subjects, workflow.id, datetime.now(UTC))


@pytest.fixture
async def family() -> Archive:
    """Return a workflow with a nested team whose workflow has a nested team."""
    desk = Team(name="desk", agents=("refunds",), strategy=Pipeline(stages=(Stage(agent="refunds"),)))
    refunds = Team(name="refunds", strategy=Pipeline(stages=(Stage(agent="books"), Stage(agent="a"))))
    books = Team(name="books", strategy=Pipeline(stages=(Stage(agent="b"),)))
    async with running_team([desk, refunds, books], [echo("a"), echo("b")]) as client:
        workflow = await client.submit("desk", "charge 7")
        assert (await workflow.outcome(20)).status == "completed"
        return await export_workflow(client.bus, client.subjects, workflow.id, datetime.now(UTC))


@pytest.fixture
async def approval_archive() -> Archive:
    """Return a workflow that waits for a person."""

    @agent(name="payer", description="Pays", approval="required")
    async def payer(request: str) -> str:
        return "paid"

    planner = planner_of({"id": "t1", "agent": "payer", "intent": "pay"})
    async with factory.team(TEAM, [planner, synthesizer, payer]) as client:
        workflow = await client.submit("crew", "pay 7")

        async def asked() -> bool:
            return bool(await client.operations.questions())

        await until(asked)
        return await export_workflow(client.bus, client.subjects, workflow.id, datetime.now(UTC))
