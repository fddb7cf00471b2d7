"""Who gets a task now: the agent it names while that one is well, who stands in for it, or nobody yet.

What is chosen here rests on figures that nobody keeps, so the choice stands in the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pointsman.core.circuits import probe_name
from pointsman.core.state import State, Task
from pointsman_schemas.card import AgentCard, Role

if TYPE_CHECKING:
    from pointsman.core.draft import Draft

__all__ = ["HOLD", "Choice", "allowed", "choose", "free", "held_until"]

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
    around = draft.around
    if not around.circuits:
        return Choice(task.agent)
    stand_in = _stand_in(draft, task)
    for name in (task.agent, stand_in):
        if name is not None and free(draft, name, task):
            return Choice(name, instead_of=task.agent if name != task.agent else None)
    return Choice(task.agent, until=held_until(draft, task, [task.agent, *filter(None, [stand_in])]))


def free(draft: Draft, agent: str, task: Task) -> bool:
    """Whether `agent` may be sent the next attempt at `task`: it is well, or this is its one probe."""
    circuit = draft.around.circuits.get(agent)
    if circuit is None or circuit.probe == probe_name(draft.open().workflow_id, task.id, task.attempt + 1):
        return True
    return draft.now >= circuit.until and agent not in draft.probes


def held_until(draft: Draft, task: Task, agents: Sequence[str]) -> datetime:
    """When to look again for one of `agents`, none of which is free."""
    again = draft.now + HOLD
    opens = [draft.around.circuits[name].until for name in agents]
    ends = draft.horizon(task.role)
    return min(again, *(moment for moment in (*opens, ends) if moment > draft.now))


def _stand_in(draft: Draft, task: Task) -> str | None:
    """The live fallback of the task's agent. What people said to an agent's calls is for that agent alone."""
    card = draft.around.card(task.agent)
    name = task.fallback if task.attempt else card.fallback if card else None
    if name is None or name == task.agent or task.asked_in or draft.around.card(name) is None:
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
