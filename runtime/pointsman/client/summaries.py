"""Summarize a workflow from its newest commit. Also summarize a request that waits for admission."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from pydantic import JsonValue

from pointsman.engine.log.reader import is_imported, read_commit, read_workflow_started
from pointsman.errors import ContractError
from pointsman.ports.bus import Bus, StoredMessage
from pointsman_schemas.envelope import decode
from pointsman_schemas.events import Outcome, Request
from pointsman_schemas.log import Commit, WorkflowEnded, WorkflowStarted
from pointsman_schemas.strict_json import parse
from pointsman_schemas.subjects import Subjects

if TYPE_CHECKING:
    from pointsman.engine.operations.queued_requests import QueuedRequest

__all__ = [
    "CANCEL_REQUESTED_STATUS",
    "IMPORTED_STATUS",
    "QUEUED_STATUS",
    "WORKFLOW_STATUSES",
    "WorkflowDetails",
    "WorkflowSummary",
    "read_details",
    "summarize",
    "summarize_queued",
]

QUEUED_STATUS, CANCEL_REQUESTED_STATUS = "waiting for admission", "asked to end"
IMPORTED_STATUS = "imported"
WORKFLOW_STATUSES = (
    QUEUED_STATUS,
    CANCEL_REQUESTED_STATUS,
    "running",
    "waiting for an answer",
    IMPORTED_STATUS,
    "completed",
    "partial",
    "failed",
    "cancelled",
)
"""The statuses of a `WorkflowSummary`."""


@dataclass(frozen=True, slots=True)
class WorkflowSummary:
    """One line of `Client.list`.

    Attributes:
        id: The workflow's id.
        team: The workflow's team.
        status: `waiting for admission`, `asked to end`, `running`, `waiting for an answer`, `imported` for a workflow
            that was imported before its end, or the outcome's status.
        started_at: The time of admission. While the request waits for admission, the time of its publish.
        ended_at: The time of the outcome; None before the end.
        input: The input of the request.
        correlation_id: The caller's id, which all events of the workflow contain.
        caller: The user who sent the request, or the team that sent the handoff.
        thread: The id of the thread if the request is a turn of a thread, else empty.
    """

    id: str
    team: str
    status: str
    started_at: datetime
    ended_at: datetime | None
    input: str | dict[str, JsonValue]
    correlation_id: str = ""
    caller: str = ""
    thread: str = ""

    @property
    def admitted(self) -> bool:
        """Return True if a supervisor has admitted the request."""
        return self.status not in (QUEUED_STATUS, CANCEL_REQUESTED_STATUS)


class WorkflowDetails(NamedTuple):
    """A workflow with its outcome and its questions.

    Attributes:
        summary: The summary.
        outcome: The newest outcome; None before the end.
        questions: The ids of the open questions.
    """

    summary: WorkflowSummary
    outcome: Outcome | None = None
    questions: tuple[str, ...] = ()


async def read_details(bus: Bus, subjects: Subjects, workflow: str) -> WorkflowDetails | None:
    """Read the present state of a workflow. If its request waits for admission, read the state of the request.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        workflow: The workflow.

    Returns:
        The state; None if there is no such workflow.
    """
    from pointsman.engine.operations.queued_requests import find_queued_request

    stored = await bus.last("log", subjects.workflow_log(workflow))
    if stored is None:
        if (waits := await find_queued_request(bus, subjects, workflow)) is not None:
            return WorkflowDetails(summarize_queued(waits))
        # Read the log again, because the request might have been admitted between the two reads.
        stored = await bus.last("log", subjects.workflow_log(workflow))
        if stored is None:
            return None
    newest = read_commit(stored)
    return WorkflowDetails(
        await summarize(bus, subjects, newest, stored), _outcome_of(newest), tuple(newest.open_questions)
    )


async def summarize(bus: Bus, subjects: Subjects, newest: Commit, stored: StoredMessage) -> WorkflowSummary:
    """Summarize a workflow.

    Args:
        bus: The bus. If the workflow has several commits, the first commit is read.
        subjects: The subjects of the namespace.
        newest: The newest commit of the workflow.
        stored: The message of the newest commit.

    Returns:
        The summary.

    Raises:
        NotFoundError: The first commit was deleted.
    """
    started = next((entry for entry in newest.entries if isinstance(entry, WorkflowStarted)), None)
    if started is None:
        started = await read_workflow_started(bus, subjects, stored.subject)
    outcome = _outcome_of(newest)
    status = "waiting for an answer" if newest.open_questions else "running"
    if outcome is not None:
        status = outcome.status
    elif is_imported(stored):
        status = IMPORTED_STATUS
    return WorkflowSummary(
        id=started.workflow_id,
        team=started.team,
        status=status,
        started_at=started.at,
        ended_at=next((entry.at for entry in newest.entries if isinstance(entry, WorkflowEnded)), None),
        input=started.input,
        correlation_id=started.correlation_id,
        caller=started.caller,
        thread=started.thread.thread if started.thread else "",
    )


def summarize_queued(of: QueuedRequest) -> WorkflowSummary:
    """Summarize a request that waits for admission.

    Args:
        of: The request.

    Returns:
        The summary. Its input is empty if the request cannot be read.
    """
    from pointsman.engine.log.requests import correlation_id_of_request

    request = _read_request(of.request)
    return WorkflowSummary(
        id=of.workflow,
        team=of.team,
        status=CANCEL_REQUESTED_STATUS if of.cancelled else QUEUED_STATUS,
        started_at=of.request.at,
        ended_at=None,
        input=request.input if request else "",
        correlation_id=correlation_id_of_request(of.request),
        caller=of.request.subject.rpartition(".")[2],
        thread=(request.thread or "") if request else "",
    )


def _outcome_of(commit: Commit) -> Outcome | None:
    return next((entry.outcome for entry in commit.entries if isinstance(entry, WorkflowEnded)), None)


def _read_request(stored: StoredMessage) -> Request | None:
    try:
        return parse(Request, decode(stored.headers, stored.body)[1])
    except ContractError:
        return None
