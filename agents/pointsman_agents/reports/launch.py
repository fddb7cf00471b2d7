"""Product launch. One agent computes the last start of each step, and another agent finds the critical steps."""

from __future__ import annotations

from datetime import date, timedelta
from functools import cache
from typing import Annotated, Final

from pydantic import BaseModel, Field

from pointsman import Limits, LLMAgent, PlanAndExecute, TaskError, Team, tool
from pointsman_agents.samples import USE_TOOLS

__all__ = ["SAMPLE_REQUEST", "checklist", "critical", "team"]

SAMPLE_REQUEST: Final = "Date the checklist for the launch on 2027-03-15, and find the critical steps"

# Sample data: the duration of each step in days, and the steps that can start only after this step.
_STEPS: Final[dict[str, tuple[int, tuple[str, ...]]]] = {
    "beta test": (21, ("fixes",)),
    "fixes": (10, ("announcement",)),
    "pricing": (5, ("website",)),
    "website": (7, ("announcement",)),
    "announcement": (2, ()),
}

Launch = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$", description="The day of the launch, such as 2027-03-15")]


class Checklist(BaseModel):
    """The last day on which each step can start, by the name of the step."""

    summary: str
    starts: dict[str, str] = {}


class Critical(BaseModel):
    summary: str
    steps: list[str] = []
    days: int = 0


@tool(idempotent=True)
def date_checklist(launch: Launch) -> Checklist:
    """Date the steps of the checklist back from the day of the launch."""
    day = _day(launch)
    starts = {name: str(day - timedelta(days=_days_before(name))) for name in _STEPS}
    starts = dict(sorted(starts.items(), key=lambda item: item[1]))
    told = ", ".join(f"{name} by {start}" for name, start in starts.items())
    return Checklist(summary=f"To launch on {launch}, start (sample steps): {told}.", starts=starts)


@tool(idempotent=True)
def find_critical(launch: Launch) -> Critical:
    """Find the critical steps of a launch: the chain that takes longest, in which any delay moves the launch."""
    day = _day(launch)
    chain = [max(_STEPS, key=_days_before)]
    while following := _STEPS[chain[-1]][1]:
        chain.append(max(following, key=_days_before))
    days = _days_before(chain[0])
    told = f"A delay of {', '.join(chain)} moves the launch of {day}: together they take {days} days."
    return Critical(summary=told, steps=chain, days=days)


checklist = LLMAgent(
    name="checklist",
    description="Dates the checklist of a launch back from its day",
    skills=["launch", "checklist", "dates"],
    examples=["When must each step start to launch on 2027-03-15?"],
    instructions=USE_TOOLS,
    tools=[date_checklist],
    output=Checklist,
)
critical = LLMAgent(
    name="critical",
    description="Finds the critical steps of a launch, those that cannot be late",
    skills=["critical", "steps"],
    examples=["Which steps are critical for a launch on 2027-03-15?", "What must not be late?"],
    instructions=USE_TOOLS,
    tools=[find_critical],
    output=Critical,
)

team = Team(
    name="launch",
    description="Plans product launches: a dated checklist, and its critical steps",
    agents=("checklist", "critical"),
    strategy=PlanAndExecute(),
    limits=Limits(deadline=60.0, task_timeout=30.0, tokens=50_000),
)


def _day(launch: str) -> date:
    try:
        return date.fromisoformat(launch)
    except ValueError as error:
        raise TaskError(f"{launch} is not a day of the calendar; give a day in the form 2027-03-15") from error


@cache
def _days_before(step: str) -> int:
    """Return the number of days before the launch at which `step` must start."""
    days, following = _STEPS[step]
    return days + max((_days_before(each) for each in following), default=0)
