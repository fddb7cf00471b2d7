"""List requests that no supervisor has admitted yet. These requests have no log, so the request stream is read."""

from __future__ import annotations

from pointsman.client.client import Client
from pointsman.index.rows import WorkflowRow, queued_row

__all__ = ["queued_rows"]

_MAX_PER_TEAM = 100  # largest number of requests of one team, and of rows of all teams together: one page of the list


async def queued_rows(client: Client) -> list[WorkflowRow]:
    """Return the queued requests of all teams as rows, the newest first."""
    found = await client.queued_requests(limit=_MAX_PER_TEAM)
    supervised = {card.name for card in await client.operations.teams()} if found else set()
    rows = [queued_row(each, _queued_reason(each.team, supervised)) for each in found]
    return sorted(rows, key=lambda row: row.started_at, reverse=True)[:_MAX_PER_TEAM]


def _queued_reason(team: str, supervised: set[str]) -> str:
    if team not in supervised:
        return f"team {team} has no supervisor"
    return f"the supervisors of {team} are at their limit of running workflows, or have not read the request yet"
