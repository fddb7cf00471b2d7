"""Add the task of the planner or the classifier."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.core.budget.team_quota import remaining_tasks
from pointsman.core.decision import Decision
from pointsman.core.model.lifecycle import Phase
from pointsman.core.model.state import State, unused_id
from pointsman.core.tasks.agent_selection import eligible_agents
from pointsman.core.tasks.dispatch import add_role_task
from pointsman_schemas.base import make_valid
from pointsman_schemas.card import AgentCard, Role
from pointsman_schemas.role_io import AvailableAgent, ClassifierInput, PlannerInput
from pointsman_schemas.strategies import Adaptive, PlanAndExecute, Router

__all__ = ["available_agents", "available_cards", "may_ask", "request_classification", "request_plan"]


_CIRCUIT_OPEN_NOTE = "The agent keeps failing, and its tasks wait: choose another agent if possible."


def request_plan(
    decision: Decision,
    strategy: PlanAndExecute | Adaptive,
    *,
    problems: tuple[str, ...] = (),
    reason: str = "",
    only: Sequence[str] | None = None,
) -> None:
    """Request a plan from the planner.

    Args:
        decision: The decision in progress.
        strategy: The strategy with the planner.
        problems: The problems of the last plan, for a repair.
        reason: The reason for a re-plan; empty for the first plan or a repair.
        only: The agents that the plan may use; None for all eligible agents.
    """
    state = decision.state
    work = list(state.plan_tasks())
    asked_again = state.replans + (1 if state.phase is Phase.RUNNING else 0)  # number of re-plans, including this one
    asked = PlannerInput(
        request=state.input,
        agents=available_agents(decision, only),
        agents_used=tuple(dict.fromkeys(task.agent for task in work if task.attempt)),
        problems=problems,
        replan_reason=reason,
        max_tasks=remaining_tasks(state),
        instructions=strategy.instructions,
        adaptive=isinstance(strategy, Adaptive),
        remaining_plans=strategy.max_plans - 1 - asked_again if isinstance(strategy, Adaptive) else None,
        may_ask=may_ask(state),
    )
    name = unused_id(state, f"plan-{state.revision + 1}")
    add_role_task(decision, name, Role.PLAN, strategy.planner, "Plan the request", asked)


def may_ask(state: State) -> bool:
    """Return True if the planner of the workflow may ask a person before it plans."""
    strategy = state.strategy.escalate if isinstance(state.strategy, Router) else state.strategy
    allowed = isinstance(strategy, PlanAndExecute | Adaptive) and strategy.may_ask
    return allowed and state.information_questions < state.limits.questions and not state.reached_limit


def available_agents(decision: Decision, only: Sequence[str] | None = None) -> tuple[AvailableAgent, ...]:
    """Return the live agents that the workflow may use, in the form for a planner or a classifier."""
    return tuple(
        make_valid(
            AvailableAgent,
            name=card.name,
            description=card.description,
            skills=card.skills,
            intents=card.intents,
            examples=card.examples,
            input_schema=card.input_schema,
            note=_CIRCUIT_OPEN_NOTE if card.name in decision.context.circuits else "",
        )
        for card in available_cards(decision, only)
    )


def available_cards(decision: Decision, only: Sequence[str] | None = None) -> Sequence[AgentCard]:
    """Return one card for each name of a live agent that the workflow may use."""
    cards: dict[str, AgentCard] = {}
    for card in eligible_agents(decision.state, decision.context.cards, only or ()):
        if only is None or card.name in only:
            cards.setdefault(card.name, card)
    return tuple(cards.values())


def request_classification(decision: Decision, strategy: Router, number: int = 1) -> None:
    """Request the task of the classifier, which selects among the live agents for a router."""
    state = decision.state
    asked = ClassifierInput(request=state.input, agents=available_agents(decision), threshold=strategy.threshold)
    name = unused_id(state, f"classify-{number}")
    add_role_task(decision, name, Role.CLASSIFY, strategy.classifier, "Choose who can serve the request", asked)
