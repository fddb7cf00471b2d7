"""Define the members of the panel. Each member has its own tool, and receives no results of other members."""

from __future__ import annotations

from typing import Any

from pointsman import LLMAgent, Tool, tool
from pointsman_agents.perspectives.proposals import ProposalId, View, judge, proposal

__all__ = ["demand", "finance", "operations", "risk"]


@tool(idempotent=True)
def weigh_money(proposal_id: ProposalId) -> View:
    """Weigh what a proposal earns in a year against what it costs."""
    known = proposal(proposal_id)
    return judge(known.cost, known.gain, f"It earns ${known.gain},000 a year and costs ${known.cost},000.")


@tool(idempotent=True)
def weigh_demand(proposal_id: ProposalId) -> View:
    """Weigh how many customers ask for a proposal against how many would leave."""
    known = proposal(proposal_id)
    # A customer that leaves counts three times, because it costs the income of three customers to win a new one.
    return judge(
        3 * known.leaving, known.asked_for, f"{known.asked_for} customers ask for it, {known.leaving} may leave."
    )


@tool(idempotent=True)
def weigh_effort(proposal_id: ProposalId) -> View:
    """Weigh the effort of a proposal against the time the teams have this quarter."""
    known = proposal(proposal_id)
    return judge(
        known.effort, known.free_weeks, f"It takes {known.effort} weeks, and {known.free_weeks} are free this quarter."
    )


@tool(idempotent=True)
def weigh_risk(proposal_id: ProposalId) -> View:
    """Weigh the open findings about a proposal."""
    findings = proposal(proposal_id).open_findings
    return judge(len(findings), 0.0 if findings else 1.0, "; ".join(findings) or "There is no open finding.")


def _member(name: str, side: str, weigh: Tool[..., Any]) -> LLMAgent:
    return LLMAgent(
        name=name,
        description=f"Looks at a proposal from the side of {side}",
        skills=[side],
        instructions=f"You judge proposals from the side of {side} alone; others see to the rest. Use your tool, take "
        "its verdict unless the request gives you a better reason, and say in `summary` what it rests on.",
        tools=[weigh],
        output=View,
        output_name="view",
    )


finance = _member("finance", "money", weigh_money)
demand = _member("demand", "customers", weigh_demand)
operations = _member("operations", "effort", weigh_effort)
risk = _member("risk", "risk", weigh_risk)
