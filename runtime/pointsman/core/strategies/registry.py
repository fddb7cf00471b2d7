"""How each strategy begins and ends a workflow: the two tables that a new one is added to."""

from __future__ import annotations

from typing import assert_never

from pointsman.core.budget.team_quota import quota
from pointsman.core.completion.caller_messages import NO_AGENT_MESSAGE
from pointsman.core.completion.synthesis import complete_workflow
from pointsman.core.decision import Decision
from pointsman.core.planning.acceptance import end_over_task_quota
from pointsman.core.planning.role_tasks import request_classification, request_plan
from pointsman.core.strategies.choreography import missing_reactor, start_choreography
from pointsman.core.strategies.fan_out import complete_fan_out, start_fan_out
from pointsman.core.strategies.fixed import start_fixed
from pointsman.core.strategies.pipeline import complete_pipeline, start_pipeline
from pointsman.core.tasks.agent_selection import eligible_agents
from pointsman_schemas.card import Role
from pointsman_schemas.strategies import Adaptive, Choreography, FanOut, Fixed, Pipeline, PlanAndExecute, Router

__all__ = ["finish_workflow", "missing_agent", "start_workflow"]


def start_workflow(decision: Decision) -> None:
    """Get a plan, or ask for one, as soon as somebody is there for it, unless there may be none."""
    if not quota(decision.state).tasks:
        end_over_task_quota(decision, 1, 0)
        return
    if missing_agent(decision):
        return
    match decision.state.strategy:
        case PlanAndExecute() | Adaptive() as strategy:
            request_plan(decision, strategy)
        case Router() as strategy:
            request_classification(decision, strategy)
        case Pipeline() as strategy:
            start_pipeline(decision, strategy)
        case FanOut() as strategy:
            start_fan_out(decision, strategy)
        case Choreography() as strategy:
            start_choreography(decision, strategy)
        case Fixed() as strategy:
            start_fixed(decision, strategy)
        case _ as never:
            assert_never(never)


def finish_workflow(decision: Decision) -> None:
    """The work is done, as far as it can be: have the answer written, or end."""
    match decision.state.strategy:
        case PlanAndExecute() | Adaptive() | Router() | Choreography() | Fixed() as strategy:
            complete_workflow(decision, strategy)
        case Pipeline():
            complete_pipeline(decision)
        case FanOut() as strategy:
            complete_fan_out(decision, strategy)
        case _ as never:
            assert_never(never)


def missing_agent(decision: Decision) -> str:
    """Who the workflow cannot begin without, in words; nothing when it may begin.

    Stages and the members that a team names get their tasks whether they are there or not, and wait for them in their
    queues. Whoever chooses among those that are there needs one to choose; a planner that is there says itself that it
    has nobody.
    """
    state = decision.state
    named = None if state.agents == "*" else frozenset(state.agents)
    match state.strategy:
        case Pipeline() | Fixed():
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


def _missing_worker(decision: Decision, planner: str | None = None, fallback: str | None = None) -> str:
    """Nothing if anybody is there who could be given work by `planner`; teams nested too deep count, for that is the
    planner's to say."""
    agents = decision.state.agents
    if planner is not None and decision.card(planner) is not None:
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
