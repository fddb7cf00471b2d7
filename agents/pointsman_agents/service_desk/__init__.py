"""A service desk above two teams. Callers send every request to the desk, and the desk gives tasks to the teams."""

from __future__ import annotations

from pointsman_agents.service_desk.specialists import api, integration, refund, subscriptions
from pointsman_agents.service_desk.teams import SAMPLE_REQUEST, billing_team, team, technical_team

__all__ = [
    "SAMPLE_REQUEST",
    "api",
    "billing_team",
    "integration",
    "refund",
    "subscriptions",
    "team",
    "technical_team",
]
