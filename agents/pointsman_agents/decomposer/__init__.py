"""A team that splits a task and gives the parts to itself, up to three levels deep. Then it joins the results."""

from __future__ import annotations

from pointsman_agents.decomposer.team import SAMPLE_REQUEST, joiner, solver, splitter, team

__all__ = ["SAMPLE_REQUEST", "joiner", "solver", "splitter", "team"]
