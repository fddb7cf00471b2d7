"""A panel: several points of view on one proposal, and one answer that names their disagreements."""

from __future__ import annotations

from pointsman_agents.perspectives.team import SAMPLE_REQUEST, team
from pointsman_agents.perspectives.views import demand, finance, operations, risk

__all__ = ["SAMPLE_REQUEST", "demand", "finance", "operations", "risk", "team"]
