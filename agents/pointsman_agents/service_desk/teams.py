"""Define three teams. The desk gives tasks to the other teams, and these teams give tasks to their own specialists."""

from __future__ import annotations

from typing import Final

from pointsman import Limits, PlanAndExecute, Team

__all__ = ["SAMPLE_REQUEST", "billing_team", "team", "technical_team"]

SAMPLE_REQUEST: Final = (
    "I was charged twice this month and want a refund, my API calls fail with error 429, and my webhook deliveries "
    "stopped."
)

_LIMITS: Final = Limits(deadline=120.0, task_timeout=100.0, tokens=100_000)

billing_team = Team(
    name="billing-team",
    description="Money: charges that came twice, refunds, and subscriptions, their plan and price",
    skills=("refunds", "charges", "subscriptions"),
    agents=("refund", "subscriptions"),
    strategy=PlanAndExecute(instructions="Charges and refunds go to refund, plans and prices to subscriptions."),
    limits=_LIMITS,
)

technical_team = Team(
    name="technical-team",
    description="Technology: failing API calls, error codes, rate limits, and integrations such as webhook deliveries",
    skills=("api", "errors", "webhooks", "integrations"),
    agents=("api", "integration"),
    strategy=PlanAndExecute(instructions="Calls to us go to api, calls from us to integration."),
    limits=_LIMITS,
)

team = Team(
    name="service-desk",
    description="One desk for all questions of customers",
    agents=("billing-team", "technical-team"),
    strategy=PlanAndExecute(
        instructions="Each agent is a team with specialists of its own: give it everything that is its part in one "
        "task, with all the ids and error codes that the request names."
    ),
    limits=_LIMITS,
)
