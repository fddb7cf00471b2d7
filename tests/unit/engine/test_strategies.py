"""Each strategy runs on the memory bus with the real engines, from a request to its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any

import pytest
from support import factory
from support.factory import echo, planner_of, synthesizer

from pointsman.authoring.agent import agent
from pointsman.authoring.context import Context
from pointsman.bus.memory.bus import MemoryBroker, MemoryBus
from pointsman.client.client import Client
from pointsman.core.views.trace import TraceNode
from pointsman.engine.process.heartbeat import team_card
from pointsman.errors import NotFoundError, TaskError
from pointsman_schemas.card import Role
from pointsman_schemas.ids import child_id_for
from pointsman_schemas.log import TaskDispatched
from pointsman_schemas.plan import SelectedAgent, Selection
from pointsman_schemas.role_io import ClassifierInput
from pointsman_schemas.team import Check, Choreography, FanOut, Limits, Pipeline, PlanAndExecute, Router, Stage, Team


async def test_stage_fixes_its_output_with_the_feedback() -> None:
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
    async with factory.team(Team(name="letters", strategy=Pipeline(stages=stages)), [extract, write]) as client:
        outcome = await (await client.submit("letters", "write to me")).outcome(10)

    assert (outcome.status, outcome.answer) == ("completed", "Dear C-1")
    assert heard == ["", "the output lacks customer, or has an empty value there"]
    assert {task.task_id: task.attempts for task in outcome.tasks} == {"extract": 2, "write": 1}


async def test_members_work_side_by_side_and_are_merged() -> None:
    members = [echo("one"), echo("two"), echo("three")]
    team = Team(name="panel", agents=("one", "two", "three"), strategy=FanOut())

    async with factory.team(team, [*members, synthesizer]) as client:
        outcome = await (await client.submit("panel", {"request": "what do you say?"})).outcome(10)

    assert (outcome.status, outcome.answer) == ("completed", "joined")
    assert [task.agent for task in outcome.tasks] == ["one", "two", "three", "synthesizer"]


DESK = Team(
    name="desk",
    agents=("refunds", "one"),
    strategy=FanOut(synthesizer=None, min_success_ratio=0.1),
    limits=Limits(deadline=20),
)


async def test_nested_teams_share_one_trace() -> None:
    refunds = Team(name="refunds", strategy=Pipeline(stages=(Stage(agent="two"),)))

    async with factory.team([DESK, refunds], [echo("one"), echo("two")]) as client:
        workflow = await client.submit("desk", "may we?", correlation_id="order-7")
        outcome = await workflow.outcome(10)
        child = await client.workflow(child_id_for("refunds", workflow.id, "refunds", 1))
        below = await child.outcome(10)
        tree = await client.trace(workflow.id)

    assert outcome.status == "completed"
    assert isinstance(outcome.answer, dict)
    assert outcome.answer["refunds"] == below.answer
    assert (below.trace_id, below.correlation_id) == (outcome.trace_id, "order-7")
    assert below.caller == "team:desk"  # different from a user of the broker with the name `desk`
    names = [node.name for node in walk(tree)]
    assert (
        names.index("invoke_agent refunds") < names.index("invoke_workflow refunds") < names.index("invoke_agent two")
    )


async def test_failure_in_a_child_is_named_in_the_parent() -> None:
    @agent(name="two", description="Cannot")
    async def two() -> str:
        raise TaskError("the ledger is closed")

    refunds = Team(name="refunds", strategy=Pipeline(stages=(Stage(agent="two"),)))
    async with factory.team([DESK, refunds], [echo("one"), two]) as client:
        outcome = await (await client.submit("desk", "may we?")).outcome(10)

    assert outcome.status == "partial"
    assert outcome.gaps[0].task_id == "refunds"
    assert "the ledger is closed" in outcome.gaps[0].reason


async def test_cancel_of_a_parent_cancels_its_children() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    @agent(name="two", description="Takes its time")
    async def two() -> str:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return "too late"

    refunds = Team(name="refunds", strategy=Pipeline(stages=(Stage(agent="two"),)))
    async with factory.team([DESK, refunds], [echo("one"), two]) as client:
        workflow = await client.submit("desk", "may we?")
        await began.wait()
        await workflow.cancel("a mistake", actor="ops")
        outcome = await workflow.outcome(10)
        child = await client.workflow(child_id_for("refunds", workflow.id, "refunds", 1))
        below = await child.outcome(10)
        async with asyncio.timeout(10):
            await ended.wait()

    assert (outcome.status, below.status) == ("cancelled", "cancelled")
    assert below.reason == f"cancelled by desk: {workflow.id}: cancelled by ops: a mistake"


async def test_a_team_that_hands_to_itself_ends_at_its_depth() -> None:
    again = Team(
        name="again", agents=("again",), strategy=FanOut(synthesizer=None), limits=Limits(deadline=20, nesting=2)
    )

    async with factory.team(again, [echo("one")]) as client:
        outcome = await (await client.submit("again", "and again")).outcome(10)

    assert outcome.status == "failed"
    assert "again has 3 teams above it; at most 2 are allowed" in outcome.reason


async def test_a_child_cancelled_before_it_began_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lost(*_: object, **__: object) -> int:
        """Do nothing, like a supervisor that died before the cancellation. So a worker may process the handoff."""
        return 0

    monkeypatch.setattr(MemoryBus, "replace", lost)
    ran: list[str] = []

    @agent(name="two", description="Should not be asked")
    async def two() -> str:
        ran.append("two")
        return "too late"

    refunds = Team(name="refunds", strategy=Pipeline(stages=(Stage(agent="two"),)))
    async with factory.team([DESK, Team(name="other")], [echo("one"), two]) as client:
        assert isinstance(client.bus, MemoryBus)
        broker = client.bus.broker
        # Its supervisor has left, but its card is still there.
        await client.bus.registry.announce(team_card(refunds, datetime.now(UTC), "one"))
        workflow = await client.submit("desk", "may we?")
        while "refunds" not in {task.task_id for task in await handed(client, workflow.id)}:
            await asyncio.sleep(0.01)
        await workflow.cancel("a mistake")
        await workflow.outcome(10)
        async with supervising(broker, refunds):
            child = factory.workflow_of(client, child_id_for("refunds", workflow.id, "refunds", 1), "refunds")
            below = await child.outcome(10)

    assert (below.status, ran) == ("cancelled", [])


async def handed(client: Client, workflow: str) -> list[TaskDispatched]:
    try:
        entries = await client.entries(workflow)
    except NotFoundError:
        return []
    return [entry for entry in entries if isinstance(entry, TaskDispatched)]


def supervising(broker: MemoryBroker, team: Team) -> AbstractAsyncContextManager[asyncio.Event]:
    return factory.running(factory.supervisor(broker.connect(), team), ready=False)


def walk(node: TraceNode) -> Iterator[TraceNode]:
    yield node
    for child in node.children:
        yield from walk(child)


async def test_router_supervisor_and_pipeline_are_one_workflow_to_the_caller() -> None:
    @agent(name="classifier", description="Sends everything to support", role=Role.CLASSIFY)
    async def classifier(asked: ClassifierInput) -> Selection:
        return Selection(agents=(SelectedAgent(agent=asked.agents[0].name, confidence=0.9),))

    @agent(name="write", description="Writes what was found")
    async def write(request: dict[str, Any], context: Context) -> str:
        return f"Found: {context.results['look'].output}"

    front = Team(name="front", agents=("support",), strategy=Router())
    support = Team(name="support", agents=("refunds",), strategy=PlanAndExecute(synthesizer=None))
    refunds = Team(
        name="refunds", strategy=Pipeline(stages=(Stage(agent="look"), Stage(agent="write", check=Check(min_length=5))))
    )
    plan = planner_of({"id": "t1", "agent": "refunds", "intent": "refund charge 7"})
    async with factory.team([front, support, refunds], [classifier, plan, echo("look"), write]) as client:
        workflow = await client.submit("front", "I was charged twice")
        outcome = await workflow.outcome(10)
        tree = await client.trace(workflow.id)

    assert outcome.status == "completed"
    assert str(outcome.answer).startswith("Found: look: ")
    levels = [node.name for node in walk(tree) if node.kind == "workflow"]
    assert levels == ["invoke_workflow front", "invoke_workflow support", "invoke_workflow refunds"]


async def test_agents_that_know_only_events_make_one_history() -> None:
    @agent(name="verify", description="Looks at charges", reacts_to=["requested"])
    async def verify(request: dict[str, Any], context: Context) -> str:
        await context.emit("charge_verified", {"charge": request["charge"]})
        return "it was charged twice"

    @agent(name="refund", description="Refunds", reacts_to=["charge_verified"])
    async def refund(charge: dict[str, Any], context: Context) -> str:
        return f"{context.event}: refunded {charge['charge']}"

    team = Team(name="events", strategy=Choreography())
    async with factory.team(team, [verify, refund]) as client:
        workflow = await client.submit("events", {"charge": 7}, correlation_id="order-7")
        outcome = await workflow.outcome(10)
        emitted = [report.name for report in await client.progress(workflow.id)]

    assert outcome.answer == {
        "verify-requested": "it was charged twice",
        "refund-charge_verified": "charge_verified: refunded 7",
    }
    assert outcome.correlation_id == "order-7"
    assert emitted == ["charge_verified"]
