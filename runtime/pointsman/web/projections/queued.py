"""List requests that no supervisor has admitted yet. These requests have no log, so the request stream is read."""

from __future__ import annotations

from pointsman.client.client import Client, WorkflowSummary
from pointsman.core.views.formatting import request_text
from pointsman.web.projections.rows import SEARCHED_CHARS, SHOWN_CHARS, WorkflowRow

__all__ = ["queued_rows"]

_MAX_PER_TEAM = 100  # newest requests of each team: one page of the list


async def queued_rows(client: Client) -> list[WorkflowRow]:
    """Return the queued requests of all teams as rows, the newest first."""
    found = await client.queued_requests(limit=_MAX_PER_TEAM)
    supervised = {card.name for card in await client.operations.teams()} if found else set()
    rows = [_queued_row(each, supervised) for each in found]
    return sorted(rows, key=lambda row: row.started_at, reverse=True)[:_MAX_PER_TEAM]


def _queued_row(request: WorkflowSummary, supervised: set[str]) -> WorkflowRow:
    asked = request_text(request.input)
    return WorkflowRow(
        id=request.id,
        team=request.team,
        first_sequence=0,
        sequence=0,
        started_at=request.started_at,
        input=asked[:SHOWN_CHARS],
        search_text=f"{request.id} {asked[:SEARCHED_CHARS]}".casefold(),
        status=request.status,
        reason=_queued_reason(request.team, supervised),
    )


def _queued_reason(team: str, supervised: set[str]) -> str:
    if team not in supervised:
        return f"team {team} has no supervisor"
    return f"the supervisors of {team} are at their limit of running workflows, or have not read the request yet"
