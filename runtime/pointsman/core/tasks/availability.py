"""A workflow begins when somebody is there who could be given work. Agents come up in any order: until then it waits,
as a task does for its agent, and says at its deadline that nobody came."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import assert_never

from pointsman.core.decision import Draft
from pointsman.core.tasks.agent_selection import allowed
from pointsman_schemas.card import Role
from pointsman_schemas.strategies import Adaptive, Choreography, FanOut, Pipeline, Router, Supervisor

__all__ = ["NOBODY", "missing", "next_look", "nobody_reacts"]

NOBODY = "no agent is alive that could take the request"

_SOONEST = timedelta(seconds=0.5)
"""Until it is looked for the first time who has come: what was started with the supervisor takes about a second."""
_LATEST = timedelta(seconds=10)
"""Between two looks, however long it has waited: each is a commit."""


def missing(draft: Draft) -> str:
    """Who the workflow cannot begin without, in words; nothing when it may begin.

    Stages and the members that a team names get their tasks whether they are there or not, and wait for them in their
    queues. Whoever chooses among those that are there needs one to choose; a planner that is there says itself that it
    has nobody.
    """
    state = draft.open()
    named = None if state.agents == "*" else frozenset(state.agents)
    match state.strategy:
        case Pipeline():
            return ""
        case FanOut():
            return "" if named is not None else _anybody(draft)
        case Choreography() as strategy:
            if any(strategy.begins in card.reacts_to for card in allowed(state, draft.around.cards)):
                return ""
            if named is not None and named <= {card.name for card in draft.around.cards}:
                return ""  # nobody else can come: that is said at once
            return nobody_reacts(strategy)
        case Supervisor() | Router() as strategy:
            planner = strategy.planner if isinstance(strategy, Supervisor) else strategy.classifier
            return _anybody(draft, planner, strategy.fallback)
        case Adaptive() as strategy:
            return _anybody(draft, strategy.planner)
        case _:
            assert_never(state.strategy)


def nobody_reacts(strategy: Choreography) -> str:
    """Why a choreography cannot begin, in words for the outcome."""
    return f"no live agent of the team reacts to the event {strategy.begins}"


def next_look(draft: Draft) -> datetime:
    """When to look again: after as long as it has waited already, within bounds."""
    waited = draft.now - draft.open().started_at
    return draft.now + min(max(waited, _SOONEST), _LATEST)


def _anybody(draft: Draft, planner: str | None = None, fallback: str | None = None) -> str:
    """Nothing if anybody is there who could be given work by `planner`; teams nested too deep count, for that is the
    planner's to say."""
    agents = draft.open().agents
    if planner is not None and draft.around.card(planner) is not None:
        return ""
    for card in draft.around.cards:
        if card.role is Role.WORK and (
            card.name == fallback or (not card.team if agents == "*" else card.name in agents)
        ):
            return ""
    if not agents:
        return ""  # the team has nobody, and nobody can come
    if planner is not None:
        return f"no agent named {planner} is alive, nor any that it could choose"
    return NOBODY
