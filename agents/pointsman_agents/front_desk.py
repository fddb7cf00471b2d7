"""Customer service behind a router.

A request for one specialist goes directly to that specialist. For a request that needs several specialists, a planner
writes a plan, and the results become one answer. The specialists are the agents of the customer-service team and one
agent for policies.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import BaseModel

from pointsman import Limits, LLMAgent, PlanAndExecute, Role, Router, Synthesis, SynthesizerInput, Team, tool
from pointsman_agents.customer_service import SAMPLE_REQUEST
from pointsman_agents.customer_service.account import account
from pointsman_agents.customer_service.billing import billing
from pointsman_agents.customer_service.technical import technical
from pointsman_agents.samples import USE_TOOLS, best_entries

__all__ = ["SAMPLE_REQUEST", "account", "billing", "policy", "response", "team", "technical"]

# Sample data.
_POLICIES: Final = (
    "Refund policy: what was charged twice is always paid back, anything else within 14 days.",
    "Privacy policy: the data of a closed account is deleted after 30 days.",
    "Service level: a month in which the API was away for more than an hour costs half.",
    "Acceptable use: one account is for one company, and reselling is not allowed.",
)


class Policies(BaseModel):
    summary: str
    policies: list[str]


@tool(idempotent=True)
def find_policy(question: str) -> Policies:
    """Look up the policies."""
    found = best_entries(_POLICIES, question, least=0.2)
    return Policies(summary=" ".join(found) or "The policies say nothing about this.", policies=found)


policy = LLMAgent(
    name="policy",
    description="Policies and terms: refund policy, privacy and deleted data of accounts, service level, reselling, "
    "acceptable use",
    skills=["policy", "terms", "privacy", "service level"],
    examples=["What is your refund policy?", "When is the data of a closed account deleted?"],
    instructions=USE_TOOLS,
    tools=[find_policy],
)
response = LLMAgent(
    name="response",
    description="Writes the one answer of a support team",
    instructions=f"{Path(__file__).with_name('synthesizer.md').read_text(encoding='utf-8')}"
    "- You answer for the support team of a company: begin with what is solved, then say what is open.\n",
    role=Role.SYNTHESIZE,
    input=SynthesizerInput,
    output=Synthesis,
    output_name="synthesis",
    turns=2,  # the answer, and one repair if its JSON is not valid
    concurrency=32,
)

team = Team(
    name="front-desk",
    description="Answers customers about billing, the API, their accounts, and policies",
    skills=("support",),
    agents=("billing", "technical", "account", "policy"),
    strategy=Router(threshold=0.4, synthesizer="response", escalate=PlanAndExecute()),
    limits=Limits(deadline=120.0, task_timeout=60.0, tokens=100_000),
)
