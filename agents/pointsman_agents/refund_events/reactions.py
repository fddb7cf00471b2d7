"""Who reacts to what.

refund_asked ─► verification ─► charge_verified ─► policy ─► refund_eligible ─┬► fraud
                                                                              └► notification
"""

from __future__ import annotations

import re

from pydantic import BaseModel

from pointsman.agent import agent
from pointsman.context import Context
from pointsman.errors import Refused
from pointsman_agents.customer_service.back_office import back_office
from pointsman_agents.refunds.policy import refund_policy
from pointsman_agents.samples import money
from pointsman_schemas.strict_json import as_json_value

__all__ = ["fraud", "notification", "policy", "verification"]

_MANY = 2  # refunds within the books from which a person should look: a second one is no accident any more


class Asked(BaseModel):
    request: str


class Verified(BaseModel):
    """A charge that exists. `duplicate_of` is empty for one that stands alone."""

    charge_id: str
    customer_id: str
    amount: str
    duplicate_of: str = ""


class Eligible(BaseModel):
    charge_id: str
    customer_id: str
    amount: str
    rule: str


@agent(description="Looks a charge up in the books", skills=["charges"], reacts_to=["refund_asked"])
async def verification(asked: Asked, context: Context) -> str:
    named = re.search(r"\bch-\d{4}\b", asked.request)
    if named is None:
        raise Refused("the request names no charge; one looks like ch-5003")
    with back_office() as office:
        row = office.execute("SELECT * FROM charges_and_twins WHERE id = ?", (named[0],)).fetchone()
    if row is None:
        raise Refused(f"there is no charge {named[0]}")
    charge = Verified(
        charge_id=named[0],
        customer_id=row["customer"],
        amount=money(row["amount"]),
        duplicate_of=row["twin"] or "",
    )
    await context.emit("charge_verified", as_json_value(charge))
    how = f"a duplicate of {charge.duplicate_of}" if charge.duplicate_of else "no duplicate"
    return f"Charge {charge.charge_id} over {charge.amount} on {row['day']} is {how}."


@agent(description="Decides by the refund policy", skills=["policy"], reacts_to=["charge_verified"])
async def policy(charge: Verified, context: Context) -> str:
    decision = refund_policy(customer_id=charge.customer_id, charge_id=charge.charge_id)
    if decision.decision == "approved":
        eligible = Eligible(**charge.model_dump(exclude={"duplicate_of"}), rule=decision.rule)
        await context.emit("refund_eligible", as_json_value(eligible))
    return decision.summary


@agent(description="Looks for refunds that come too often", skills=["fraud"], reacts_to=["refund_eligible"])
async def fraud(refund: Eligible, context: Context) -> str:
    with back_office() as office:
        (before,) = office.execute(
            "SELECT COUNT(*) FROM refunds JOIN charges ON charges.id = refunds.charge WHERE customer = ?",
            (refund.customer_id,),
        ).fetchone()
    verdict = "a person should look at it" if before >= _MANY else "nothing speaks against it"
    return f"{refund.customer_id} had {before} refunds before this one: {verdict}."


@agent(description="Tells the customer", skills=["notification"], reacts_to=["refund_eligible"])
async def notification(refund: Eligible, context: Context) -> str:
    return (
        f"To {refund.customer_id}: your refund of {refund.amount} for charge {refund.charge_id} is on its way, because "
        f"{refund.rule}."
    )
