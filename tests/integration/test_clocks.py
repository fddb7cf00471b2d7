"""On a real broker, processes meet every deadline, although their clocks are an hour wrong and jump while they run."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

from support import factory
from support.broker import remove_streams
from support.factory import planner_of
from support.waiting import until

from pointsman.authoring.agent import agent
from pointsman.authoring.context import Context
from pointsman.clock import SystemClock
from pointsman.errors import TaskError
from pointsman.settings import Settings
from pointsman_schemas.events import Outcome
from pointsman_schemas.team import Limits, PlanAndExecute, RetryPolicy, Team

TEAM = Team(
    name="crew", strategy=PlanAndExecute(synthesizer=None), limits=Limits(deadline=6), retry=RetryPolicy(backoff=0.3)
)
PLAN = ({"id": "t1", "agent": "mends", "intent": "do it"}, {"id": "t2", "agent": "silent", "intent": "do it"})


class SetClock(SystemClock):
    """A clock with a wrong wall time and a correct monotonic time."""

    def __init__(self, off: float) -> None:
        self.off = timedelta(seconds=off)

    def now(self) -> datetime:
        return super().now() + self.off


@agent(name="mends", description="Fails at first")
async def mends(text: str, context: Context) -> str:
    if context.handoff.attempt == 1:
        raise TaskError("not yet", retryable=True)
    return "mended"


@agent(name="silent", description="Never done")
async def silent(text: str) -> str:
    await asyncio.Event().wait()
    return text


async def test_deadlines_backoff_and_heartbeats_are_as_long_as_they_are(settings: Settings) -> None:
    apart = [settings.model_copy(update={"namespace": settings.namespace + letter}) for letter in "ab"]

    ended = await asyncio.gather(*(played(each, off) for each, off in zip(apart, (-3600.0, 3600.0), strict=True)))

    for outcome in ended:
        assert (outcome.status, outcome.answer) == ("partial", "mended")
        assert "deadline" in outcome.reason + str(outcome.gaps)
        assert 6 <= outcome.elapsed < 60


async def played(settings: Settings, off: float) -> Outcome:
    """Run a workflow with a supervisor's clock that is wrong by `off` seconds, and a worker's clock wrong by `-off`.

    Return the outcome. Wait for the agents' cards, which expire in 3 s without heartbeats: a delay of this process
    may also interrupt the heartbeats.
    """
    ours, theirs = SetClock(off), SetClock(-off)
    agents = [planner_of(*PLAN), mends, silent]
    on = settings.model_copy(update={"grace": 0.0, "heartbeat": 1.0})
    async with factory.team(TEAM, agents, on=on, supervisor_clock=ours, worker_clock=theirs) as client:
        workflow = await client.submit("crew", "hello")
        await until(lambda: client.bus.last("work", client.subjects.agent_handoffs("silent")))
        ours.off, theirs.off = -ours.off, -theirs.off  # set both clocks while the processes run
        outcome = await workflow.outcome(40)

        async def announced() -> bool:
            return {"planner", "mends", "silent"} <= {card.name for card in await client.operations.agents()}

        await until(announced)
    await remove_streams(settings)
    return outcome
