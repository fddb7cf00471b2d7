"""One proposal, several points of view, one answer that names where they disagree."""

from __future__ import annotations

from pointsman_agents.perspectives.team import SAMPLE_REQUEST, team
from pointsman_agents.perspectives.views import demand, finance, operations, risk

__all__ = ["SAMPLE_REQUEST", "demand", "finance", "operations", "risk", "team"]
