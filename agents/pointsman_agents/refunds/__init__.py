"""A refund in four checked stages, over the customer-service team's back office."""

from __future__ import annotations

from pointsman_agents.refunds.stages import check_policy, compose_response, extract_details, verify_charges
from pointsman_agents.refunds.team import SAMPLE_REQUEST, team

__all__ = ["SAMPLE_REQUEST", "check_policy", "compose_response", "extract_details", "team", "verify_charges"]
