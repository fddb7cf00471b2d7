"""Define the agents of the choreography, and the events between these agents.

refund_asked ─► verification ─► charge_verified ─► policy ─► refund_eligible ─┬► fraud
                                                                              └► notification
"""

from __future__ import annotations

import re

from pydantic import BaseModel

from pointsman import Context, RefusedError, agent
from pointsman_agents.customer_service.back_office import back_office
from pointsman_agents.refunds.policy import refund_policy
from pointsman_agents.samples import format_dollars

__all__ = ["fraud", "notification", "policy", "verification"]

_MANY_REFUNDS = 2  # with this many earlier refunds, a person should check the next refund


class RefundRequest(BaseModel):
    request: str


class VerifiedCharge(BaseModel):
    """A charge that exists. `duplicate_of` is empty unless the charge is a duplicate."""

    charge_id: str
    customer_id: str
    amount: str
    duplicate_of: str = ""


class EligibleRefund(BaseModel):
    charge_id: str
    customer_id: str
    amount: str
    rule: str


@agent(description="Looks a charge up in the books", skills=["charges"], reacts_to=["refund_asked"])
async def verification(asked: RefundRequest, context: Context) -> str:
    """Look the charge up and emit `charge_verified`."""
    named = re.search(r"\bch-\d{4}\b", asked.request)
    if named is None:
        raise RefusedError("the request names no charge; one looks like ch-5003")
    with back_office() as office:
        row = office.execute("SELECT * FROM charges_and_twins WHERE id = ?", (named[0],)).fetchone()
    if row is None:
        raise RefusedError(f"there is no charge {named[0]}")
    charge = VerifiedCharge(
        charge_id=named[0],
        customer_id=row["customer"],
        amount=format_dollars(row["amount"]),
        duplicate_of=row["twin"] or "",
    )
    await context.emit("charge_verified", charge)
    how = f"a duplicate of {charge.duplicate_of}" if charge.duplicate_of else "no duplicate"
    return f"Charge {charge.charge_id} over {charge.amount} on {row['day']} is {how}."


@agent(description="Decides by the refund policy", skills=["policy"], reacts_to=["charge_verified"])
async def policy(charge: VerifiedCharge, context: Context) -> str:
    """Apply the refund policy and emit `refund_eligible` if it approves."""
    decision = refund_policy(customer_id=charge.customer_id, charge_id=charge.charge_id)
    if decision.decision == "approved":
        eligible = EligibleRefund(**charge.model_dump(exclude={"duplicate_of"}), rule=decision.rule)
        await context.emit("refund_eligible", eligible)
    return decision.summary


@agent(description="Looks for refunds that come too often", skills=["fraud"], reacts_to=["refund_eligible"])
async def fraud(refund: EligibleRefund, context: Context) -> str:
    """Count the earlier refunds of the customer."""
    with back_office() as office:
        (before,) = office.execute(
            "SELECT COUNT(*) FROM refunds JOIN charges ON charges.id = refunds.charge WHERE customer = ?",
            (refund.customer_id,),
        ).fetchone()
    verdict = "a person should look at it" if before >= _MANY_REFUNDS else "nothing speaks against it"
    return f"{refund.customer_id} had {before} refunds before this one: {verdict}."


@agent(description="Informs the customer", skills=["notification"], reacts_to=["refund_eligible"])
async def notification(refund: EligibleRefund, context: Context) -> str:
    """Write the message to the customer."""
    return (
        f"To {refund.customer_id}: your refund of {refund.amount} for charge {refund.charge_id} is on its way, because "
        f"{refund.rule}."
    )
