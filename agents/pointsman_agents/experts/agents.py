"""Define the experts. Each expert can read only its own notes."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman import LLMAgent, tool
from pointsman_agents.experts.notes import Notes, look_up
from pointsman_agents.samples import USE_TOOLS

__all__ = ["financial", "legal", "medical", "technical"]


def _expert(name: str, description: str, *, rule: str, skills: Sequence[str], examples: Sequence[str]) -> LLMAgent:
    @tool(name=f"{name}_notes", description=f"Look up what the {name} notes say.", idempotent=True)
    def notes(question: str) -> Notes:
        return look_up(name, question)

    return LLMAgent(
        name=name,
        description=description,
        skills=skills,
        examples=examples,
        instructions=f"You are the {name} expert. {USE_TOOLS} When the notes say nothing, you do not know. {rule}",
        tools=[notes],
    )


legal = _expert(
    "legal",
    "Law: contracts, leases and their termination, notice periods, copyright",
    rule="Say that it is not legal advice.",
    skills=["law", "contracts", "lease"],
    examples=["How long is the notice period of my lease?", "Who owns the copyright of what I write at work?"],
)
medical = _expert(
    "medical",
    "Medicine: symptoms such as fever, drugs such as ibuprofen, vaccinations and boosters",
    rule="Say when to see a doctor. You do not diagnose.",
    skills=["medicine", "symptoms", "drugs", "vaccination"],
    examples=["When should I see a doctor with a fever?", "May I take ibuprofen with warfarin?"],
)
technical = _expert(
    "technical",
    "Technology: software, Python, imports, databases, slow queries, certificates and their errors",
    rule="You also get what nobody else was sure of: when it is unclear, say what you would need to know.",
    skills=["software", "python", "databases", "tls"],
    examples=["Why is my database query slow?", "What does ModuleNotFoundError mean in Python?"],
)
financial = _expert(
    "financial",
    "Money: mortgages and instalments, pensions, savings, shares and how they are taxed",
    rule="Say that it is not investment advice.",
    skills=["finance", "mortgage", "pension", "shares", "tax"],
    examples=["How much mortgage can I pay a month?", "Is the gain on my shares taxed?"],
)
