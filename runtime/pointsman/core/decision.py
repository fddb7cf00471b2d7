"""Define a decision in progress: its entries, the state that the entries lead to, and the facts for the decision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pointsman.core.budget.reservation import BudgetExhausted
from pointsman.core.evolve import evolve
from pointsman.core.model.agent_health import Circuit, Load
from pointsman.core.model.state import State
from pointsman_schemas.card import AgentCard, Role
from pointsman_schemas.claim_check import MAX_BODY_BYTES
from pointsman_schemas.log import (
    Entry,
)

__all__ = ["SYNTHESIS_GRACE", "Decision", "DecisionContext", "Probe"]

SYNTHESIS_GRACE = timedelta(seconds=30)
"""Time after the workflow's deadline in which a synthesizer may still write an answer from the results."""


@dataclass(frozen=True, slots=True)
class Probe:
    """An attempt that tests whether the circuit of its agent can close, and the time at which the probe expires."""

    name: str
    until: datetime


@dataclass(slots=True)
class Decision:
    """The entries decided so far and the state that the entries lead to.

    Attributes:
        current: The state; None before the request.
        context: The facts, in addition to the state and the inputs, on which the decision may depend.
        entries: The entries decided so far.
        ready: Ids of tasks that might be ready. `start_ready_tasks` checks their dependencies, and starts or skips
            those that are ready.
        fired_timers: Names of the timers that fired.
        probes: The probes that this decision sends, by agent.
        dispatched: The number of attempts that this decision gives to each agent.
        loads_consulted: The agents whose load this decision compared.
        shortages: The limit that left no budget for a task's next attempt, by task.
    """

    current: State | None
    context: DecisionContext
    entries: list[Entry] = field(default_factory=list)
    ready: list[str] = field(default_factory=list)
    fired_timers: set[str] = field(default_factory=set)
    probes: dict[str, Probe] = field(default_factory=dict)
    dispatched: Counter[str] = field(default_factory=Counter)
    loads_consulted: set[str] = field(default_factory=set)
    shortages: dict[str, BudgetExhausted] = field(default_factory=dict)

    @property
    def now(self) -> datetime:
        """Time of this decision."""
        return self.context.now

    @property
    def state(self) -> State:
        """State of a workflow that has started."""
        assert self.current is not None
        return self.current

    @property
    def ended(self) -> bool:
        """True if the workflow has ended."""
        return self.current is not None and self.current.ended

    def card(self, agent: str) -> AgentCard | None:
        """Return the card of one live instance of `agent`; None if no instance is live."""
        return self.context.card(agent)

    def add(self, entry: Entry) -> State:
        """Append `entry` and return the state that it leads to."""
        self.entries.append(entry)
        self.current = evolve(self.current, entry)
        return self.current

    def latest_start(self, role: Role) -> datetime:
        """Return the time from which it is too late to start an attempt at a task of `role`."""
        return self.state.deadline + (SYNTHESIS_GRACE if role is Role.SYNTHESIZE else timedelta())


@dataclass(frozen=True, slots=True)
class DecisionContext:
    """The facts, in addition to the state and the inputs, on which a decision may depend.

    Attributes:
        now: The time.
        cards: The cards of all live instances of agents.
        circuits: The circuits that are not closed, by agent.
        max_body: The largest body of an event, in bytes.
        loads: The load of agents, by name.
        retention: The time for which logs are kept after the end of their workflow; None means no bound.
    """

    now: datetime
    cards: tuple[AgentCard, ...] = ()
    circuits: Mapping[str, Circuit] = field(default_factory=dict)
    max_body: int = MAX_BODY_BYTES
    loads: Mapping[str, Load] = field(default_factory=dict)
    retention: timedelta | None = None

    def card(self, name: str) -> AgentCard | None:
        """Return the card of one live instance of the agent `name`; None if no instance is live."""
        for card in self.cards:
            if card.name == name:
                return card
        return None
