"""The log size of a task does not grow with the plan. Bytes are counted, not time."""

from __future__ import annotations

from support import factory
from support.factory import planner_of, synthesizer

from pointsman.authoring.agent import agent
from pointsman_schemas.team import Team


@agent(name="alone", description="Does one task at a time, so that hardly any two results come together", concurrency=1)
async def alone(request: str) -> str:
    return "done"


async def test_task_log_size_is_the_same_in_plans_of_200_and_1000_tasks() -> None:
    assert await bytes_for_each_of(1000) < 1.1 * await bytes_for_each_of(200)


async def bytes_for_each_of(width: int) -> float:
    """Run `width` parallel tasks whose results arrive one by one. Return the log bytes for each task."""
    tasks = [{"id": f"t{number}", "agent": "alone", "intent": f"Do part {number}"} for number in range(width)]
    async with factory.team(
        Team(name="wide", agents=("alone",)), [planner_of(*tasks), alone, synthesizer], settled=True
    ) as client:
        workflow = await client.submit("wide", "all of it")
        outcome = await workflow.outcome()
        log = client.bus.read("log", client.subjects.log("wide", workflow.id))
        commits = [len(stored.body) async for stored in log]
    assert outcome.status == "completed"
    assert len(commits) > width / 2
    return sum(commits) / width
