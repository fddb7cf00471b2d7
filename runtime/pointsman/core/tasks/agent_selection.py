"""Who gets a task now: the agent it names while that one is well, who stands in for it, or nobody yet.

What is chosen here rests on figures that nobody keeps, so the choice stands in the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pointsman.core.decision import Draft
from pointsman.core.model.agent_health import Load, probe_name
from pointsman.core.model.lifecycle import TaskStatus
from pointsman.core.model.state import State, Task
from pointsman_schemas.card import AgentCard, Role
from pointsman_schemas.plan import Plan, PlannedTask

__all__ = ["HOLD", "Choice", "addressed", "allowed", "choose", "free"]

UNKNOWN = Load()
HOLD = timedelta(seconds=10)
"""The longest time until a task that nobody can be given is looked at again: the agent may be well before its time."""


@dataclass(frozen=True, slots=True)
class Choice:
    """`agent` gets the attempt, in the place of the one it names; or nobody does before `until`."""

    agent: str
    instead_of: str | None = None
    until: datetime | None = None


def choose(draft: Draft, task: Task) -> Choice:
    """Who gets the next attempt at `task`."""
    if task.skill and not task.asked_in:
        return _most_idle(draft, task)
    stand_in = _stand_in(draft, task)
    for name in (task.agent, stand_in):
        if name is not None and free(draft, name, task):
            return Choice(name, instead_of=task.agent if name != task.agent else None)
    return Choice(task.agent, until=_held_until(draft, task, [task.agent, *filter(None, [stand_in])]))


def _most_idle(draft: Draft, task: Task) -> Choice:
    """The agent with the task's skill that would be done first: by its queue, and by what it took lately. After a
    failure it is another one, if there is one."""
    around = draft.around
    names = _skilled(draft, task.skill) or [task.agent] * bool(task.agent)  # it waits for whoever had the skill
    ready = [name for name in names if free(draft, name, task)]
    if task.status is TaskStatus.AWAITING_BUDGET and task.agent in ready:
        ready = [task.agent]  # it was chosen before there was something to use
    elif task.attempt and len(ready) > 1:
        ready = [name for name in ready if name != task.agent]
    if not ready:
        return Choice(task.agent, until=_held_until(draft, task, names))
    if len(ready) == 1:
        return Choice(ready[0])
    draft.compared.update(ready)
    loads = {name: around.loads.get(name, UNKNOWN) for name in ready}
    # Who was not seen at work yet is taken to be as quick as the quickest, and goes first: so it is tried.
    usual = min((load.seconds for load in loads.values() if load.seconds is not None), default=1.0)
    slots = {name: sum(card.concurrency for card in around.cards if card.name == name) for name in ready}
    probes = around.circuits.keys()  # one that may be probed is, for else it would never be known to be well

    def order(name: str) -> tuple[bool, float, bool, str]:
        wait = loads[name].wait(draft.sent[name], slots[name], usual)
        return name not in probes, wait, loads[name].seconds is not None, name

    return Choice(min(ready, key=order))


def addressed(draft: Draft, plan: Plan) -> Plan:
    """`plan` with an agent for each task that asks for a skill alone. It is only the first of those who have it: who
    gets the task is chosen when it starts."""
    return plan.model_copy(update={"tasks": tuple(_addressed(draft, task) for task in plan.tasks)})


def _addressed(draft: Draft, task: PlannedTask) -> PlannedTask:
    if task.agent:
        return task.model_copy(update={"skill": ""}) if task.skill else task
    return task.model_copy(update={"agent": next(iter(_skilled(draft, task.skill)), "")})


def _skilled(draft: Draft, skill: str) -> list[str]:
    """The live agents that have `skill` and may be used here, by name."""
    cards = allowed(draft.open(), draft.around.cards)
    return sorted({card.name for card in cards if skill in card.skills})


def free(draft: Draft, agent: str, task: Task) -> bool:
    """Whether `agent` may be sent the next attempt at `task`: it is well, or this is its one probe."""
    circuit = draft.around.circuits.get(agent)
    if circuit is None or circuit.probe == probe_name(draft.open().workflow_id, task.id, task.attempt + 1):
        return True
    return draft.now >= circuit.until and agent not in draft.probes


def _held_until(draft: Draft, task: Task, agents: Sequence[str]) -> datetime:
    """When to look again for one of `agents`, none of which is free."""
    again = draft.now + HOLD
    opens = [draft.around.circuits[name].until for name in agents]
    ends = draft.horizon(task.role)
    return min(moment for moment in (*opens, ends, again) if moment > draft.now)


def _stand_in(draft: Draft, task: Task) -> str | None:
    """The live fallback of the task's agent. What people said to an agent's calls is for that agent alone."""
    card = draft.around.card(task.agent)
    name = task.fallback if task.attempt else card.fallback if card else None
    if name is None or task.asked_in or draft.around.card(name) is None:
        return None
    return name


def allowed(state: State, cards: Sequence[AgentCard], named: Sequence[str] = ()) -> Iterator[AgentCard]:
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
