"""Define a small table of sample proposals, and the rule by which every member of the panel judges a proposal."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field

from pointsman_agents.samples import look_up_entry

__all__ = ["Proposal", "ProposalId", "View", "judge", "proposal"]

ProposalId = Annotated[
    str, Field(pattern=r"^P-\d{3}$", description="The id of a proposal, such as P-101", examples=["P-101"])
]


class Proposal(BaseModel):
    """A proposal. `gain` and `cost` are in thousands of dollars a year, and `effort` and `free_weeks` in weeks.

    `asked_for` is the number of customers who ask for the proposal, and `leaving` the number who would leave.
    """

    title: str
    gain: int
    cost: int
    effort: int
    free_weeks: int
    asked_for: int
    leaving: int
    open_findings: tuple[str, ...] = ()


class View(BaseModel):
    """One point of view. `confidence` is from 0 to 1."""

    verdict: Literal["go", "wait"]
    confidence: float
    summary: str


_PROPOSALS: Final = {
    "P-101": Proposal(
        title="A price by usage for the Pro plan",
        gain=420, cost=150, effort=14, free_weeks=10, asked_for=61, leaving=18,
        open_findings=("invoices of usage are not yet accepted by the auditors",),
    ),
    "P-102": Proposal(
        title="Webhooks that are sent again for three days",
        gain=90, cost=20, effort=3, free_weeks=10, asked_for=112, leaving=0,
    ),
    "P-103": Proposal(
        title="A data centre of our own",
        gain=200, cost=900, effort=60, free_weeks=10, asked_for=2, leaving=0,
        open_findings=("no second site", "no staff at night"),
    ),
}  # fmt: skip


def proposal(proposal_id: str) -> Proposal:
    """Return a proposal by its id. Raise `TaskError` if the table does not have the proposal."""
    return look_up_entry(_PROPOSALS, proposal_id, "proposal")


def judge(against: float, in_favour: float, summary: str) -> View:
    """Return the view `go` if `in_favour` is larger than `against`, and otherwise the view `wait`.

    The confidence grows with the difference between both numbers.
    """
    whole = against + in_favour
    share = in_favour / whole if whole else 0.5
    return View(verdict="go" if share > 0.5 else "wait", confidence=round(0.5 + abs(share - 0.5), 2), summary=summary)
