"""Define the month-end team. Its fixed plan reads invoices and payments, matches them, and writes reminders."""

from __future__ import annotations

import re
from typing import Any, Final

from pydantic import BaseModel

from pointsman import Check, Context, Fixed, Limits, Plan, PlannedTask, RefusedError, Team, agent
from pointsman_agents.samples import format_dollars

__all__ = ["SAMPLE_REQUEST", "bank", "ledger", "matcher", "reminders", "team"]

SAMPLE_REQUEST: Final = "Close 2026-05"

# Sample data by month. An invoice has a customer and an amount in cents. A payment has an invoice and an amount.
_INVOICES: Final[dict[str, dict[str, tuple[str, int]]]] = {
    "2026-05": {"I-101": ("C-1001", 4_900), "I-102": ("C-1002", 19_900), "I-103": ("C-1003", 2_500)},
    "2026-06": {"I-201": ("C-1001", 4_900)},
}
_PAYMENTS: Final[dict[str, list[tuple[str, int]]]] = {
    "2026-05": [("I-101", 4_900), ("I-102", 10_000)],
    "2026-06": [("I-201", 4_900)],
}


class MonthRequest(BaseModel):
    """A request for a month. The month, such as 2026-05, is in the field `month` or in the text `request`."""

    request: str = ""
    month: str = ""


class Open(BaseModel):
    """The unpaid amount of each invoice, in cents; `summary` is one sentence."""

    summary: str
    unpaid: dict[str, int] = {}


@agent(description="Lists the invoices of a month", skills=["invoices"])
async def ledger(asked: MonthRequest) -> dict[str, int]:
    """Return the cents of each invoice."""
    return {name: cents for name, (_, cents) in _INVOICES[_month_of(asked)].items()}


@agent(description="Lists the payments of a month", skills=["payments"])
async def bank(asked: MonthRequest) -> list[tuple[str, int]]:
    """Return the invoice and the cents of each payment."""
    return _PAYMENTS[_month_of(asked)]


@agent(description="Matches payments with invoices")
async def matcher(asked: MonthRequest, context: Context) -> Open:
    """Subtract the payments from the invoices."""
    unpaid: dict[str, int] = dict(_output(context, "invoices"))
    for name, cents in _output(context, "payments"):
        if name not in unpaid:
            raise RefusedError(f"there is a payment for {name}, which is not an invoice of {_month_of(asked)}")
        unpaid[name] -= cents
    unpaid = {name: cents for name, cents in unpaid.items() if cents}
    return Open(summary=f"{len(unpaid)} invoices of {_month_of(asked)} are not paid in full.", unpaid=unpaid)


@agent(description="Writes reminders to customers")
async def reminders(asked: MonthRequest, context: Context) -> list[str]:
    """Write one sentence for each invoice that is not paid in full."""
    invoices = _INVOICES[_month_of(asked)]
    unpaid: dict[str, int] = _output(context, "match")["unpaid"]
    return [f"{invoices[name][0]}: {format_dollars(cents)} of {name} is due." for name, cents in unpaid.items()]


def _output(context: Context, task_id: str) -> Any:
    return context.results[task_id].output


def _month_of(asked: MonthRequest) -> str:
    named = re.search(r"\b\d{4}-\d{2}\b", asked.month or asked.request)
    if named is None or named[0] not in _INVOICES:
        raise RefusedError(f"the request names no month of the sample data; there are {', '.join(_INVOICES)}")
    return named[0]


team = Team(
    name="month-end",
    description="Closes a month: which invoices are not paid, and the reminders to their customers",
    skills=("invoices", "reminders"),
    agents=("ledger", "bank", "matcher", "reminders"),
    strategy=Fixed(
        plan=Plan(
            goal="Close the month",
            tasks=(
                PlannedTask(id="invoices", agent="ledger", intent="List the invoices of the month"),
                PlannedTask(id="payments", agent="bank", intent="List the payments of the month"),
                PlannedTask(
                    id="match",
                    agent="matcher",
                    intent="Find the invoices that are not paid in full",
                    depends_on=("invoices", "payments"),
                ),
                PlannedTask(
                    id="reminders",
                    agent="reminders",
                    intent="Write a reminder for each invoice that is not paid in full",
                    depends_on=("match",),
                ),
            ),
        ),
        checks={"match": Check(fields=("summary",))},
    ),
    limits=Limits(deadline=60.0, task_timeout=30.0),
)
