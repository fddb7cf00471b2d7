"""The experts: each has its own notes, and no way to those of the others."""

from __future__ import annotations

from pathlib import Path

from pointsman.llm_agent import LLMAgent
from pointsman.tools import tool
from pointsman_agents.experts.notes import Notes, look_up

__all__ = ["financial", "legal", "medical", "technical"]

_PROMPTS = Path(__file__).parent


@tool(idempotent=True)
def legal_notes(question: str) -> Notes:
    """Look up what the notes on law say."""
    return look_up("legal", question)


@tool(idempotent=True)
def medical_notes(question: str) -> Notes:
    """Look up what the notes on medicine say."""
    return look_up("medical", question)


@tool(idempotent=True)
def technical_notes(question: str) -> Notes:
    """Look up what the notes on technology say."""
    return look_up("technical", question)


@tool(idempotent=True)
def financial_notes(question: str) -> Notes:
    """Look up what the notes on money say."""
    return look_up("financial", question)


legal = LLMAgent(
    name="legal",
    description="Law: contracts, leases and their termination, notice periods, copyright",
    skills=["law", "contracts", "lease"],
    examples=["How long is the notice period of my lease?", "Who owns the copyright of what I write at work?"],
    instructions=_PROMPTS / "legal.md",
    tools=[legal_notes],
)
medical = LLMAgent(
    name="medical",
    description="Medicine: symptoms such as fever, drugs such as ibuprofen, vaccinations and boosters",
    skills=["medicine", "symptoms", "drugs", "vaccination"],
    examples=["When should I see a doctor with a fever?", "May I take ibuprofen with warfarin?"],
    instructions=_PROMPTS / "medical.md",
    tools=[medical_notes],
)
technical = LLMAgent(
    name="technical",
    description="Technology: software, Python, imports, databases, slow queries, certificates and their errors",
    skills=["software", "python", "databases", "tls"],
    examples=["Why is my database query slow?", "What does ModuleNotFoundError mean in Python?"],
    instructions=_PROMPTS / "technical.md",
    tools=[technical_notes],
)
financial = LLMAgent(
    name="financial",
    description="Money: mortgages and instalments, pensions, savings, shares and how they are taxed",
    skills=["finance", "mortgage", "pension", "shares", "tax"],
    examples=["How much mortgage can I pay a month?", "Is the gain on my shares taxed?"],
    instructions=_PROMPTS / "financial.md",
    tools=[financial_notes],
)
