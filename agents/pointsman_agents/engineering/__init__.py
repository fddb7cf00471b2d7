"""A team of engineers whose plan changes with their findings."""

from __future__ import annotations

from pointsman_agents.engineering.agents import code, comms, data, ops
from pointsman_agents.engineering.team import SAMPLE_REQUEST, team

__all__ = ["SAMPLE_REQUEST", "code", "comms", "data", "ops", "team"]
