"""A team that gives tasks to itself. Tasks are split until they are simple or three levels deep, and then joined."""

from __future__ import annotations

from pointsman_agents.decomposer.team import SAMPLE_REQUEST, joiner, solver, splitter, team

__all__ = ["SAMPLE_REQUEST", "joiner", "solver", "splitter", "team"]
