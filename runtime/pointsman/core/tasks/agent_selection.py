"""Select the agent for the next attempt: the named agent, its fallback, an agent with the skill, or no agent yet.

The selection depends on the load of agents. The load is not a part of the state, so the log records the selected agent.
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
"""Longest time between two checks of a held task. It is short, because an agent may become available at any time."""


@dataclass(frozen=True, slots=True)
class AgentChoice:
    """The agent of the next attempt.

    Attributes:
        agent: The agent.
        fallback_for: The named agent that `agent` replaces; None if `agent` is the named agent.
        until: The time of the next check, if no agent can receive the attempt now; None if `agent` can receive it.
    """

    agent: str
    fallback_for: str | None = None
    until: datetime | None = None


def select_agent(decision: Decision, task: Task) -> AgentChoice:
    """Return the agent of the next attempt at `task`."""
    if task.skill and not task.asking_attempts:
        return _least_loaded(decision, task)
    stand_in = _fallback(decision, task)
    for name in (task.agent, stand_in):
        if name is not None and can_dispatch(decision, name, task):
            return AgentChoice(name, fallback_for=task.agent if name != task.agent else None)
    return AgentChoice(task.agent, until=_held_until(decision, task, [task.agent, *filter(None, [stand_in])]))


def _least_loaded(decision: Decision, task: Task) -> AgentChoice:
    """Return the agent that has the task's skill and would finish first, by queue length and recent durations.

    After a failure, the next attempt goes to a different agent, if a different agent has the skill.
    """
    context = decision.context
    names = _agents_with_skill(decision, task.skill) or [task.agent] * bool(
        task.agent
    )  # no live agent has the skill, so wait for the last agent of the task
    ready = [name for name in names if can_dispatch(decision, name, task)]
    if task.status is TaskStatus.AWAITING_BUDGET and task.agent in ready:
        ready = [task.agent]  # this agent was selected before the wait for budget
    elif task.attempt and len(ready) > 1:
        ready = [name for name in ready if name != task.agent]
    if not ready:
        return AgentChoice(task.agent, until=_held_until(decision, task, names))
    if len(ready) == 1:
        return AgentChoice(ready[0])
    decision.loads_consulted.update(ready)
    loads = {name: context.loads.get(name, UNKNOWN_LOAD) for name in ready}
    # An agent without recent attempts counts as the fastest and is selected first, so that its duration becomes known.
    usual = min((load.seconds for load in loads.values() if load.seconds is not None), default=1.0)
    slots = {name: sum(card.concurrency for card in context.cards if card.name == name) for name in ready}
    probes = context.circuits.keys()  # prefer an agent that can be probed, so that its circuit can close

    def order(name: str) -> tuple[bool, float, bool, str]:
        wait = loads[name].estimated_wait(decision.dispatched[name], slots[name], usual)
        return name not in probes, wait, loads[name].seconds is not None, name

    return AgentChoice(min(ready, key=order))


def resolve_skills(decision: Decision, plan: Plan) -> Plan:
    """Return `plan` with an agent for each task that names only a skill.

    The agent is the first agent with the skill, as a placeholder. The agent that receives the task is selected when the
    task starts.
    """
    return plan.model_copy(update={"tasks": tuple(_resolve_skill(decision, task) for task in plan.tasks)})


def _resolve_skill(decision: Decision, task: PlannedTask) -> PlannedTask:
    if task.agent:
        return task.model_copy(update={"skill": ""}) if task.skill else task
    return task.model_copy(update={"agent": next(iter(_agents_with_skill(decision, task.skill)), "")})


def _agents_with_skill(decision: Decision, skill: str) -> list[str]:
    """Return the sorted names of the live agents that have `skill` and that the workflow is allowed to use."""
    cards = eligible_agents(decision.state, decision.context.cards)
    return sorted({card.name for card in cards if skill in card.skills})


def can_dispatch(decision: Decision, agent: str, task: Task) -> bool:
    """Return True if `agent` may receive the attempt: its circuit is closed, or the attempt can probe the circuit."""
    circuit = decision.context.circuits.get(agent)
    if circuit is None or circuit.probe == probe_id(decision.state.workflow_id, task.id, task.attempt + 1):
        return True
    return decision.now >= circuit.until and agent not in decision.probes


def _held_until(decision: Decision, task: Task, agents: Sequence[str]) -> datetime:
    """Return the time of the next check, if none of `agents` can receive the task now."""
    again = decision.now + HOLD_DURATION
    opens = [decision.context.circuits[name].until for name in agents]
    ends = decision.latest_start(task.role)
    return min(moment for moment in (*opens, ends, again) if moment > decision.now)


def _fallback(decision: Decision, task: Task) -> str | None:
    """Return the live fallback of the task's agent; None if no fallback is live.

    A task whose agent has asked a question has no fallback, because the answer is only for that agent.
    """
    card = decision.card(task.agent)
    name = task.fallback if task.attempt else card.fallback if card else None
    if name is None or task.asking_attempts or decision.card(name) is None:
        return None
    return name


def eligible_agents(state: State, cards: Sequence[AgentCard], named: Sequence[str] = ()) -> Iterator[AgentCard]:
    """List the cards of the live agents that the plans of a workflow are allowed to use.

    Args:
        state: The workflow's state.
        cards: The cards of all live instances.
        named: The names of teams that are allowed in addition, if the team's `agents` is `*`. Otherwise, `*` stands for
            all agents that are not teams.

    Yields:
        The cards. Cards of teams are left out if the limit of nesting is reached.
    """
    for card in cards:
        if card.role is not Role.WORK or (card.team and state.depth >= state.limits.nesting):
            continue
        if card.owner is not None and card.owner != state.team:
            continue  # the agent belongs to another team
        if state.agents == "*":
            if card.name in named or not card.team:
                yield card
        elif card.name in state.agents:
            yield card
