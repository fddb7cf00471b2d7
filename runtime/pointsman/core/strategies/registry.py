"""Start and finish a workflow by its strategy. To add a strategy, add a case to each `match` in this module."""

from __future__ import annotations

from typing import assert_never

from pointsman.core.budget.team_quota import quota
from pointsman.core.completion.caller_messages import NO_AGENT_MESSAGE
from pointsman.core.completion.synthesis import complete_workflow
from pointsman.core.decision import Decision
from pointsman.core.planning.acceptance import end_over_task_quota
from pointsman.core.planning.role_tasks import request_classification, request_plan
from pointsman.core.planning.summary import awaits_summary
from pointsman.core.strategies.choreography import missing_reactor, start_choreography
from pointsman.core.strategies.fan_out import complete_fan_out, start_fan_out
from pointsman.core.strategies.fixed import start_fixed
from pointsman.core.strategies.pipeline import complete_pipeline, start_pipeline
from pointsman.core.tasks.agent_selection import eligible_agents
from pointsman_schemas.card import Role
from pointsman_schemas.strategies import Adaptive, Choreography, FanOut, Fixed, Pipeline, PlanAndExecute, Router

__all__ = ["finish_workflow", "missing_agent", "start_workflow"]


def start_workflow(decision: Decision) -> None:
    """Accept a plan or request a plan. Do nothing yet if an agent or a summary of the thread is missing."""
    if not quota(decision.state).tasks:
        end_over_task_quota(decision, 1, 0)
        return
    if missing_agent(decision) or (decision.state.thread is not None and awaits_summary(decision)):
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
    """Finish the work: request the answer, or end the workflow."""
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
    """Return a sentence about a missing agent without which the workflow cannot start; an empty text if it can start.

    Stages, fixed tasks and named members of a fan-out are dispatched to their queues even if no agent is live, so these
    workflows start at once. A choreography waits for an agent that reacts to its first event. A planner or a classifier
    selects among live agents, so its workflow waits until one of these agents is live. The workflow also starts if only
    the planner is live: the planner then reports that no agent is live.

    Args:
        decision: The decision in progress.

    Returns:
        The sentence.
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
                return ""  # all agents of the team are live, so waiting would not help
            return missing_reactor(strategy)
        case PlanAndExecute() | Router() as strategy:
            planner = strategy.planner if isinstance(strategy, PlanAndExecute) else strategy.classifier
            return _missing_worker(decision, planner, strategy.fallback)
        case Adaptive() as strategy:
            return _missing_worker(decision, strategy.planner)
        case _:
            assert_never(state.strategy)


def _missing_worker(decision: Decision, planner: str | None = None, fallback: str | None = None) -> str:
    """Return a sentence about the missing agent; an empty text if the planner, or an agent to select, is live.

    A team that is nested too deep also counts here: the workflow starts, and the planner reports that the team cannot
    be used.
    """
    agents = decision.state.agents
    if planner is not None and decision.card(planner) is not None:
        return ""
    for card in decision.context.cards:
        if card.role is Role.WORK and (
            card.name == fallback or (not card.team if agents == "*" else card.name in agents)
        ):
            return ""
    if not agents:
        return ""  # the team has no agents, so waiting would not help
    if planner is not None:
        return f"no agent named {planner} is alive, and no agent that it could select"
    return NO_AGENT_MESSAGE
