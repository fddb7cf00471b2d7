"""Who gets a task now: the agent it names while that one is well, who stands in for it, or nobody yet.

What is chosen here rests on figures that nobody keeps, so the choice stands in the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pointsman.core.decision import Decision
from pointsman.core.model.agent_health import Load, probe_id
from pointsman.core.model.lifecycle import TaskStatus
from pointsman.core.model.state import State, Task
from pointsman_schemas.card import AgentCard, Role
from pointsman_schemas.plan import Plan, PlannedTask

__all__ = ["HOLD_DURATION", "AgentChoice", "can_dispatch", "eligible_agents", "resolve_skills", "select_agent"]

UNKNOWN_LOAD = Load()
HOLD_DURATION = timedelta(seconds=10)
"""The longest time until a task that nobody can be given is looked at again: the agent may be well before its time."""


@dataclass(frozen=True, slots=True)
class AgentChoice:
    """`agent` gets the attempt, in the place of the one it names; or nobody does before `until`."""

    agent: str
    fallback_for: str | None = None
    until: datetime | None = None


def select_agent(decision: Decision, task: Task) -> AgentChoice:
    """Who gets the next attempt at `task`."""
    if task.skill and not task.approval_attempts:
        return _least_loaded(decision, task)
    stand_in = _fallback(decision, task)
    for name in (task.agent, stand_in):
        if name is not None and can_dispatch(decision, name, task):
            return AgentChoice(name, fallback_for=task.agent if name != task.agent else None)
    return AgentChoice(task.agent, until=_held_until(decision, task, [task.agent, *filter(None, [stand_in])]))


def _least_loaded(decision: Decision, task: Task) -> AgentChoice:
    """The agent with the task's skill that would be done first: by its queue, and by what it took lately. After a
    failure it is another one, if there is one."""
    context = decision.context
    names = _agents_with_skill(decision, task.skill) or [task.agent] * bool(
        task.agent
    )  # it waits for whoever had the skill
    ready = [name for name in names if can_dispatch(decision, name, task)]
    if task.status is TaskStatus.AWAITING_BUDGET and task.agent in ready:
        ready = [task.agent]  # it was chosen before there was something to use
    elif task.attempt and len(ready) > 1:
        ready = [name for name in ready if name != task.agent]
    if not ready:
        return AgentChoice(task.agent, until=_held_until(decision, task, names))
    if len(ready) == 1:
        return AgentChoice(ready[0])
    decision.loads_consulted.update(ready)
    loads = {name: context.loads.get(name, UNKNOWN_LOAD) for name in ready}
    # Who was not seen at work yet is taken to be as quick as the quickest, and goes first: so it is tried.
    usual = min((load.seconds for load in loads.values() if load.seconds is not None), default=1.0)
    slots = {name: sum(card.concurrency for card in context.cards if card.name == name) for name in ready}
    probes = context.circuits.keys()  # one that may be probed is, for else it would never be known to be well

    def order(name: str) -> tuple[bool, float, bool, str]:
        wait = loads[name].estimated_wait(decision.dispatched[name], slots[name], usual)
        return name not in probes, wait, loads[name].seconds is not None, name

    return AgentChoice(min(ready, key=order))


def resolve_skills(decision: Decision, plan: Plan) -> Plan:
    """`plan` with an agent for each task that asks for a skill alone. It is only the first of those who have it: who
    gets the task is chosen when it starts."""
    return plan.model_copy(update={"tasks": tuple(_resolve_skill(decision, task) for task in plan.tasks)})


def _resolve_skill(decision: Decision, task: PlannedTask) -> PlannedTask:
    if task.agent:
        return task.model_copy(update={"skill": ""}) if task.skill else task
    return task.model_copy(update={"agent": next(iter(_agents_with_skill(decision, task.skill)), "")})


def _agents_with_skill(decision: Decision, skill: str) -> list[str]:
    """The live agents that have `skill` and may be used here, by name."""
    cards = eligible_agents(decision.state, decision.context.cards)
    return sorted({card.name for card in cards if skill in card.skills})


def can_dispatch(decision: Decision, agent: str, task: Task) -> bool:
    """Whether `agent` may be sent the next attempt at `task`: it is well, or this is its one probe."""
    circuit = decision.context.circuits.get(agent)
    if circuit is None or circuit.probe == probe_id(decision.state.workflow_id, task.id, task.attempt + 1):
        return True
    return decision.now >= circuit.until and agent not in decision.probes


def _held_until(decision: Decision, task: Task, agents: Sequence[str]) -> datetime:
    """When to look again for one of `agents`, none of which is free."""
    again = decision.now + HOLD_DURATION
    opens = [decision.context.circuits[name].until for name in agents]
    ends = decision.latest_start(task.role)
    return min(moment for moment in (*opens, ends, again) if moment > decision.now)


def _fallback(decision: Decision, task: Task) -> str | None:
    """The live fallback of the task's agent. What people said to an agent's calls is for that agent alone."""
    card = decision.card(task.agent)
    name = task.fallback if task.attempt else card.fallback if card else None
    if name is None or task.approval_attempts or decision.card(name) is None:
        return None
    return name


def eligible_agents(state: State, cards: Sequence[AgentCard], named: Sequence[str] = ()) -> Iterator[AgentCard]:
    """The live agents that the workflow's plans may use, `named` teams among them where the team uses any agent. Where
    teams may not be nested deeper, there is none."""
    for card in cards:
        if card.role is not Role.WORK or (card.team and state.depth >= state.limits.nesting):
            continue
        if state.agents == "*":
            if card.name in named or not card.team:
                yield card
        elif card.name in state.agents:
            yield card
