"""Find the processes that a team needs, which are its supervisor, its agents, and shipped agents for missing roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pointsman import app
from pointsman.errors import ConfigurationError
from pointsman_schemas.team import Team

__all__ = ["SHIPPED_TEAM", "SHIPPED_WORKERS", "Topology", "demo_topology", "topology_of"]

# The shipped agents are named by their modules, because this package must not import their package.
SHIPPED_TEAM = "pointsman_agents.customer_service"
_SHIPPED_ROLES = {name: f"pointsman_agents.{name}" for name in ("planner", "synthesizer", "classifier")}
SHIPPED_WORKERS: Mapping[str, Sequence[str]] = {
    **{name: [_SHIPPED_ROLES[name]] for name in ("planner", "synthesizer")},
    **{name: [f"{SHIPPED_TEAM}.{name}"] for name in ("billing", "technical", "account")},
}
"""The workers of the demo team. Each agent runs in its own process."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The processes of a team. `workers` maps the name of a child process to the targets that it runs.

    `agents` are the agents of all workers. `missing` are the agents that the team needs and that no worker runs.
    """

    team: Team
    target: str
    workers: Mapping[str, Sequence[str]]
    agents: frozenset[str] = field(default_factory=frozenset)
    missing: tuple[str, ...] = ()


def topology_of(target: str | None) -> Topology:
    """Find a target's processes: one for its teams, one for its agents, and one for each shipped role that is missing.

    Args:
        target: A module or a file with a team; None for the demo team.

    Returns:
        The topology.
    """
    if target in (None, SHIPPED_TEAM):
        return demo_topology()
    from pointsman.engine.process.discovery import installed_agents, load_agents

    team, teams = app.load_team(target), app.load_teams(target)
    before, _, name = target.rpartition(":")
    place = before if name.isidentifier() and before else target
    try:
        own = {agent.card.name for agent in load_agents([place])}
    except ConfigurationError:
        own = set()
    workers: dict[str, Sequence[str]] = {"agents": [place]} if own else {}
    needed = {name for each in teams for name in each.required_agents()} - {each.name for each in teams}
    for name in sorted(needed - own):
        if name in installed_agents():
            workers[name] = [name]
        elif name in _SHIPPED_ROLES:
            workers[name] = [_SHIPPED_ROLES[name]]
    found = frozenset(own | {name for name in workers if name != "agents"})
    return Topology(team, target, workers, found, tuple(sorted(needed - found)))


def demo_topology() -> Topology:
    """Import the demo team, and return its processes."""
    return Topology(app.load_team(SHIPPED_TEAM), SHIPPED_TEAM, SHIPPED_WORKERS, frozenset(SHIPPED_WORKERS))
