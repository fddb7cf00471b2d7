"""Handwritten logs: the entries of a workflow, written as `at` and the events."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from pointsman.ports.bus import Bus
from pointsman_schemas.card import Role
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import AttemptError, Outcome, Progress, Result, Usage
from pointsman_schemas.log import (
    AttemptFailed,
    Commit,
    Entry,
    PlanAccepted,
    RetryScheduled,
    TaskAdded,
    TaskDispatched,
    TaskFailed,
    TaskSkipped,
    TaskSucceeded,
    TraceOrigin,
    WorkflowEnded,
    WorkflowStarted,
)
from pointsman_schemas.plan import Plan, PlannedTask
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.team import Limits, PlanAndExecute, RetryPolicy

__all__ = ["START", "WORKFLOW", "at", "completed", "failing", "started", "store", "tool"]

START = datetime(2026, 1, 31, 12, tzinfo=UTC)
WORKFLOW = "wf_0123456789abcdef01234567"
TEAM = "crew"


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def started(
    workflow: str = WORKFLOW, *, seconds: float = 0, input: Any = "mend it", team: str = TEAM
) -> WorkflowStarted:
    return WorkflowStarted(
        at=at(seconds),
        workflow_id=workflow,
        team=team,
        request_id="r-1",
        correlation_id="c-1",
        caller="ada",
        secret="7f3c",
        input=input,
        strategy=PlanAndExecute(),
        limits=Limits(),
        retry=RetryPolicy(),
        deadline=at(seconds + 600),
        trace=TraceOrigin(trace_id="a" * 32, span_id="b" * 16, parent_span_id="c" * 16),
    )


def planned(*tasks: PlannedTask) -> list[Entry]:
    """Return the entries of a plan with these tasks: dispatched to the planner at 0 s, accepted at 1 s."""
    return [
        TaskAdded(at=at(0), task_id="plan-1", role=Role.PLAN, agent="planner", intent="Plan the request"),
        dispatched("plan-1", "planner", 0),
        succeeded("plan-1", "planner", 0.2, 1),
        PlanAccepted(at=at(1), revision=1, plan=Plan(goal="mend it", tasks=tasks)),
    ]


def dispatched(task: str, agent: str, seconds: float, attempt: int = 1) -> TaskDispatched:
    return TaskDispatched(
        at=at(seconds), task_id=task, attempt=attempt, agent=agent, deadline=at(seconds + 60), span_id=f"span-{task}"
    )


def succeeded(
    task: str, agent: str, begun: float, ended: float, attempt: int = 1, output: Any = "done"
) -> TaskSucceeded:
    result = Result(
        workflow_id=WORKFLOW,
        task_id=task,
        attempt=attempt,
        agent=agent,
        status="succeeded",
        output=output,
        usage=Usage(calls=1, input_tokens=100, output_tokens=20),
        started_at=at(begun),
        ended_at=at(ended),
    )
    return TaskSucceeded(at=at(ended), task_id=task, attempt=attempt, event_id=f"e-{task}-{attempt}", result=result)


def ended(status: Any, seconds: float, answer: Any = "mended", workflow: str = WORKFLOW, **more: Any) -> WorkflowEnded:
    outcome = Outcome(
        workflow_id=workflow,
        team=TEAM,
        status=status,
        answer=answer,
        usage=Usage(calls=3, input_tokens=300, output_tokens=60),
        correlation_id="c-1",
        trace_id="a" * 32,
        started_at=at(0),
        ended_at=at(seconds),
        elapsed=seconds,
        sequential=seconds * 2,
        **more,
    )
    return WorkflowEnded(at=at(seconds), outcome=outcome)


def completed() -> list[Entry]:
    """Return the log of a completed workflow: two parallel tasks and an answer, in 6 seconds."""
    return [
        started(),
        *planned(
            PlannedTask(id="t1", agent="fitter", intent="fit"), PlannedTask(id="t2", agent="tester", intent="test")
        ),
        dispatched("t1", "fitter", 1),
        dispatched("t2", "tester", 1),
        succeeded("t2", "tester", 1.5, 3),
        succeeded("t1", "fitter", 1.5, 4),
        TaskAdded(at=at(4), task_id="synthesis", role=Role.SYNTHESIZE, agent="synthesizer", intent="Write the answer"),
        dispatched("synthesis", "synthesizer", 4),
        succeeded("synthesis", "synthesizer", 4.5, 6),
        ended("completed", 6),
    ]


def failing(message: str = "out of bolts") -> list[Entry]:
    """Return the log of a running workflow. Both attempts of `t1` fail, so its dependent `t2` is skipped."""
    error = AttemptError(kind="handler_error", message=message, retryable=True)
    return [
        started(),
        *planned(
            PlannedTask(id="t1", agent="fitter", intent="fit"),
            PlannedTask(id="t2", agent="tester", intent="test", depends_on=("t1",)),
        ),
        dispatched("t1", "fitter", 1),
        AttemptFailed(at=at(2), task_id="t1", attempt=1, event_id="e1", error=error),
        RetryScheduled(at=at(2), task_id="t1", attempt=2, agent="helper", not_before=at(3), deadline=at(63)),
        AttemptFailed(at=at(5), task_id="t1", attempt=2, event_id="e2", error=error),
        TaskFailed(at=at(5), task_id="t1", error=error, attempts=2),
        TaskSkipped(at=at(5), task_id="t2", unmet_dependency="t1", reason="t1 failed"),
    ]


def tool(name: str, begun: float, ended: float, *, task: str = "t1", attempt: int = 1, span: str = "s1",
         parent: str = "process", kind: str = "tool", error: str | None = None) -> Progress:  # fmt: skip
    return Progress(
        workflow_id=WORKFLOW, task_id=task, attempt=attempt, agent="fitter", kind=kind, name=name,
        started_at=at(begun), ended_at=at(ended), span_id=span, parent_span_id=parent, error=error,
    )  # fmt: skip


async def store(
    bus: Bus, *entries: Entry, workflow: str = WORKFLOW, team: str = TEAM, number: int = 1, **given: Any
) -> int:
    """Append one commit with these entries to the workflow's log, as a supervisor does."""
    envelope = Envelope(id=f"{workflow}-{number}", type=Commit.event_type, source="test", time=START, subject=workflow)
    subject = Subjects().log(team, workflow)
    return await bus.publish(subject, dump(Commit(number=number, entries=entries, **given)), encode(envelope))
