"""Find the teams of a namespace, and the team that a misspelled name means."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from pointsman.errors import ContractError, PermissionDeniedError

if TYPE_CHECKING:
    from pointsman.client.client import Client

__all__ = ["UnknownTeamError", "check_team", "known_teams", "unknown_team_hint"]

_MAX_WORKFLOWS = 100  # workflows whose teams are listed when a team is unknown


class UnknownTeamError(ContractError):
    """No team has this name, and other teams exist. Nothing was sent."""

    kind = "unknown_team"


async def check_team(client: Client, team: str) -> None:
    """Refuse the name of a team that does not exist, if the namespace has other teams.

    Args:
        client: The client.
        team: The name of the team.

    Raises:
        UnknownTeamError: The name is unknown. The message names the team that may be meant.
    """
    hint = await unknown_team_hint(client, team)
    if hint and await known_teams(client):
        raise UnknownTeamError(f"{hint} Nothing was sent. If the team is new, start its supervisor first.")


async def known_teams(client: Client) -> set[str]:
    """Return the teams that have a live supervisor or have admitted a request.

    A team that only has a request in its queue may be misspelled.
    """
    admitted = {each.team for each in await client.list(limit=_MAX_WORKFLOWS) if each.admitted}
    return admitted | {card.name for card in await client.operations.teams()}


async def unknown_team_hint(client: Client, team: str) -> str:
    """Return a hint if no team has this name: the team that may be meant, and the known teams.

    Args:
        client: The client.
        team: The name of the team.

    Returns:
        The sentences; an empty text if the team is known, or if the user may not read logs and cards.
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
