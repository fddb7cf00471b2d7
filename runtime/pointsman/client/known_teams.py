"""Find the teams of a namespace. For an unknown team, find the known team with the most similar name."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from pointsman.errors import ContractError, PermissionDeniedError

if TYPE_CHECKING:
    from pointsman.client.client import Client

__all__ = ["UnknownTeamError", "check_team", "known_teams", "unknown_team_hint"]

_MAX_WORKFLOWS = 100  # number of the most recently active workflows whose teams are known


class UnknownTeamError(ContractError):
    """No team has this name, but other teams exist. Nothing was sent."""

    kind = "unknown_team"


async def check_team(client: Client, team: str) -> None:
    """Raise an error if no team has this name and the namespace has other teams.

    Args:
        client: The client.
        team: The name of the team.

    Raises:
        UnknownTeamError: The name is unknown. The message suggests a known team with a similar name, if there is one.
    """
    hint = await unknown_team_hint(client, team)
    if hint and await known_teams(client):
        raise UnknownTeamError(f"{hint} Nothing was sent. If the team is new, start its supervisor first.")


async def known_teams(client: Client) -> set[str]:
    """Return the teams that have a live supervisor, or an admitted workflow among the most recently active workflows.

    A team that has only queued requests is left out, because the name in these requests might be misspelled.
    """
    admitted = {each.team for each in await client.list(limit=_MAX_WORKFLOWS) if each.admitted}
    return admitted | {card.name for card in await client.operations.teams()}


async def unknown_team_hint(client: Client, team: str) -> str:
    """Return a hint if no team has this name. The hint lists the known teams and the most similar name.

    Args:
        client: The client.
        team: The name of the team.

    Returns:
        The hint; empty if the team is known, or if the user may not read logs and cards.
    """
    try:
        with client.bus.optional_requests(""):
            known, agents = await known_teams(client), await client.operations.agents()
    except PermissionDeniedError:
        return ""
    if team in known:
        return ""
    listed = f"Known teams: {', '.join(sorted(known)) or 'none'}."
    if any(card.name == team for card in agents):
        return f"{team} is an agent, and requests go to teams. {listed}"
    meant = get_close_matches(team, known, 1)
    return f"no team is called {team}{f', did you mean {meant[0]}?' if meant else '.'} {listed}"
