"""A decision in the making: the entries so far, the state they lead to, and the moves every part of it makes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pointsman.core.budget.reservation import BudgetExhausted
from pointsman.core.evolve import evolve
from pointsman.core.model.inputs import DecisionContext
from pointsman.core.model.state import State
from pointsman_schemas.card import Role
from pointsman_schemas.log import (
    Entry,
)

__all__ = ["SYNTHESIS_GRACE", "Decision", "Probe"]

SYNTHESIS_GRACE = timedelta(seconds=30)
"""What a synthesizer gets at most once the workflow's deadline has passed: an answer from what there is is owed."""


@dataclass(frozen=True, slots=True)
class Probe:
    """An attempt that is to show whether its agent is well again, and when nobody waits for it any more."""

    name: str
    until: datetime


@dataclass(slots=True)
class Decision:
    """The entries decided so far and the state they lead to."""

    current: State | None
    context: DecisionContext
    entries: list[Entry] = field(default_factory=list)
    ready: list[str] = field(default_factory=list)
    """Tasks of the plan that may now start or be skipped, to be looked at by `_advance_plan`."""
    fired_timers: set[str] = field(default_factory=set)
    probes: dict[str, Probe] = field(default_factory=dict)
    """By agent, the attempts that are to show whether it is well again."""
    dispatched: Counter[str] = field(default_factory=Counter)
    """By agent, the attempts it gets."""
    loads_consulted: set[str] = field(default_factory=set)
    """The agents that were chosen among by how busy they are."""
    shortages: dict[str, BudgetExhausted] = field(default_factory=dict)
    """By task, what it lacked when it was last to start."""

    @property
    def now(self) -> datetime:
        return self.context.now

    @property
    def state(self) -> State:
        """The state of a workflow that has begun."""
        assert self.current is not None
        return self.current

    def add(self, entry: Entry) -> State:
        self.entries.append(entry)
        self.current = evolve(self.current, entry)
        return self.current

    def latest_start(self, role: Role) -> datetime:
        """From when on a new attempt at a task of `role` is pointless."""
        return self.state.deadline + (SYNTHESIS_GRACE if role is Role.SYNTHESIZE else timedelta())
