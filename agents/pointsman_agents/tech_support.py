"""Technical support in one file.

The team has three agents: the first finds causes of problems, the second has guides, and the third hands over to a
person. One of them serves a request. If it cannot serve a part of the request, a second agent serves this part. The
agent with the guides gets a request for which the planner has no usable plan.
"""

from __future__ import annotations

import hashlib
from typing import Final

from pydantic import BaseModel

from pointsman import Context, Limits, LLMAgent, PlanAndExecute, Team, tool
from pointsman_agents.samples import USE_TOOLS, best_entries

__all__ = ["SAMPLE_REQUEST", "documenter", "escalator", "team", "troubleshooter"]

SAMPLE_REQUEST: Final = "My script keeps timing out"

# Sample data.
_CAUSES: Final = (
    "A script times out or hangs: it waits for a network call without a limit; give each call a timeout, then profile.",
    "The program crashes with a memory error: it reads a whole file at once; read it line by line.",
    "Permission denied: the file belongs to another account; look at its owner and mode.",
)
_GUIDES: Final = (
    "Set up a virtual environment: run `python -m venv .venv`, then activate it with `. .venv/bin/activate`.",
    "Export a report to Excel: open it, choose Export, then the format xlsx.",
    "Change the language: open Settings, then Language.",
)


class Found(BaseModel):
    found: bool
    summary: str


@tool(idempotent=True)
def diagnose(problem: str) -> Found:
    """Look up the known causes of a problem."""
    return _best_entries(_CAUSES, problem, "No known cause fits this.")


@tool(idempotent=True)
def find_guide(question: str) -> Found:
    """Look up the guide for what a user wants to do."""
    return _best_entries(_GUIDES, question, f"No guide fits this. There are guides for: {_titles()}.")


@tool(idempotent=True)
def open_ticket(problem: str, context: Context) -> Found:
    """Open a ticket for a person to look at."""
    number = hashlib.sha256(context.idempotency_key.encode()).hexdigest()[:8]
    return Found(found=True, summary=f"Ticket {number} is open; a person will look at: {problem}")


troubleshooter = LLMAgent(
    name="troubleshooter",
    description="Diagnoses what goes wrong: scripts that time out or hang, crashes, errors, permission denied",
    skills=["diagnosis", "errors"],
    examples=["My script keeps timing out", "The program crashes with a memory error"],
    instructions=USE_TOOLS,
    tools=[diagnose],
)
documenter = LLMAgent(
    name="documenter",
    description="Explains how to do something, step by step: set up an environment, export to Excel, change settings",
    skills=["how-to", "guides"],
    examples=["How do I set up a virtual environment?", "How can I export a report to Excel?"],
    instructions=USE_TOOLS,
    tools=[find_guide],
)
escalator = LLMAgent(
    name="escalator",
    description="Hands over to a person: complaints, data loss, security incidents, users who ask for a human",
    skills=["escalation", "human"],
    examples=["I want to talk to a human", "All our data is lost", "Our account was hacked"],
    instructions=USE_TOOLS,
    tools=[open_ticket],
)

team = Team(
    name="tech-support",
    description="Diagnoses technical problems, explains how things are done, and hands over to a person",
    agents=("troubleshooter", "documenter", "escalator"),
    strategy=PlanAndExecute(
        fallback="documenter",
        instructions="Choose one agent, the primary, and give it the request. Choose a secondary agent only for a part "
        "of the request that the primary cannot serve.",
    ),
    limits=Limits(deadline=60.0, task_timeout=30.0, tokens=50_000, tasks=2),
)


def _best_entries(entries: tuple[str, ...], asked: str, otherwise: str) -> Found:
    found = best_entries(entries, asked, least=0.3)
    return Found(found=bool(found), summary=found[0] if found else otherwise)


def _titles() -> str:
    return "; ".join(guide.partition(":")[0] for guide in _GUIDES)
