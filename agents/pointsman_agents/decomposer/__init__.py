"""A team that hands to itself: a task is split until it is simple, or three levels down, and joined on the way up."""

from __future__ import annotations

from pointsman_agents.decomposer.team import SAMPLE_REQUEST, joiner, solver, splitter, team

__all__ = ["SAMPLE_REQUEST", "joiner", "solver", "splitter", "team"]
