"""A sender without the handoff of a task can neither answer the task nor make a timer fire."""

from __future__ import annotations

import asyncio

from support import factory
from support.factory import planner_of, synthesizer
from support.handoffs import SupervisorDouble
from support.waiting import until

from pointsman.authoring.agent import agent
from pointsman.bus.memory.bus import MemoryBus
from pointsman.client.client import Client
from pointsman.client.operations import DeadLetterEntry
from pointsman.clock import SystemClock
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import Cancellation, Result
from pointsman_schemas.strict_json import dump


@agent(name="a", description="Never done")
async def silent(text: str) -> str:
    await asyncio.Event().wait()
    return text


def result_of(workflow: str, output: str) -> bytes:
    now = SystemClock().now()
    return dump(
        Result(
            workflow_id=workflow, task_id="t1", attempt=1, agent="a", status="succeeded", output=output,
            started_at=now, ended_at=now,
        )
    )  # fmt: skip


def headers(name: str) -> dict[str, str]:
    return encode(Envelope(id=name, type=Result.event_type, source="/stranger", time=SystemClock().now()))


async def letters(client: Client) -> tuple[DeadLetterEntry, ...]:
    return tuple(await client.operations.dead_letters())


async def test_result_with_a_wrong_token_is_a_dead_letter_and_the_true_result_counts() -> None:
    planner = planner_of({"id": "t1", "agent": "a", "intent": "do it"})
    async with factory.team(agents=[planner, silent, synthesizer]) as client:
        workflow = await client.submit("crew", "hello")
        place = await factory.return_to(client.bus, client.subjects.handoff("a", "crew", workflow.id, "t1", 1))
        before = await client.entries(workflow.id)

        forged = client.subjects.result("crew", "a", workflow.id, "t1", 1, "0" * 32)
        await client.bus.publish(forged, result_of(workflow.id, "forged"), headers("forged"), expect=0)
        (letter,) = await until(lambda: letters(client))
        after = await client.entries(workflow.id)
        await client.bus.publish(place, result_of(workflow.id, "true"), headers("true"), expect=0)
        outcome = await workflow.outcome(10)

    assert letter.content.cause.kind == "wrong_token"
    assert letter.subject.startswith("pointsman.dead.crew.")
    assert after == before
    assert outcome.status == "completed"
    assert [task.status for task in outcome.tasks if task.task_id == "t1"] == ["succeeded"]


async def test_worker_that_takes_a_cancellation_runs_nothing() -> None:
    ran: list[str] = []

    @agent(name="a", description="Counts")
    async def counts(request: str) -> str:
        ran.append(request)
        return "done"

    desk = SupervisorDouble(MemoryBus())
    handoff = await desk.publish_handoff("a", "cancelled")
    subject = desk.subjects.handoff("a", "team", handoff.workflow_id, handoff.task_id, handoff.attempt)
    envelope = Envelope(id="c1", type=Cancellation.event_type, source="/pointsman/team/team", time=desk.clock.now())
    cancellation = Cancellation(tasks=(handoff.task_id,), attempts=(handoff.attempt,))
    await desk.bus.replace(subject, dump(cancellation), encode(envelope))

    async with factory.running(factory.worker(desk.bus, counts)):
        other = await desk.publish_handoff("a", "wanted", task="T2")
        await desk.result(other)
        await until(lambda: desk.settled("a"))

    assert ran == ["wanted"]
    assert await desk.find_result(handoff) is None
    assert await desk.bus.last("dead", ">") is None
