"""Contract review. One agent finds the clauses of a contract, and another agent assesses the risks of the clauses.

The request names a sample contract by its id, or contains the text of a contract: `{"request": "Assess the risks",
"text": "Liability: unlimited. Term: ..."}`.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import BaseModel, Field

from pointsman import Limits, LLMAgent, PlanAndExecute, RefusedError, Team, tool
from pointsman_agents.samples import USE_TOOLS, look_up_entry

__all__ = ["SAMPLE_REQUEST", "clauses", "risks", "team"]

SAMPLE_REQUEST: Final = "List the clauses of contract CT-1 and assess its risks"

_INSTRUCTIONS: Final = f"{USE_TOOLS} This is not legal advice."
_LONG_NOTICE_DAYS: Final = 60
"""Number of days. A longer notice counts as a risk, because a notice of at most two months is usual."""

ContractId = Annotated[str | None, Field(pattern=r"^CT-\d+$", description="The contract's id, such as CT-1")]
ContractText = Annotated[str | None, Field(description="The contract's own text, where the request has it")]

# Sample data.
_CONTRACTS: Final = {
    "CT-1": "Term: one year, renewed automatically. Termination: with 90 days notice. Liability: unlimited. "
    "Payment: within 30 days.",
    "CT-2": "Termination: with 30 days notice. Liability: up to $10,000. Confidentiality: for two years. "
    "Governing law: of Northwind.",
}
_EXPECTED_CLAUSES: Final = ("Termination", "Liability", "Confidentiality", "Governing law")


class Clauses(BaseModel):
    summary: str
    found: list[str] = []
    missing: list[str] = []


class Risks(BaseModel):
    summary: str
    risks: list[str] = []


@tool(idempotent=True)
def find_clauses(contract_id: ContractId = None, text: ContractText = None) -> Clauses:
    """Find the clauses of a contract, and which usual ones are missing."""
    contract, clauses = _clauses(contract_id, text)
    missing = [name for name in _EXPECTED_CLAUSES if name not in clauses]
    told = f"Clauses of {contract}: {', '.join(clauses)}; missing: {', '.join(missing) or 'none'}."
    return Clauses(summary=told, found=list(clauses), missing=missing)


@tool(idempotent=True)
def assess(contract_id: ContractId = None, text: ContractText = None) -> Risks:
    """Assess the risks in a contract."""
    contract, clauses = _clauses(contract_id, text)
    risks = [f"no clause on {name}" for name in _EXPECTED_CLAUSES if name not in clauses]
    if "unlimited" in clauses.get("Liability", ""):
        risks.append("liability is unlimited")
    if "automatically" in clauses.get("Term", ""):
        risks.append("it renews by itself")
    notice = re.search(r"(\d+) days", clauses.get("Termination", ""))
    if notice is not None and int(notice[1]) > _LONG_NOTICE_DAYS:
        risks.append(f"notice of {notice[1]} days, more than {_LONG_NOTICE_DAYS}")
    return Risks(summary=f"Risks of {contract}: {'; '.join(risks) or 'none found'}.", risks=risks)


clauses = LLMAgent(
    name="clauses",
    description="Lists the clauses of a contract and those that are missing",
    skills=["contract", "clauses"],
    examples=["Which clauses does CT-1 have?"],
    instructions=_INSTRUCTIONS,
    tools=[find_clauses],
    output=Clauses,
)
risks = LLMAgent(
    name="risks",
    description="Assesses the risks of a contract: liability, renewal, notice",
    skills=["risks"],
    examples=["Assess the risks of contract CT-1", "Is anything in it risky?"],
    instructions=_INSTRUCTIONS,
    tools=[assess],
    output=Risks,
)

team = Team(
    name="contract",
    description="Reviews contracts: their clauses and their risks",
    agents=("clauses", "risks"),
    strategy=PlanAndExecute(instructions="Risks needs clauses."),
    limits=Limits(deadline=60.0, task_timeout=30.0, tokens=50_000),
)


def _clauses(contract_id: str | None, text: str | None) -> tuple[str, dict[str, str]]:
    """Return the name of the contract and the text of each clause."""
    if not text and contract_id is None:
        raise RefusedError(
            "no contract was given; name one, such as CT-1, or give its words in the `text` of the request"
        )
    found = dict(
        re.findall(r"([A-Z][a-z ]+): ([^.]+)", text or look_up_entry(_CONTRACTS, str(contract_id), "contract"))
    )
    if not found:
        raise RefusedError("the text has no clause; one looks like this: Termination: with 30 days notice.")
    return "the contract" if text else str(contract_id), found
