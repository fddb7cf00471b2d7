"""Define the team under measurement. Its agents do nothing, so the benchmarks measure only the runtime."""

from __future__ import annotations

from pointsman.authoring.agent import agent
from pointsman_schemas.card import Role
from pointsman_schemas.plan import Plan, PlannedTask
from pointsman_schemas.role_io import PlannerInput, Synthesis, SynthesizerInput
from pointsman_schemas.team import Team

__all__ = ["AGENTS", "PLANS", "TEAM", "WIDTHS", "a", "b", "planner", "synthesizer"]

AGENTS = ("planner", "a", "b", "synthesizer")

_OUTPUT = "x" * 200  # bytes of every result
_SLOTS = 256  # slots of an agent: more than the handoffs in flight, so no handoff waits for a slot


def _task(name: str, agent: str, *needs: str) -> PlannedTask:
    return PlannedTask(id=name, agent=agent, intent=f"Do nothing for {name}", depends_on=needs)


def _wide(goal: str, fan: int) -> Plan:
    tasks = tuple(_task(f"t{n}", "ab"[n % 2]) for n in range(fan))
    return Plan(goal=goal, tasks=(*tasks, _task("join", "b", *(task.id for task in tasks))))


_FAN = 200
_CHAIN = 50

PLANS = {
    "W1": Plan(
        goal="Three at a time, then one",
        tasks=(_task("t1", "a"), _task("t2", "a"), _task("t3", "b"), _task("join", "b", "t1", "t2", "t3")),
    ),
    "W2": _wide("Many at a time, then one", _FAN),
    "W3": Plan(
        goal="One after the other",
        tasks=(_task("t0", "a"), *(_task(f"t{n}", "ab"[n % 2], f"t{n - 1}") for n in range(1, _CHAIN))),
    ),
}
"""W1: 3 parallel tasks and a join. W2: 200 parallel tasks and a join. W3: a chain of 50."""

WIDTHS = (50, 200, 500, 999)
"""Numbers of parallel tasks in the plans `W2-50` and so on, for `benchmarks.growth`. A plan may have 1,000 tasks."""


@agent(name="planner", description="Returns the plan with the requested name", role=Role.PLAN, concurrency=_SLOTS)
async def planner(asked: PlannerInput) -> Plan:
    shape, _, width = str(asked.request).partition("-")
    return _wide(shape, int(width)) if width else PLANS[shape]


@agent(name="a", description="Does nothing", concurrency=_SLOTS)
async def a(request: str) -> str:
    return _OUTPUT


@agent(name="b", description="Does nothing", concurrency=_SLOTS)
async def b(request: str) -> str:
    return _OUTPUT


@agent(name="synthesizer", description="Answers", role=Role.SYNTHESIZE, concurrency=_SLOTS)
async def synthesizer(asked: SynthesizerInput) -> Synthesis:
    return Synthesis(answer=_OUTPUT)


TEAM = Team(name="bench", agents=("a", "b"))
