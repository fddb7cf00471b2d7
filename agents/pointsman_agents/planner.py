"""Define the planner, which reads a request and the cards of the live agents, and writes the plan."""

from __future__ import annotations

from pathlib import Path

from pointsman import LLMAgent, Plan, PlannerInput, Role

__all__ = ["planner"]

planner = LLMAgent(
    name="planner",
    description="Writes the plan for a request: which agents do what, and in which order",
    instructions=Path(__file__).with_suffix(".md"),
    role=Role.PLAN,
    input=PlannerInput,
    output=Plan,
    output_name="plan",
    max_tokens=6_000,
    turns=2,  # the plan, and one repair if its JSON is not valid; the supervisor checks the content
    concurrency=32,
)
