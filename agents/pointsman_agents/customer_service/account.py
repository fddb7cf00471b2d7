"""Define the account specialist, which checks the state of an account and sends password reset links."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from pointsman import Context, LLMAgent, tool
from pointsman_agents.customer_service.back_office import DEFAULT_CUSTOMER, CustomerId, back_office, customer

__all__ = ["account", "account_state", "send_reset_link"]


class AccountState(BaseModel):
    """The `state` of an account (`active`, `locked` or `suspended`). `sent_to` is the customer's email address.

    The address is masked, because answers are logged.
    """

    summary: str
    customer_id: str
    state: str
    reason: str
    sent_to: str


class ResetLink(BaseModel):
    summary: str
    sent: bool
    sent_to: str = ""


@tool(idempotent=True)
def account_state(customer_id: CustomerId = DEFAULT_CUSTOMER) -> AccountState:
    """Look up the account of a customer: whether it is active, locked or suspended, why, and its address."""
    with back_office() as office:
        row = customer(office, customer_id)
    because = f" because of {row['state_reason']}" if row["state_reason"] else ""
    return AccountState(
        summary=f"Your account is {row['state']}{because}.",
        customer_id=customer_id,
        state=row["state"],
        reason=row["state_reason"],
        sent_to=_mask_email(row["email"]),
    )


@tool(idempotent=True, retries=2)
def send_reset_link(context: Context, customer_id: CustomerId = DEFAULT_CUSTOMER) -> ResetLink:
    """Send a password reset link to a user who forgot it, or cannot log in, sign in or get access; it unlocks, too."""
    with back_office() as office:
        row = customer(office, customer_id)
        if row["state"] == "suspended":
            return ResetLink(
                summary=f"No reset link was sent, as it would not help: the reason is {row['state_reason']}. Access is "
                "back an hour after that is settled.",
                sent=False,
            )
        office.execute("INSERT OR IGNORE INTO reset_links VALUES (?, ?)", (context.idempotency_key, customer_id))
    address = _mask_email(row["email"])
    return ResetLink(
        summary=f"A reset link was sent to {address}; it is good for 30 minutes, sets a new password and unlocks the "
        "account.",
        sent=True,
        sent_to=address,
    )


account = LLMAgent(
    name="account",
    description="Access to a customer's account: log-in, passwords, locked or suspended accounts, profile and address",
    skills=["login", "password reset", "account access"],
    intents=["restore_access", "reset_password", "unlock_account"],
    examples=[
        "I can't log into my account",
        "I forgot my password and the login page locks me out",
        "Is my account suspended? Which email address does it have?",
    ],
    instructions=Path(__file__).with_suffix(".md"),
    tools=[account_state, send_reset_link],
)


def _mask_email(email: str) -> str:
    name, _, domain = email.partition("@")
    return f"{name[:2]}***@{domain}"
