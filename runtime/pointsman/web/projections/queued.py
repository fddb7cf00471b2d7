"""Requests that no supervisor has taken yet, as rows of the list: no log tells of them, so they are looked for."""

from __future__ import annotations

from pointsman.client.client import Client, WorkflowSummary
from pointsman.core.views.formatting import request_text
from pointsman.web.projections.rows import SEARCHED, SHOWN, Row

__all__ = ["look_for_waiting"]

_MOST = 100  # of each team, the newest: a page of the list


async def look_for_waiting(client: Client) -> list[Row]:
    """The newest first."""
    found = await client.unadmitted(limit=_MOST)
    supervised = {card.name for card in await client.teams()} if found else set()
    rows = [_row(each, supervised) for each in found]
    return sorted(rows, key=lambda row: row.started_at, reverse=True)[:_MOST]


def _row(request: WorkflowSummary, supervised: set[str]) -> Row:
    asked = request_text(request.input)
    return Row(
        id=request.id,
        team=request.team,
        began=0,
        sequence=0,
        started_at=request.started_at,
        input=asked[:SHOWN],
        hay=f"{request.id} {asked[:SEARCHED]}".casefold(),
        status=request.status,
        reason=_reason(request.team, supervised),
    )


def _reason(team: str, supervised: set[str]) -> str:
    if team not in supervised:
        return f"team {team} has no supervisor"
    return f"the supervisors of {team} have as many workflows as they may, or have not come to it yet"
