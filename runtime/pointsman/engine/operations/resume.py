"""Resume an ended workflow: request a new round from its supervisor, and remove the dead letters of earlier rounds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass

from pointsman.core.model.lifecycle import RESUMABLE, Phase
from pointsman.engine.log.reader import (
    as_async_generator,
    check_not_imported,
    newest_commit,
    read_commit,
    read_workflow_started,
)
from pointsman.engine.operations.dead_letters import DeadLetters
from pointsman.engine.process.retrying import publish_with_retry
from pointsman.errors import ConflictError, PointsmanError
from pointsman.ports.bus import Bus
from pointsman.ports.clock import Clock
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import Control
from pointsman_schemas.files import find_file_fault
from pointsman_schemas.ids import derive_id
from pointsman_schemas.log import ControlIgnored, Entry, WorkflowEnded, WorkflowResumed
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import Subjects

__all__ = ["NotResumableError", "ResumeResult", "resume_workflow"]


class NotResumableError(PointsmanError):
    """The workflow cannot be resumed. The message has the reason and the next step."""

    kind = "not_resumable"


@dataclass(frozen=True, slots=True)
class ResumeResult:
    """The result of a resume.

    Attributes:
        workflow: The id of the workflow.
        team: The team of the workflow.
        round: The number of the round that began.
        tasks: The tasks of the plan that run again. If no task runs again, the plan or the answer is made again.
        by: The person or system whose resume counted.
    """

    workflow: str
    team: str
    round: int
    tasks: tuple[str, ...]
    by: str


async def resume_workflow(
    bus: Bus,
    subjects: Subjects,
    clock: Clock,
    workflow: str,
    *,
    actor: str,
    reason: str = "",
    timeout: float = 10.0,
) -> ResumeResult:
    """Request a new round from the supervisor of an ended workflow, and wait until the round has begun.

    The control event names the round that ended. So two resumes of the same round begin one new round.

    Returns:
        The new round.

    Raises:
        NotResumableError: The workflow runs, has completed, was cancelled, works for another workflow, or was refused
            for its request or files; or no supervisor began the round within `timeout` seconds.
        ImportedLogError: The workflow was imported. Nothing was sent.
        NotFoundError: The workflow has no log.
    """
    newest = await newest_commit(bus, subjects, workflow)
    check_not_imported(workflow, newest.imported_from)
    ended_round = newest.commit.round
    log = subjects.log(newest.team, workflow)
    _check_ended(workflow, ended_round, newest.commit.entries)
    started = await read_workflow_started(bus, subjects, log)
    if started.parent is not None:
        raise NotResumableError(
            f"workflow {workflow} worked for task {started.parent.task_id} of {started.parent.workflow_id}, which has "
            f"its result; resume the parent with `pointsman resume {started.parent.workflow_id}`"
        )
    limits = started.limits
    if fault := find_file_fault(started.files, limits.files, limits.file_bytes, limits.file_types):
        raise NotResumableError(
            f"workflow {workflow} was refused: {fault}; correct the files and publish the request again under a new id"
        )
    last = await bus.last("log", log)
    after = last.sequence - 1 if last is not None else 0
    name = derive_id("resume", workflow, str(ended_round))
    control = Control(action="resume", round=ended_round, reason=reason)
    envelope = Envelope(
        id=name,
        type=Control.event_type,
        source=subjects.source("client", "python"),
        time=clock.now(),
        subject=workflow,
    )
    with suppress(ConflictError):  # the round was resumed before, so the control exists and acts once
        await publish_with_retry(
            bus,
            subjects.control(newest.team, workflow, "resume", actor, name),
            dump(control),
            encode(envelope),
            expect=0,
        )
    try:
        async with asyncio.timeout(timeout):
            resumed = await _wait_until_resumed(bus, log, after, ended_round, name)
    except TimeoutError:
        raise NotResumableError(
            f"no supervisor of team {newest.team} has resumed {workflow} within {timeout:g} s after the request; if no "
            "supervisor runs, the next supervisor that starts resumes the workflow; if the resume was refused, "
            f"`pointsman dead list --workflow {workflow}` has the reason"
        ) from None
    await _remove_letters(bus, subjects, clock, workflow, resumed, actor, reason)
    return ResumeResult(workflow, newest.team, resumed.round, resumed.tasks, resumed.by)


def _check_ended(workflow: str, round: int, entries: Iterable[Entry]) -> None:
    end = next((entry for entry in reversed(tuple(entries)) if isinstance(entry, WorkflowEnded)), None)
    if end is None:
        raise NotResumableError(
            f"workflow {workflow} has not ended and is in round {round}; `pointsman watch {workflow}` shows its events"
        )
    if Phase(end.outcome.status) not in RESUMABLE:
        raise NotResumableError(
            f"workflow {workflow} ended as {end.outcome.status}; only a workflow that ended as failed or partial can "
            "be resumed; submit the request again under a new id"
        )
    if end.refusal is not None:
        raise NotResumableError(
            f"the request of workflow {workflow} could not be read: {end.refusal.message}; correct the request and "
            "publish it again under a new id"
        )


async def _wait_until_resumed(bus: Bus, log: str, after: int, ended_round: int, control: str) -> WorkflowResumed:
    """Wait for the entry that begins the round after `ended_round`."""
    async with aclosing(as_async_generator(bus.follow("log", [log], after=after))) as messages:
        async for stored in messages:
            for entry in read_commit(stored).entries:
                if isinstance(entry, WorkflowResumed) and entry.round > ended_round:
                    return entry
                if isinstance(entry, ControlIgnored) and entry.event_id == control:
                    raise NotResumableError(entry.reason)
    raise TimeoutError


async def _remove_letters(
    bus: Bus, subjects: Subjects, clock: Clock, workflow: str, resumed: WorkflowResumed, actor: str, reason: str
) -> None:
    """Remove the dead letters of tasks of earlier rounds, because the new round runs these tasks again."""
    letters = DeadLetters(bus, subjects, user=actor, clock=clock)
    for letter in await letters.list(workflow=workflow):
        if letter.content.task_id is not None and letter.content.at <= resumed.at:
            await letters.settle_resumed(letter, reason)
