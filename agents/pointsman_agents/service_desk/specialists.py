"""The specialists of the service desk. They use the tools of the customer-service team, and one tool of their own."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel

from pointsman import LLMAgent, tool
from pointsman_agents.customer_service.back_office import DEFAULT_CUSTOMER, CustomerId, back_office, customer
from pointsman_agents.customer_service.billing import find_charges, request_refund, subscription
from pointsman_agents.customer_service.technical import rate_limits, service_status
from pointsman_agents.samples import USE_TOOLS

__all__ = ["api", "integration", "refund", "subscriptions", "webhook_deliveries"]

_INSTRUCTIONS: Final = f"{USE_TOOLS} Without an id of a customer in the task or the input, leave it out of your calls."

_DELIVERIES: Final = {
    "C-1001": (212, 40, "your endpoint answered 401: its signing secret was changed on 2026-11-26"),
    "C-1002": (1904, 0, ""),
    "C-1003": (0, 0, "no endpoint is registered"),
}
"""For each customer: the number of deliveries in the last day, how many of them failed, and why."""


class Deliveries(BaseModel):
    summary: str
    sent: int
    failed: int
    reason: str


@tool(idempotent=True)
def webhook_deliveries(customer_id: CustomerId = DEFAULT_CUSTOMER) -> Deliveries:
    """Look up the webhook deliveries of a customer's integration in the last day: how many failed, and why."""
    with back_office() as office:
        customer(office, customer_id)
    sent, failed, reason = _DELIVERIES[customer_id]
    told = f"{failed} of {sent} webhook deliveries failed in the last day"
    return Deliveries(summary=f"{told}: {reason}." if reason else f"{told}.", sent=sent, failed=failed, reason=reason)


refund = LLMAgent(
    name="refund",
    description="Charges that came twice or by mistake, and refunds for them",
    skills=["refunds", "duplicate charges"],
    examples=["I was charged twice this month", "I want a refund"],
    instructions=f"You are the refund specialist. Refund only what find_charges calls a duplicate. {_INSTRUCTIONS}",
    tools=[find_charges, request_refund],
)

subscriptions = LLMAgent(
    name="subscriptions",
    description="Subscriptions: plan, price, renewal, upgrade and cancellation",
    skills=["plans", "prices"],
    examples=["How much is my plan, and when does it renew?"],
    instructions=f"You are the subscription specialist. {_INSTRUCTIONS}",
    tools=[subscription],
)

api = LLMAgent(
    name="api",
    description="Calls to the API that fail: error codes, rate limits, incidents",
    skills=["api errors", "rate limits"],
    examples=["My API calls fail with error 429"],
    instructions=f"You are the API specialist. {_INSTRUCTIONS}",
    tools=[rate_limits, service_status],
)

integration = LLMAgent(
    name="integration",
    description="Integrations: webhook deliveries that stopped or fail",
    skills=["webhooks", "deliveries"],
    examples=["My webhook deliveries stopped"],
    instructions=f"You are the integration specialist. {_INSTRUCTIONS}",
    tools=[webhook_deliveries],
)
