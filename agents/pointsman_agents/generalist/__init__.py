"""A generalist team, which looks up facts, then writes about the facts and shows code."""

from __future__ import annotations

from pointsman_agents.generalist.agents import code, research, writing
from pointsman_agents.generalist.team import SAMPLE_REQUEST, team

__all__ = ["SAMPLE_REQUEST", "code", "research", "team", "writing"]
