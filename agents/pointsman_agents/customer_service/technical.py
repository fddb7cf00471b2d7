"""Define the technical specialist, which looks for incidents of the service and for exceeded rate limits."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from pointsman import LLMAgent, tool
from pointsman_agents.customer_service.back_office import (
    DEFAULT_CUSTOMER,
    CustomerId,
    back_office,
    customer,
    status_page,
)

__all__ = ["rate_limits", "service_status", "technical"]


class Incident(BaseModel):
    id: str
    component: str
    status: str
    started: str
    title: str
    detail: str


class Status(BaseModel):
    summary: str
    updated: str
    components: dict[str, str]
    incidents: list[Incident]


class RateLimits(BaseModel):
    """The limit of the plan (`allowed`) and the peak of the last hour, both in requests a minute."""

    summary: str
    plan: str
    allowed: int
    peak: int


@tool(idempotent=True)
def service_status() -> Status:
    """Read the status page: incidents, outages, errors, timeouts; is the service or API down, slow, failing?"""
    page = status_page()
    incidents = [Incident.model_validate(incident) for incident in page["incidents"]]
    degraded = [name for name, state in page["components"].items() if state != "operational"]
    told = [f"{incident.title} ({incident.id}, {incident.status}). {incident.detail}" for incident in incidents]
    if degraded:
        told.append(f"Not fully operational: {', '.join(degraded)}.")
    return Status(
        summary=" ".join(told) or "All components are operational, and there is no open incident.",
        updated=page["updated"],
        components=page["components"],
        incidents=incidents,
    )


@tool(idempotent=True)
def rate_limits(customer_id: CustomerId = DEFAULT_CUSTOMER) -> RateLimits:
    """Look up the rate limit of a customer and how much of it is used: why requests get a 429, too many requests."""
    with back_office() as office:
        row = customer(office, customer_id)
    allowed, peak = row["requests_per_minute"], row["peak_per_minute"]
    summary = f"The {row['plan']} plan allows {allowed} requests a minute; your peak in the last hour was {peak}"
    summary += (
        ", which is over it: spread the requests out, wait as long as Retry-After says, or take a larger plan."
        if peak > allowed
        else ", which is within it, so your own traffic is not the cause."
    )
    return RateLimits(summary=summary, plan=row["plan"], allowed=allowed, peak=peak)


technical = LLMAgent(
    name="technical",
    description="The API and the service: errors, failing calls, rate limits, timeouts, outages and incidents",
    skills=["api", "errors", "rate limits", "outages", "status"],
    intents=["diagnose_api_error", "check_service_status", "explain_rate_limit"],
    examples=[
        "My API calls fail with error 429",
        "Is the service down? Requests are slow and time out",
        "How many requests a minute may I send?",
    ],
    instructions=Path(__file__).with_suffix(".md"),
    tools=[service_status, rate_limits],
)
