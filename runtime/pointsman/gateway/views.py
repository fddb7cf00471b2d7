"""Read the present state of a workflow, without FastAPI."""

from __future__ import annotations

from pointsman.client.client import Client
from pointsman.engine.log.reader import is_imported, read_commit, read_workflow_started, team_of
from pointsman.engine.operations.queued_requests import QueuedRequest, find_queued_request
from pointsman.errors import ContractError
from pointsman.gateway.models import OutcomeView, WorkflowStatus, WorkflowView
from pointsman_schemas.envelope import decode
from pointsman_schemas.events import Request
from pointsman_schemas.log import WorkflowEnded, WorkflowStarted
from pointsman_schemas.strict_json import parse

__all__ = ["queued_view", "read_view"]


async def read_view(client: Client, workflow: str) -> WorkflowView | None:
    """Read a workflow, or its request that waits for admission.

    Args:
        client: The client.
        workflow: The workflow.

    Returns:
        The view; None if there is no such workflow.
    """
    bus, subjects = client.bus, client.subjects
    stored = await bus.last("log", subjects.workflow_log(workflow))
    if stored is None:
        if (waits := await find_queued_request(bus, subjects, workflow)) is not None:
            return queued_view(waits)
        stored = await bus.last("log", subjects.workflow_log(workflow))  # admitted between the two reads
        if stored is None:
            return None
    newest = read_commit(stored)
    started = next((entry for entry in newest.entries if isinstance(entry, WorkflowStarted)), None)
    if started is None:
        started = await read_workflow_started(bus, subjects, stored.subject)
    ended = next((entry for entry in newest.entries if isinstance(entry, WorkflowEnded)), None)
    status: WorkflowStatus = "waiting_for_answer" if newest.open_questions else "running"
    if ended is not None:
        status = ended.outcome.status
    elif is_imported(stored):
        status = "imported"
    return WorkflowView(
        id=workflow,
        team=team_of(stored.subject),
        status=status,
        correlation_id=started.correlation_id,
        caller=started.caller,
        created_at=started.at,
        ended_at=ended.at if ended else None,
        input=started.input,
        outcome=OutcomeView.of(ended.outcome) if ended else None,
        questions=list(newest.open_questions),
    )


def queued_view(of: QueuedRequest) -> WorkflowView:
    """Return the view of a request that waits for admission.

    Args:
        of: The request.

    Returns:
        The view.
    """
    try:
        envelope, body = decode(of.request.headers, of.request.body)
        request = parse(Request, body)
        correlation_id = (envelope.correlation_id if envelope else None) or request.correlation_id or ""
        given = request.input
    except ContractError:
        given, correlation_id = "", ""
    return WorkflowView(
        id=of.workflow,
        team=of.team,
        status="cancelling" if of.cancelled else "queued",
        correlation_id=correlation_id,
        caller=of.request.subject.rpartition(".")[2],
        created_at=of.request.at,
        input=given,
    )
