"""The agents of the four stages of the refund pipeline."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from pointsman import LLMAgent
from pointsman_agents.customer_service.back_office import DEFAULT_CUSTOMER
from pointsman_agents.customer_service.billing import Charge, find_charges
from pointsman_agents.refunds.policy import Decision, refund_policy

__all__ = ["check_policy", "compose_response", "extract_details", "verify_charges"]


class RefundDetails(BaseModel):
    """The details of a request for a refund; `summary` is one sentence."""

    customer_id: Annotated[str, Field(pattern=r"^C-\d{4}$")] = DEFAULT_CUSTOMER
    charge_id: Annotated[str, Field(pattern=r"^ch-\d{4}$")] | None = None
    summary: str


class VerifiedCharges(BaseModel):
    summary: str
    charges: list[Charge]


extract_details = LLMAgent(
    name="extract_details",
    description="Finds out of a request for a refund which customer asks, for which charge, and why",
    instructions="Take from the input the customer's id, the charge's id if one is named, and in `summary`, in one "
    f"sentence, what is asked for and why. Invent nothing. Without an id of a customer it is {DEFAULT_CUSTOMER}.",
    output=RefundDetails,
    output_name="details",
)

verify_charges = LLMAgent(
    name="verify_charges",
    description="Looks up what a customer was charged",
    instructions="Look up the charges of the customer whom extract_details found, and give them back as the tool does. "
    "In `summary` say which are duplicates.",
    tools=[find_charges],
    output=VerifiedCharges,
    output_name="verified",
)

check_policy = LLMAgent(
    name="check_policy",
    description="Checks a refund against the policy",
    instructions="Ask the policy about the customer and the charge of extract_details. The tool decides, not you: give "
    "its decision back as it is.",
    tools=[refund_policy],
    output=Decision,
    output_name="decision",
)

compose_response = LLMAgent(
    name="compose_response",
    description="Writes to the customer what was decided on a refund",
    instructions="Write three to five sentences to the customer: what was charged, what was decided, by which rule, "
    "and what happens next. Copy ids, dates and amounts exactly. Promise nothing that no result says.",
)
