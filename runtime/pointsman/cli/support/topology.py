"""Who must run for a team: its supervisor, its agents, and each shipped role it needs and does not define."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pointsman import app
from pointsman.errors import ConfigurationError
from pointsman_schemas.team import Team

__all__ = ["SHIPPED_TEAM", "SHIPPED_WORKERS", "Topology", "demo_topology", "topology_of"]

# By name and not by import: the shipped agents stand above the command line.
SHIPPED_TEAM = "pointsman_agents.customer_service"
_SHIPPED_ROLES = {name: f"pointsman_agents.{name}" for name in ("planner", "synthesizer", "classifier")}
SHIPPED_WORKERS: Mapping[str, Sequence[str]] = {
    **{name: [_SHIPPED_ROLES[name]] for name in ("planner", "synthesizer")},
    **{name: [f"{SHIPPED_TEAM}.{name}"] for name in ("billing", "technical", "account")},
}
"""A process for each of its agents."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Who must be there: the team, one child process per entry of `workers`: its name and what it runs, and those
    agents, `missing`, that somebody else would have to run."""

    team: Team
    target: str
    workers: Mapping[str, Sequence[str]]
    agents: frozenset[str] = field(default_factory=frozenset)
    missing: tuple[str, ...] = ()


def topology_of(target: str | None) -> Topology:
    """Who runs for `target`: its teams in a process, its agents in another, and each shipped role they need and it
    does not define."""
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
    there = frozenset(own | {name for name in workers if name != "agents"})
    return Topology(team, target, workers, there, tuple(sorted(needed - there)))


def demo_topology() -> Topology:
    """The team of the demo. Imports it."""
    return Topology(app.load_team(SHIPPED_TEAM), SHIPPED_TEAM, SHIPPED_WORKERS, frozenset(SHIPPED_WORKERS))
