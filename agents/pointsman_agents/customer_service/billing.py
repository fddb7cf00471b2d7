"""Define the billing specialist, which lists charges, finds duplicates, and requests refunds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from pointsman import Context, LLMAgent, TaskError, tool
from pointsman_agents.customer_service.back_office import (
    DEFAULT_CUSTOMER,
    CustomerId,
    back_office,
    customer,
)
from pointsman_agents.samples import format_dollars

__all__ = ["billing", "find_charges", "request_refund", "subscription"]

ChargeId = Annotated[
    str, Field(pattern=r"^ch-\d{4}$", description="The id of a charge, such as ch-5001", examples=["ch-5001"])
]


class Charge(BaseModel):
    id: str
    day: str
    amount: str
    what: str
    refund: str = ""


class Duplicate(BaseModel):
    """A charge that repeats the charge `duplicate_of` and that is not refunded yet."""

    charge_id: str
    duplicate_of: str
    amount: str


class Charges(BaseModel):
    summary: str
    customer_id: str
    charges: list[Charge]
    duplicates: list[Duplicate]


class Refund(BaseModel):
    """A refund. Its `status` is `requested`, `paid`, or `review` if a person has to decide."""

    summary: str
    refund_id: str
    refunded_charge: str
    amount: str
    status: str


class Subscription(BaseModel):
    summary: str
    plan: str
    monthly_price: str
    renews: str


@tool(idempotent=True)
def find_charges(customer_id: CustomerId = DEFAULT_CUSTOMER) -> Charges:
    """List what a customer was billed: charges, payments, invoices, with refunds, and which of them are duplicates."""
    with back_office() as office:
        customer(office, customer_id)
        rows = office.execute(
            "SELECT found.*, refunds.id AS refund, refunds.status FROM charges_and_twins AS found "
            "LEFT JOIN refunds ON refunds.charge = found.id WHERE customer = ? ORDER BY found.id",
            (customer_id,),
        ).fetchall()
    twins = {row["id"]: row["twin"] for row in rows}
    charges = [
        Charge(
            id=row["id"],
            day=row["day"],
            amount=format_dollars(row["amount"]),
            what=row["what"],
            refund=f"{row['refund']} ({row['status']})" if row["refund"] else "",
        )
        for row in rows
    ]
    twice = [charge for charge in charges if twins[charge.id]]
    return Charges(
        summary=" ".join([*(_charge_text(charge, twins[charge.id]) for charge in twice), _charge_list(charges)]),
        customer_id=customer_id,
        charges=charges,
        duplicates=[
            Duplicate(charge_id=charge.id, duplicate_of=twins[charge.id], amount=charge.amount)
            for charge in twice
            if not charge.refund
        ],
    )


@tool(idempotent=True, retries=2)
def request_refund(
    charge_id: ChargeId,
    reason: Annotated[str, Field(max_length=2000, description="The reason, in the customer's words")],
    context: Context,
) -> Refund:
    """Request a refund: the money back for an amount charged twice, double or by mistake."""
    with back_office() as office:
        office.execute("BEGIN IMMEDIATE")
        charge = office.execute("SELECT * FROM charges_and_twins WHERE id = ?", (charge_id,)).fetchone()
        if charge is None:
            raise TaskError(f"there is no charge {charge_id}; find_charges lists the charges of a customer")
        twin = charge["twin"]
        office.execute(
            "INSERT OR IGNORE INTO refunds VALUES (?, ?, ?, ?, ?)",
            (charge_id, f"rf-{charge_id[3:]}", "requested" if twin else "review", reason, context.idempotency_key),
        )
        refund = office.execute("SELECT * FROM refunds WHERE charge = ?", (charge_id,)).fetchone()
    amount, number = format_dollars(charge["amount"]), refund["id"]
    if refund["idempotency_key"] != context.idempotency_key:
        summary = f"Charge {charge_id} had been refunded before, as {number} ({refund['status']}); nothing was added."
    elif twin:
        summary = f"Refund {number} of {amount} for charge {charge_id} is requested; it takes 5 to 10 business days."
    else:
        summary = (
            f"Charge {charge_id} of {amount} is not a duplicate, so refund {number} waits for a person to review it, "
            "within 2 business days."
        )
    return Refund(summary=summary, refund_id=number, refunded_charge=charge_id, amount=amount, status=refund["status"])


@tool(idempotent=True)
def subscription(customer_id: CustomerId = DEFAULT_CUSTOMER) -> Subscription:
    """Look up the subscription plan of a customer: its price, its renewal, how to upgrade, downgrade or cancel it."""
    with back_office() as office:
        row = customer(office, customer_id)
    price = format_dollars(row["price"])
    summary = (
        f"You are on the {row['plan']} plan for {price} a month, which renews on {row['renews']}. You can upgrade, "
        "downgrade or cancel it under Settings, Plan, until the day before."
        if row["price"]
        else f"You are on the {row['plan']} plan, which costs nothing. You can upgrade it under Settings, Plan."
    )
    return Subscription(summary=summary, plan=row["plan"], monthly_price=price, renews=row["renews"])


billing = LLMAgent(
    name="billing",
    description="Charges, invoices, payments, refunds and subscriptions of a customer",
    skills=["charges", "refunds", "invoices", "subscriptions"],
    intents=["investigate_charge", "request_refund", "explain_invoice", "change_subscription"],
    examples=[
        "I was charged twice this month",
        "Refund my last payment, it was billed by mistake",
        "How much is my plan, when is the money taken, and how do I cancel or upgrade?",
    ],
    instructions=Path(__file__).with_suffix(".md"),
    tools=[find_charges, request_refund, subscription],
)


def _charge_text(charge: Charge, twin: str) -> str:
    said = f"Charge {charge.id} of {charge.amount} on {charge.day} is a duplicate of {twin}: you were charged twice"
    return f"{said}; the refund is {charge.refund}." if charge.refund else f"{said}."


def _charge_list(charges: list[Charge]) -> str:
    if not charges:
        return "There are no charges."
    return f"All charges: {'; '.join(f'{each.id} of {each.amount} on {each.day}' for each in charges)}."
