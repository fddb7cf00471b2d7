"""Convert the present state of a workflow to the form that callers see. This module does not import FastAPI."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pointsman.client.client import Client
from pointsman.client.summaries import (
    CANCEL_REQUESTED_STATUS,
    QUEUED_STATUS,
    WORKFLOW_STATUSES,
    WorkflowDetails,
)
from pointsman.gateway.models import OutcomeView, WorkflowItem, WorkflowStatus, WorkflowView
from pointsman.index.rows import WorkflowRow

__all__ = ["item_of", "read_view", "statuses_of", "view_of"]

_STATUSES: Mapping[str, WorkflowStatus] = {
    QUEUED_STATUS: "queued",
    CANCEL_REQUESTED_STATUS: "cancelling",
    "running": "running",
    "waiting for an answer": "waiting_for_answer",
    "imported": "imported",
    "completed": "completed",
    "partial": "partial",
    "failed": "failed",
    "cancelled": "cancelled",
}
assert _STATUSES.keys() == set(WORKFLOW_STATUSES)


def statuses_of(shown: Collection[WorkflowStatus]) -> set[str]:
    """Translate the statuses that callers see into the statuses of the index rows.

    Args:
        shown: The statuses that callers see.

    Returns:
        The statuses of the index rows.
    """
    return {status for status, name in _STATUSES.items() if name in shown}


def item_of(row: WorkflowRow) -> WorkflowItem:
    """Convert a row of the index to an item for the list of workflows.

    Args:
        row: The row.

    Returns:
        The item.
    """
    return WorkflowItem(
        id=row.id,
        team=row.team,
        status=_STATUSES[row.status],
        correlation_id=row.correlation_id,
        caller=row.caller,
        created_at=row.started_at,
        ended_at=row.ended_at,
    )


async def read_view(client: Client, workflow: str) -> WorkflowView | None:
    """Read a workflow, or its request that waits for admission.

    Args:
        client: The client.
        workflow: The workflow.

    Returns:
        The view; None if there is no such workflow.
    """
    found = await client.details(workflow)
    return None if found is None else view_of(found)


def view_of(details: WorkflowDetails) -> WorkflowView:
    """Return the view of a workflow, or of a request that waits for admission.

    Args:
        details: The workflow.

    Returns:
        The view.
    """
    summary = details.summary
    return WorkflowView(
        id=summary.id,
        team=summary.team,
        status=_STATUSES[summary.status],
        correlation_id=summary.correlation_id,
        caller=summary.caller,
        created_at=summary.started_at,
        ended_at=summary.ended_at,
        input=summary.input,
        outcome=OutcomeView.of(details.outcome) if details.outcome else None,
        questions=list(details.questions),
    )
