"""Facts about teams and agents that several commands report."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pointsman.client.client import Client, Workflow
from pointsman.core.model.agent_health import Circuit
from pointsman.engine.process.agent_versions import team_definitions
from pointsman.errors import PermissionDeniedError
from pointsman_schemas.card import AgentCard

__all__ = [
    "circuit_state",
    "definition_difference",
    "is_admitted",
    "orphaned_handlers",
    "reported_problems",
]


async def is_admitted(client: Client, workflow: Workflow) -> bool:
    """Return True if a supervisor has admitted the workflow. Only admitted workflows have a log.

    Args:
        client: The client.
        workflow: The workflow.

    Returns:
        True if the workflow is admitted, or if the user may not read logs.
    """
    try:
        with client.bus.optional_requests(""):
            return await client.bus.last("log", client.subjects.log(workflow.team, workflow.id)) is not None
    except PermissionDeniedError:
        return True


def orphaned_handlers(cards: Sequence[AgentCard]) -> str:
    """Return the number of cancelled handlers that still run, as text; empty for 0."""
    count = sum(card.orphaned_handlers for card in cards)
    return f"{count} cancelled handler{'' if count == 1 else 's'} still running" if count else ""


def definition_difference(cards: Sequence[AgentCard]) -> str:
    """Return the different definitions of one team as text; empty if there is no difference."""
    counts = team_definitions(cards)
    shown = ", ".join(f"{version[:8]} ({count})" for version, count in counts.items())
    return f"{len(counts)} different definitions: {shown}" if len(counts) > 1 else ""


def reported_problems(cards: Sequence[AgentCard]) -> str:
    """Return the distinct problems that the instances of one agent have announced."""
    return "; ".join(dict.fromkeys(problem for card in cards for problem in card.problems))


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
