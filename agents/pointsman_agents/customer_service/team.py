"""The customer-service team, its limits, and a request that needs all of its agents."""

from __future__ import annotations

from typing import Final

from pointsman import Limits, PlanAndExecute, Team

__all__ = ["SAMPLE_REQUEST", "team"]

SAMPLE_REQUEST: Final = (
    "My API calls are failing with a 429 error, I was charged twice, and I can't log into my account."
)

team = Team(
    name="customer-service",
    description="Answers customers about billing, the API and their accounts",
    agents=("billing", "technical", "account"),
    strategy=PlanAndExecute(
        instructions="A request of a customer may touch several domains: give each agent the part that is its own, and "
        "always pass on the customer's id when the request or the metadata names one."
    ),
    limits=Limits(deadline=120.0, task_timeout=60.0, tokens=100_000),
)
