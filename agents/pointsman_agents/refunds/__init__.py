"""A refund as a pipeline of four checked stages. A judge reviews the last stage."""

from __future__ import annotations

from pointsman_agents.refunds.stages import check_policy, compose_response, extract_details, verify_charges
from pointsman_agents.refunds.team import SAMPLE_REQUEST, team
from pointsman_agents.reviewer import reviewer

__all__ = [
    "SAMPLE_REQUEST",
    "check_policy",
    "compose_response",
    "extract_details",
    "reviewer",
    "team",
    "verify_charges",
]
