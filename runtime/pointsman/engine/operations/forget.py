"""Forget a workflow: delete all its messages and large bodies, and record the deletion.

The log is deleted last, because it names the child workflows. So a call that was interrupted can be repeated. The
broker also overwrites each deleted message on its disk.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

from pointsman.bus.claim_check import object_name
from pointsman.core.views.trace import child_workflows
from pointsman.engine.log.reader import gather_batched, is_outcome, newest_commit, read_commit
from pointsman.engine.log.requests import find_request
from pointsman.engine.operations.audit import store_audit
from pointsman.errors import ContractError, NotFoundError, PointsmanError
from pointsman.ports.bus import Bus, StreamKind
from pointsman_schemas.events import Audit
from pointsman_schemas.ids import derive_id
from pointsman_schemas.log import Entry
from pointsman_schemas.subjects import Subjects

__all__ = ["ForgetResult", "WorkflowRunsError", "forget_workflow"]


class WorkflowRunsError(PointsmanError):
    """The workflow has not ended. If its log were deleted, its supervisor would continue without the log."""

    kind = "workflow_runs"


@dataclass(frozen=True, slots=True)
class ForgetResult:
    """The result of forgetting.

    Attributes:
        workflows: The ids of the workflow and of the workflows below it in the tree of child workflows.
        messages: The number of messages that were deleted.
        objects: The number of large bodies that were deleted.
    """

    workflows: tuple[str, ...]
    messages: int
    objects: int


async def forget_workflow(
    bus: Bus,
    subjects: Subjects,
    workflow: str,
    *,
    actor: str,
    at: datetime,
    reason: str = "",
    progress: Callable[[int], None] = lambda deleted: None,
) -> ForgetResult:
    """Delete a workflow with its child workflows and their child workflows, and store a record of each.

    The request, log, events, steps, handoffs, results, controls, outcome, dead letters, deliveries to webhooks and
    large bodies are deleted.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        workflow: The workflow.
        actor: The user of the operation.
        at: The time.
        reason: The reason, for the record.
        progress: Called again and again with the number of messages that are deleted so far.

    Returns:
        The deleted workflows, and the numbers of deleted messages and objects.

    Raises:
        NotFoundError: The workflow does not exist.
        WorkflowRunsError: The workflow, or a workflow below it, has not ended. Nothing was deleted.
        BusUnavailableError: The broker does not answer. Repeat the call.
    """
    family = await _family(bus, subjects, workflow)
    total = objects = 0
    for team, name in reversed(family):  # the workflow comes last, because its log names the workflows below it
        messages = 0
        for stream, subject in _subjects_of(subjects, team, name):
            messages += await _delete(bus, stream, [each.sequence async for each in bus.read(stream, subject)])
            progress(total + messages)
        messages += await _forget_request(bus, subjects, team, name)
        objects += await _delete_objects(bus, subjects, f"{name}-")
        last = [
            [each.sequence async for each in bus.read("log", subject)]
            for subject in (subjects.outcome(team, name), subjects.log(team, name))
        ]
        # The record comes before the deletion of the log, because without a log the call cannot be repeated.
        audit = Audit(action="forget", workflow_id=name, reason=reason, messages=messages + sum(map(len, last)))
        await store_audit(bus, subjects, actor, derive_id("forget", name, at.isoformat()), audit, at)
        for sequences in last:
            messages += await _delete(bus, "log", sequences)
            progress(total + messages)
        total += messages
    return ForgetResult(tuple(name for _, name in family), total, objects)


async def _family(bus: Bus, subjects: Subjects, workflow: str) -> Sequence[tuple[str, str]]:
    """Return the team and the id of a workflow and of the workflows below it, from top to bottom.

    Raises:
        NotFoundError: The workflow does not exist.
        WorkflowRunsError: One of the workflows has not ended.
    """
    found: list[tuple[str, str]] = []
    waiting = [workflow]
    while waiting:
        name = waiting.pop()
        try:
            newest = await newest_commit(bus, subjects, name)
        except NotFoundError:
            if name == workflow:
                raise
            continue  # the team has not admitted this workflow, or retention has removed its log
        team = newest.team
        outcome = await bus.last("log", subjects.outcome(team, name))
        if newest.imported_from is None and (outcome is None or not is_outcome(outcome)):
            raise WorkflowRunsError(
                f"{name} of team {team} has not ended; cancel the workflow with `pointsman cancel {workflow}`, then "
                "forget the workflow"
            )
        found.append((team, name))
        entries: list[Entry] = []
        async for stored in bus.read("log", subjects.log(team, name)):
            with suppress(ContractError):
                entries += read_commit(stored).entries
        with suppress(ValueError):  # the beginning of the log was removed
            waiting += child_workflows(entries)
    return found


def _subjects_of(subjects: Subjects, team: str, workflow: str) -> Sequence[tuple[StreamKind, str]]:
    """Return the subjects of a workflow except its outcome and its log.

    The order prevents that work starts again. A schedule would publish a handoff again, so schedules are deleted before
    handoffs. A worker repeats a handoff that has no result, so handoffs are deleted before results.
    """
    return (
        ("work", subjects.workflow_messages("schedule", team, workflow)),
        ("handoffs", subjects.workflow_messages("schedule", team, workflow)),
        ("handoffs", subjects.workflow_messages("handoff", team, workflow)),
        ("work", subjects.workflow_messages("timer", team, workflow)),
        ("controls", subjects.workflow_messages("control", team, workflow)),
        ("results", subjects.workflow_messages("step", team, workflow)),
        ("results", subjects.workflow_messages("result", team, workflow)),
        ("results", subjects.workflow_events(workflow, team)),
        ("dead", subjects.dead_letters_for(workflow=workflow)),
        ("deliveries", subjects.workflow_deliveries(workflow)),
        ("deliveries", subjects.receipts(workflow=workflow)),
        ("log", subjects.workflow_questions(workflow, team)),
        ("log", subjects.workflow_messages("message", team, workflow)),
    )


async def _delete(bus: Bus, stream: StreamKind, sequences: Sequence[int]) -> int:
    return sum(await gather_batched(bus.delete(stream, sequence, erase=True) for sequence in sequences))


async def _forget_request(bus: Bus, subjects: Subjects, team: str, workflow: str) -> int:
    """Delete the request that began the workflow, and its body. Return the number of messages."""
    request = await find_request(bus, subjects.team_requests(team), workflow)
    if request is None:  # the request has expired, or the workflow began with a handoff
        return 0
    name = object_name(subjects, request.subject, sha256(request.body).hexdigest())
    await _delete_objects(bus, subjects, name)
    return await _delete(bus, "requests", [request.sequence])


async def _delete_objects(bus: Bus, subjects: Subjects, beginning: str) -> int:
    """Delete the objects whose names begin with `beginning`. Return the number of objects."""
    number = 0
    for subject in await bus.subjects("artifacts", subjects.objects):
        with suppress(Base64Error, UnicodeDecodeError):
            if not urlsafe_b64decode(subject.rpartition(".")[2]).decode().startswith(beginning):
                continue
            if (description := await bus.last("artifacts", subject)) is not None:
                chunks = f"$O.{subjects.artifacts_bucket}.C.{json.loads(description.body)['nuid']}"
                await _delete(bus, "artifacts", [each.sequence async for each in bus.read("artifacts", chunks)])
                number += await _delete(bus, "artifacts", [description.sequence])
    return number
