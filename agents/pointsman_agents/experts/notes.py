"""Define the notes of each expert. The notes are sample data about a fictional country, and are not advice."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel

from pointsman_agents.samples import best_entries

__all__ = ["Notes", "look_up"]


class Notes(BaseModel):
    """The notes that match a question best. `notes` is empty if no note matches."""

    summary: str
    notes: list[str]


_NOTES: Final = {
    "legal": (
        "Lease: either side may terminate it with a notice period of three months, in writing.",
        "Contract: an offer by letter binds whoever made it for 14 days.",
        "Copyright: what an employee writes at work belongs to the employer, unless their contract says otherwise.",
    ),
    "medical": (
        "Fever: drink enough and rest; see a doctor when it is above 39.5 C or lasts longer than three days.",
        "Ibuprofen: take it with food, and not together with other blood thinners such as warfarin.",
        "Tetanus vaccination: adults have a booster every ten years.",
    ),
    "technical": (
        "Python imports: a ModuleNotFoundError means that the package is not in the environment that runs; install it.",
        "Database queries that are slow want an index on the columns they filter by; look at the query plan first.",
        "TLS certificate errors: check the clock of the machine, then the chain of the certificate.",
    ),
    "financial": (
        "Mortgage: the monthly instalment may not exceed a third of net income.",
        "Pension savings are taxed when they are paid out, not when they are paid in.",
        "Shares held longer than five years are free of tax on their gain.",
    ),
}


def look_up(field: str, question: str) -> Notes:
    """Return the notes of `field` that match `question` best: several notes, if they match equally well."""
    found = best_entries(_NOTES[field], question, least=0.25)
    return Notes(summary=" ".join(found) or f"The {field} notes say nothing about this.", notes=found)
