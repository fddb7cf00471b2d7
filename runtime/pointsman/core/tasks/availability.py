"""A workflow begins when somebody is there who could be given work. Agents come up in any order: until then it waits,
as a task does for its agent, and says at its deadline that nobody came."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import assert_never

from pointsman.core.decision import Decision
from pointsman.core.tasks.agent_selection import eligible_agents
from pointsman_schemas.card import Role
from pointsman_schemas.strategies import Adaptive, Choreography, FanOut, Pipeline, PlanAndExecute, Router

__all__ = ["NO_AGENT_MESSAGE", "missing_agent", "missing_reactor", "next_check"]

NO_AGENT_MESSAGE = "no agent is alive that could take the request"

_MIN_CHECK_DELAY = timedelta(seconds=0.5)
"""Until it is looked for the first time who has come: what was started with the supervisor takes about a second."""
_MAX_CHECK_DELAY = timedelta(seconds=10)
"""Between two looks, however long it has waited: each is a commit."""


def missing_agent(decision: Decision) -> str:
    """Who the workflow cannot begin without, in words; nothing when it may begin.

    Stages and the members that a team names get their tasks whether they are there or not, and wait for them in their
    queues. Whoever chooses among those that are there needs one to choose; a planner that is there says itself that it
    has nobody.
    """
    state = decision.state
    named = None if state.agents == "*" else frozenset(state.agents)
    match state.strategy:
        case Pipeline():
            return ""
        case FanOut():
            return "" if named is not None else _missing_worker(decision)
        case Choreography() as strategy:
            if any(strategy.start_event in card.reacts_to for card in eligible_agents(state, decision.context.cards)):
                return ""
            if named is not None and named <= {card.name for card in decision.context.cards}:
                return ""  # nobody else can come: that is said at once
            return missing_reactor(strategy)
        case PlanAndExecute() | Router() as strategy:
            planner = strategy.planner if isinstance(strategy, PlanAndExecute) else strategy.classifier
            return _missing_worker(decision, planner, strategy.fallback)
        case Adaptive() as strategy:
            return _missing_worker(decision, strategy.planner)
        case _:
            assert_never(state.strategy)


def missing_reactor(strategy: Choreography) -> str:
    """Why a choreography cannot begin, in words for the outcome."""
    return f"no live agent of the team reacts to the event {strategy.start_event}"


def next_check(decision: Decision) -> datetime:
    """When to look again: after as long as it has waited already, within bounds."""
    waited = decision.now - decision.state.started_at
    return decision.now + min(max(waited, _MIN_CHECK_DELAY), _MAX_CHECK_DELAY)


def _missing_worker(decision: Decision, planner: str | None = None, fallback: str | None = None) -> str:
    """Nothing if anybody is there who could be given work by `planner`; teams nested too deep count, for that is the
    planner's to say."""
    agents = decision.state.agents
    if planner is not None and decision.context.card(planner) is not None:
        return ""
    for card in decision.context.cards:
        if card.role is Role.WORK and (
            card.name == fallback or (not card.team if agents == "*" else card.name in agents)
        ):
            return ""
    if not agents:
        return ""  # the team has nobody, and nobody can come
    if planner is not None:
        return f"no agent named {planner} is alive, nor any that it could choose"
    return NO_AGENT_MESSAGE
