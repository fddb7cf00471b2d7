"""Facts about teams and agents that several commands report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from difflib import get_close_matches

from pointsman.client.client import Client, Workflow
from pointsman.core.model.agent_health import Circuit
from pointsman.errors import PermissionDeniedError
from pointsman_schemas.card import AgentCard

__all__ = [
    "circuit_state",
    "definition_difference",
    "group_by_name",
    "is_admitted",
    "known_teams",
    "orphaned_handlers",
    "schema_difference",
    "unknown_team_hint",
]

_UNKNOWN_VERSION = AgentCard.model_fields["version"].default
_MAX_WORKFLOWS = 100  # workflows whose teams are listed when a team is unknown


async def is_admitted(client: Client, workflow: Workflow) -> bool:
    """Return True if a supervisor has admitted the workflow. A workflow that is not admitted has no log.

    Args:
        client: The client.
        workflow: The workflow.

    Returns:
        True also for a user that may not read logs.
    """
    try:
        with client.bus.optional_requests(""):
            return await client.bus.last("log", client.subjects.log(workflow.team, workflow.id)) is not None
    except PermissionDeniedError:
        return True


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


def group_by_name(cards: Sequence[AgentCard]) -> dict[str, list[AgentCard]]:
    """Return the cards of all instances by the name of the agent or team."""
    grouped: dict[str, list[AgentCard]] = defaultdict(list)
    for card in cards:
        grouped[card.name].append(card)
    return dict(grouped)


def orphaned_handlers(cards: Sequence[AgentCard]) -> str:
    """Return the number of cancelled handlers that still run, as text; an empty text for 0."""
    count = sum(card.orphaned_handlers for card in cards)
    return f"{count} cancelled handler{'' if count == 1 else 's'} still running" if count else ""


def schema_difference(cards: Sequence[AgentCard]) -> str:
    """Return the number of different schemas of the instances of one agent; an empty text if there is no difference."""
    different: list[object] = []
    for card in cards:
        if card.input_output_schemas not in different:
            different.append(card.input_output_schemas)
    return f"{len(different)} versions with different schemas" if len(different) > 1 else ""


def definition_difference(cards: Sequence[AgentCard]) -> str:
    """Return the number of different definitions of one team; an empty text if there is no difference."""
    different = {card.version for card in cards} - {_UNKNOWN_VERSION}
    return f"{len(different)} different definitions" if len(different) > 1 else ""


def circuit_state(circuit: Circuit, now: datetime) -> str:
    """Return the state of an agent's circuit as text.

    Args:
        circuit: The open circuit.
        now: The broker's time.

    Returns:
        The text.
    """
    if now >= circuit.until:
        return "circuit open, the next task is a probe"
    if circuit.probe:
        return "circuit open, a probe is running"
    return f"circuit open, no tasks until {circuit.until:%H:%M:%S} UTC"
