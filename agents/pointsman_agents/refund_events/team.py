"""The refund choreography as a team, and a request that starts it."""

from __future__ import annotations

from typing import Final

from pointsman import Choreography, Limits, Team

__all__ = ["SAMPLE_REQUEST", "team"]

SAMPLE_REQUEST: Final = "Customer C-1001 says that ch-5003 was charged twice."

team = Team(
    name="refund-events",
    description="Refunds duplicate charges: each agent emits events, and others react to them",
    agents=("verification", "policy", "fraud", "notification"),
    strategy=Choreography(start_event="refund_asked"),
    limits=Limits(deadline=120.0, task_timeout=60.0, tasks=20),
)
