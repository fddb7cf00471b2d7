"""A panel with several points of view on one proposal. The answer names the disagreements of the panel."""

from __future__ import annotations

from pointsman_agents.perspectives.team import SAMPLE_REQUEST, team
from pointsman_agents.perspectives.views import demand, finance, operations, risk

__all__ = ["SAMPLE_REQUEST", "demand", "finance", "operations", "risk", "team"]
