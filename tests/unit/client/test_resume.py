"""Resume an ended workflow through the client, with real supervisors and workers on the memory bus."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime, timedelta

import pytest
from support import factory
from support.asgi import request
from support.factory import CREW, ONE_TASK, RunningTeam, planner_of, synthesizer
from support.waiting import until

from pointsman.authoring.agent import Agent, agent
from pointsman.client.workflow import Workflow
from pointsman.clock import SystemClock
from pointsman.engine.log.reader import as_async_generator
from pointsman.engine.operations.archive_reader import check_archive
from pointsman.engine.operations.resume import NotResumableError
from pointsman.engine.supervisor import retention
from pointsman.engine.supervisor.retention import RetentionJob
from pointsman.errors import NotFoundError, TaskError
from pointsman.settings import Settings
from pointsman.web.dashboard import Dashboard
from pointsman_schemas.card import Role
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import Handoff, Result
from pointsman_schemas.ids import outcome_id
from pointsman_schemas.log import WorkflowEnded, WorkflowResumed
from pointsman_schemas.role_io import Synthesis, SynthesizerInput
from pointsman_schemas.strict_json import dump, parse
from pointsman_schemas.team import Limits, Pipeline, RetryPolicy, Stage, Team

pytestmark = pytest.mark.asyncio

ONCE = CREW.model_copy(update={"retry": RetryPolicy(attempts=1)})
TWO_TASKS = ({"id": "good", "agent": "good", "intent": "work"}, {"id": "bad", "agent": "bad", "intent": "break"})


class Repairable:
    """An agent `bad` that fails until `repaired` is set. `runs` counts its attempts."""

    def __init__(self) -> None:
        self.repaired = False
        self.runs = 0

        @agent(name="bad", description="Fails until it is repaired")
        async def bad(request: str) -> str:
            self.runs += 1
            if not self.repaired:
                raise TaskError("not repaired", retryable=False)
            return "repaired"

        self.agent = bad


def crew(bad: Agent) -> list[Agent]:
    return [planner_of(*TWO_TASKS), factory.echo("good"), bad, synthesizer]


async def ended(client: RunningTeam, status: str = "partial") -> Workflow:
    workflow = await client.submit("crew", "hello")
    assert (await workflow.outcome(20)).status == status
    return workflow


async def resumes_of(client: RunningTeam, workflow: Workflow) -> int:
    return sum(isinstance(entry, WorkflowResumed) for entry in await client.entries(workflow.id))


@pytest.mark.parametrize("supervisors", [1, 2])
async def test_resumed_workflow_gets_a_second_outcome_and_loses_its_letters(supervisors: int) -> None:
    bad = Repairable()
    async with factory.team(ONCE, crew(bad.agent), supervisors=supervisors, settled=True) as client:
        workflow = await ended(client)
        assert len(await client.operations.dead_letters(workflow=workflow.id)) == 1
        bad.repaired = True

        resumed = await workflow.resume("it is repaired", actor="ops")
        outcome = await workflow.outcome(20)

        assert (resumed.round, resumed.tasks, resumed.by) == (2, ("bad",), "ops")
        assert (outcome.status, outcome.round, bad.runs) == ("completed", 2, 2)
        assert await client.operations.dead_letters(workflow=workflow.id) == ()
        assert (await (await client.workflow(workflow.id)).outcome(5)).round == 2
        (summary,) = await client.list()
        assert summary.status == "completed"
        rounds = [event.outcome.round async for event in workflow.events() if isinstance(event, WorkflowEnded)]
        assert rounds == [1, 2]
        (record,) = await client.operations.audit()
        assert (record.actor, record.content.action, record.content.reason) == ("ops", "resume", "it is repaired")


async def test_simultaneous_resumes_start_one_round() -> None:
    bad = Repairable()
    async with factory.team(ONCE, crew(bad.agent), supervisors=2, settled=True) as client:
        workflow = await ended(client)
        bad.repaired = True

        all_of_them = await asyncio.gather(*(client.operations.resume(workflow.id, actor=f"p{n}") for n in range(5)))
        await (await client.workflow(workflow.id)).outcome(20)

        assert {(done.round, done.by) for done in all_of_them} == {(2, all_of_them[0].by)}
        assert await resumes_of(client, workflow) == 1


async def test_workflow_is_resumed_as_often_as_it_fails() -> None:
    bad = Repairable()
    async with factory.team(ONCE, crew(bad.agent), settled=True) as client:
        workflow = await ended(client)
        for round in (2, 3):
            assert (await workflow.resume()).round == round
            assert (await workflow.outcome(20)).round == round

        assert [letter.content.attempts for letter in await client.operations.dead_letters(workflow=workflow.id)] == [3]


async def test_task_that_was_stopped_at_the_deadline_runs_again_on_the_same_worker() -> None:
    """Cancelling an attempt does not stop a later attempt of the same task."""
    patient = asyncio.Event()

    @agent(name="a", description="Waits until it may continue")
    async def slow(request: str) -> str:
        await patient.wait()
        return "done"

    team = Team(name="crew", limits=Limits(deadline=0.5), retry=RetryPolicy(attempts=1))
    async with factory.team(team, [planner_of(ONE_TASK), slow, synthesizer], settled=True) as client:
        workflow = await ended(client, "failed")
        patient.set()

        await workflow.resume()

        assert (await workflow.outcome(20)).status == "completed"


async def test_workflows_that_cannot_be_resumed_report_the_reason() -> None:
    async with factory.team(CREW, [planner_of(ONE_TASK), factory.echo("a"), synthesizer], settled=True) as client:
        workflow = await ended(client, "completed")

        with pytest.raises(NotResumableError, match="ended as completed"):
            await client.operations.resume(workflow.id)
        refused = await client.submit("crew", "work", files=[("a.txt", b"1"), ("a.txt", b"2")])
        assert (await refused.outcome(10)).status == "failed"
        with pytest.raises(NotResumableError, match=r"two files are called 'a.txt'.* correct the files"):
            await client.operations.resume(refused.id)
        with pytest.raises(NotFoundError):
            await client.operations.resume("wf_nothing")


async def test_resume_without_a_supervisor_is_kept_for_the_next_one() -> None:
    bad = Repairable()
    async with factory.team(ONCE, crew(bad.agent)) as client:
        workflow = await ended(client)
    bad.repaired = True
    with pytest.raises(NotResumableError, match="if no supervisor runs"):
        await client.operations.resume(workflow.id, timeout=0.1)

    async with factory.team(ONCE, crew(bad.agent), broker=client.broker, settled=True) as second:
        follower = factory.workflow_of(second, workflow.id)
        follower.round = 2
        assert (await follower.outcome(20)).status == "completed"


async def test_late_outcome_of_the_round_before_is_withdrawn() -> None:
    """Publish the outcome of round 1 while round 2 runs, as a slow supervisor may."""
    bad, writing = Repairable(), asyncio.Event()

    @agent(name="synthesizer", description="Joins the results", role=Role.SYNTHESIZE)
    async def write(asked: SynthesizerInput) -> Synthesis:
        if not asked.gaps:
            await writing.wait()
        return Synthesis(answer="joined")

    members = [planner_of(*TWO_TASKS), factory.echo("good"), bad.agent, write]
    async with factory.team(ONCE, members, settled=True) as client:
        workflow = await ended(client)
        late = await client.bus.last("log", client.subjects.outcome("crew", workflow.id))
        assert late is not None
        bad.repaired = True
        await workflow.resume()
        subject = client.subjects.outcome("crew", workflow.id)
        while (there := await client.bus.last("log", subject)) is not None:
            assert there.sequence == late.sequence
            await asyncio.sleep(0.01)
        await client.bus.publish(subject, late.body, dict(late.headers), expect=0)

        writing.set()

        assert (await workflow.outcome(20)).round == 2
        found = [stored async for stored in client.bus.read("log", subject)]
        assert [stored.headers["ce-id"] for stored in found] == [outcome_id(workflow.id, 2)]


async def test_retention_keeps_a_resumed_workflow_also_beside_its_old_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bad = Repairable()
    async with factory.team(ONCE, crew(bad.agent), settled=True) as client:
        workflow = await ended(client)
        old = await client.bus.last("log", client.subjects.outcome("crew", workflow.id))
        assert old is not None
    with pytest.raises(NotResumableError):
        await client.operations.resume(workflow.id, timeout=0.05)

    members = [planner_of(*TWO_TASKS), factory.echo("good"), synthesizer]
    async with factory.team(ONCE, members, broker=client.broker) as again:

        async def is_resumed() -> bool:
            return await resumes_of(again, workflow) == 1

        await until(is_resumed)
        subject = again.subjects.outcome("crew", workflow.id)

        async def is_withdrawn() -> bool:
            return await again.bus.last("log", subject) is None

        await until(is_withdrawn)
        await again.bus.publish(subject, old.body, dict(old.headers), expect=0)
        monkeypatch.setattr(retention, "_WORK_RETENTION", timedelta())
        job = RetentionJob(again.bus, again.subjects, SystemClock(), "crew", 0.0)
        await job.apply()

        assert (await again.entries(workflow.id))[0].kind == "workflow_started"


async def test_export_of_a_resumed_workflow_can_be_imported() -> None:
    bad = Repairable()
    async with factory.team(ONCE, crew(bad.agent), settled=True) as client:
        workflow = await ended(client)
        bad.repaired = True
        await workflow.resume()
        await workflow.outcome(20)

        archive = await client.operations.export_workflow(workflow.id)

        check_archive(archive)
        outcomes = [record for record in archive.records if ".outcome." in record.subject]
        assert len(outcomes) == 1


async def test_dashboard_resumes_a_workflow_and_refuses_one_that_is_done() -> None:
    bad = Repairable()
    async with factory.team(ONCE, crew(bad.agent), settled=True) as client:
        workflow = await ended(client)
        bad.repaired = True
        dashboard = await Dashboard.open(client, Settings())
        action = f"/api/workflows/{workflow.id}/resume"

        resumed = await request(dashboard.app, "POST", action, {"reason": "repaired"})
        follower = await client.workflow(workflow.id)
        assert (await follower.outcome(20)).status == "completed"
        refused = await request(dashboard.app, "POST", action, {})

        assert (resumed.status, resumed.json["round"], resumed.json["tasks"]) == (200, 2, ["bad"])
        assert (refused.status, refused.json["kind"]) == (409, "not_resumable")


async def test_result_that_comes_after_the_end_is_kept_where_a_person_looks() -> None:
    """Publish the result after the deadline of the workflow, like a worker that had no connection for some time."""
    stages = Pipeline(stages=(Stage(agent="a"),))
    team = Team(name="crew", strategy=stages, limits=Limits(deadline=0.5), retry=RetryPolicy(attempts=1))
    async with factory.team(team, [synthesizer], settled=True) as client:
        await client.bus.consumer("agent-a", "handoffs", client.subjects.agent_handoffs("a"), ack_wait=30)
        followed = aclosing(as_async_generator(client.bus.follow("handoffs", [client.subjects.agent_handoffs("a")])))
        workflow = await client.submit("crew", "hello")
        async with followed as handoffs:
            handoff = parse(Handoff, (await anext(handoffs)).body)
        assert (await workflow.outcome(20)).status == "failed"
        now = datetime.now(UTC)
        result = Result(
            workflow_id=workflow.id, task_id="a", attempt=1, agent="a", status="succeeded", output="at last",
            started_at=now, ended_at=now,
        )  # fmt: skip
        envelope = Envelope(id="late", type=Result.event_type, source="/a", time=now, subject=workflow.id)
        await client.bus.publish(handoff.return_to, dump(result), encode(envelope))

        async def letters() -> list[str]:
            found = await client.operations.dead_letters(workflow=workflow.id)
            return [each.content.cause.message for each in found if each.content.cause.kind == "late_result"]

        (said,) = await until(letters)

        assert "the result of attempt 1 at a by a came after the workflow had ended as failed" in said
