"""A refund as a choreography: agents react to events and use the back office of the customer-service team."""

from __future__ import annotations

from pointsman_agents.refund_events.reactions import fraud, notification, policy, verification
from pointsman_agents.refund_events.team import SAMPLE_REQUEST, team

__all__ = ["SAMPLE_REQUEST", "fraud", "notification", "policy", "team", "verification"]
