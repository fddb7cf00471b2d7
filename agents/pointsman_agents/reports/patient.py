"""Patient case summary. One agent summarizes a case, and another finds drug interactions. All data is fictional."""

from __future__ import annotations

from itertools import combinations
from typing import Annotated, Final

from pydantic import BaseModel, Field

from pointsman import Limits, LLMAgent, PlanAndExecute, Team, tool
from pointsman_agents.samples import USE_TOOLS, look_up_entry

__all__ = ["SAMPLE_REQUEST", "history", "interactions", "team"]

SAMPLE_REQUEST: Final = "Summarize the history of patient PT-1 and check the drugs for interactions"

_INSTRUCTIONS: Final = f"{USE_TOOLS} This is not medical advice."

PatientId = Annotated[str, Field(pattern=r"^PT-\d+$", description="The patient's id, such as PT-1")]

# Sample data: the findings by day, and the drugs taken. The drugs do not exist.
_CASES: Final[dict[str, tuple[dict[str, str], tuple[str, ...]]]] = {
    "PT-1": (
        {"2026-04-20": "dizzy since Monday", "2026-02-02": "blood pressure 150/95"},
        ("avolin", "bentrix", "cordal"),
    ),
    "PT-2": ({"2026-03-11": "cough for two weeks"}, ("avolin", "cordal")),
}
_INTERACTIONS: Final = {
    frozenset({"avolin", "bentrix"}): "both lower the blood pressure",
    frozenset({"bentrix", "dolvane"}): "one doubles the level of the other",
}


class History(BaseModel):
    summary: str
    findings: list[str] = []


class Interactions(BaseModel):
    """The pairs of drugs that interact. Each of `pairs` is a text of two names, such as "avolin + bentrix"."""

    summary: str
    pairs: list[str] = []


@tool(idempotent=True)
def read_history(patient_id: PatientId) -> History:
    """Read the history of a patient, oldest finding first."""
    findings, drugs = look_up_entry(_CASES, patient_id, "patient")
    told = [f"{day} {finding}" for day, finding in sorted(findings.items())]
    summary = f"{patient_id} (a fictional case): {'; '.join(told)}. Takes {', '.join(drugs)}."
    return History(summary=summary, findings=told)


@tool(idempotent=True)
def check_interactions(patient_id: PatientId) -> Interactions:
    """Check each pair of a patient's drugs for interactions."""
    _, drugs = look_up_entry(_CASES, patient_id, "patient")
    pairs = list(combinations(drugs, 2))
    listed = {f"{a} + {b}": why for a, b in pairs if (why := _INTERACTIONS.get(frozenset({a, b})))}
    told = "; ".join(f"{pair}: {why}" for pair, why in listed.items()) or "none is listed, which does not mean none is"
    summary = f"Interactions of {patient_id}, pairs checked {len(pairs)}: {told}."
    return Interactions(summary=summary, pairs=list(listed))


history = LLMAgent(
    name="history",
    description="Summarizes the history of a patient: findings and drugs taken",
    skills=["patient", "history", "summarize"],
    examples=["Summarize patient PT-1"],
    instructions=_INSTRUCTIONS,
    tools=[read_history],
    output=History,
)
interactions = LLMAgent(
    name="interactions",
    description="Checks the drugs of a patient for interactions",
    skills=["drugs", "interactions"],
    examples=["Do the drugs of PT-1 interact?"],
    instructions=_INSTRUCTIONS,
    tools=[check_interactions],
    output=Interactions,
)

team = Team(
    name="patient",
    description="Summarizes fictional patient cases, with the interactions of their drugs",
    agents=("history", "interactions"),
    strategy=PlanAndExecute(),
    limits=Limits(deadline=60.0, task_timeout=30.0, tokens=50_000),
)
