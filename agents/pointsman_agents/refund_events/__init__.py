"""A refund without a plan: agents that react to events, over the customer-service team's back office."""

from __future__ import annotations

from pointsman_agents.refund_events.reactions import fraud, notification, policy, verification
from pointsman_agents.refund_events.team import SAMPLE_REQUEST, team

__all__ = ["SAMPLE_REQUEST", "fraud", "notification", "policy", "team", "verification"]
