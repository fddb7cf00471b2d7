"""Define the refund policy as code, because no model may decide on money."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field

from pointsman import tool
from pointsman_agents.customer_service.back_office import DEFAULT_CUSTOMER, CustomerId, back_office, customer
from pointsman_agents.samples import format_dollars

__all__ = ["Decision", "refund_policy"]

TODAY: Final = date(2026, 11, 27)
"""The date of the sample data. The age of a charge is computed from this date, so examples do not change with time."""

_REFUND_WINDOW_DAYS: Final = (
    14  # days in which a charge may be returned without a reason, as the usual right of withdrawal allows
)

_CHARGES: Final = """
SELECT found.*, refunds.status AS refund FROM charges_and_twins AS found
LEFT JOIN refunds ON refunds.charge = found.id WHERE customer = ? ORDER BY twin IS NULL, found.id DESC
"""
"""If the request names no charge, the first row is used: duplicates come first, then the newest charges."""


class Decision(BaseModel):
    """A decision on the charge `charge_id`, by the rule `rule` of the policy."""

    summary: str
    decision: Literal["approved", "denied"]
    charge_id: str
    amount: str
    rule: str


@tool(idempotent=True)
def refund_policy(
    customer_id: CustomerId = DEFAULT_CUSTOMER,
    charge_id: Annotated[
        str | None, Field(pattern=r"^ch-\d{4}$", description="The charge, when one is named", examples=["ch-5001"])
    ] = None,
) -> Decision:
    """Decide by the refund policy: is a refund of a charge approved or denied, and by which rule."""
    with back_office() as office:
        customer(office, customer_id)
        rows = office.execute(_CHARGES, (customer_id,)).fetchall()
    row = next((row for row in rows if charge_id in (None, row["id"])), None)
    if row is None:
        what = f"charge {charge_id}" if charge_id else "any charge"
        return Decision(
            summary=f"The refund is denied: {customer_id} has not made {what}.",
            decision="denied", charge_id=charge_id or "none", amount="$0.00", rule="no such charge",
        )  # fmt: skip
    rule, approved = _rule(row["twin"], row["refund"], (TODAY - date.fromisoformat(row["day"])).days)
    decision: Literal["approved", "denied"] = "approved" if approved else "denied"
    amount = format_dollars(row["amount"])
    return Decision(
        summary=f"The refund of charge {row['id']} over {amount} is {decision}: {rule}.",
        decision=decision,
        charge_id=row["id"],
        amount=amount,
        rule=rule,
    )


def _rule(twin: str | None, refund: str | None, age: int) -> tuple[str, bool]:
    if refund is not None:
        return f"it was refunded before ({refund})", False
    if twin is not None:
        return f"it is a duplicate of {twin}, and duplicates are always paid back", True
    return f"it is {age} days old, and a charge may be returned for {_REFUND_WINDOW_DAYS}", age <= _REFUND_WINDOW_DAYS
