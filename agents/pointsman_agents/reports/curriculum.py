"""Curriculum. One agent orders the modules of a subject by their prerequisites, and another agent plans the weeks."""

from __future__ import annotations

from graphlib import TopologicalSorter
from typing import Annotated, Final

from pydantic import BaseModel, Field

from pointsman import Limits, LLMAgent, PlanAndExecute, Team, tool
from pointsman_agents.samples import USE_TOOLS

__all__ = ["SAMPLE_REQUEST", "schedule", "sequence", "team"]

SAMPLE_REQUEST: Final = "Order the modules of statistics, and schedule the weeks at 6 hours a week"

# Sample data: the hours that a module takes, and the modules that must come before it.
_SUBJECTS: Final[dict[str, dict[str, tuple[int, tuple[str, ...]]]]] = {
    "statistics": {
        "regression": (9, ("tests", "probability")),
        "tests": (6, ("probability",)),
        "probability": (8, ("sets",)),
        "sets": (4, ()),
    },
    "databases": {"queries": (6, ("tables",)), "tables": (4, ()), "indexes": (5, ("queries",))},
}

Subject = Annotated[str, Field(json_schema_extra={"enum": list(_SUBJECTS)})]


class Order(BaseModel):
    summary: str
    modules: list[str] = []


class Weeks(BaseModel):
    summary: str
    weeks: int = 0


@tool(idempotent=True)
def order_modules(subject: Subject) -> Order:
    """Order the modules of a subject so that each comes after those it requires."""
    needs = {name: required for name, (_, required) in _SUBJECTS[subject].items()}
    modules = list(TopologicalSorter(needs).static_order())
    return Order(summary=f"Order of {subject} (sample data): {', '.join(modules)}.", modules=modules)


@tool(idempotent=True)
def count_weeks(subject: Subject, hours: Annotated[int, Field(ge=1, description="Hours a week")]) -> Weeks:
    """Compute how many weeks a subject takes."""
    total = sum(hours_needed for hours_needed, _ in _SUBJECTS[subject].values())
    weeks = -(-total // hours)
    return Weeks(summary=f"{total} hours at {hours} a week are {weeks} weeks.", weeks=weeks)


sequence = LLMAgent(
    name="sequence",
    description="Orders the modules of a subject by their prerequisites",
    skills=["modules", "order", "curriculum"],
    instructions=USE_TOOLS,
    tools=[order_modules],
    output=Order,
)
schedule = LLMAgent(
    name="schedule",
    description="Schedules a subject: how many weeks it takes at some hours a week",
    skills=["schedule", "weeks"],
    instructions=USE_TOOLS,
    tools=[count_weeks],
    output=Weeks,
)

team = Team(
    name="curriculum",
    description="Orders what students learn, and schedules it",
    agents=("sequence", "schedule"),
    strategy=PlanAndExecute(instructions="Schedule needs sequence."),
    limits=Limits(deadline=60.0, task_timeout=30.0, tokens=50_000),
)
