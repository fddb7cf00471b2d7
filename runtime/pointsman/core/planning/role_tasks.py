"""Give the planner or the classifier its task."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.core.budget.team_quota import tasks_left
from pointsman.core.decision import Draft
from pointsman.core.model.lifecycle import Phase
from pointsman.core.tasks.agent_selection import allowed
from pointsman.core.tasks.dispatch import add_role_task, free_id
from pointsman_schemas.card import Role
from pointsman_schemas.role_io import ClassifierInput, MenuItem, PlannerInput
from pointsman_schemas.strategies import Adaptive, Router, Supervisor

__all__ = ["ask_classifier", "ask_planner", "menu"]


_NOT_WELL = "It keeps failing, and work for it waits: choose another agent where one will do."


def ask_planner(
    draft: Draft,
    strategy: Supervisor | Adaptive,
    *,
    problems: tuple[str, ...] = (),
    reason: str = "",
    only: Sequence[str] | None = None,
) -> None:
    """Have the planner write a plan, knowing all that has happened and, again, what was wrong with its last."""
    state = draft.open()
    work = list(state.work())
    asked_again = state.replans + (1 if state.phase is Phase.RUNNING else 0)  # this time included
    asked = PlannerInput(
        request=state.input,
        agents=menu(draft, only),
        agents_used=tuple(dict.fromkeys(task.agent for task in work if task.attempt)),
        problems=problems,
        replan_reason=reason,
        max_tasks=tasks_left(state),
        instructions=strategy.instructions,
        adaptive=isinstance(strategy, Adaptive),
        plans_left=strategy.plans - 1 - asked_again if isinstance(strategy, Adaptive) else None,
    )
    name = free_id(state, f"plan-{state.revision + 1}")
    add_role_task(draft, name, Role.PLAN, strategy.planner, "Plan the request", asked)


def menu(draft: Draft, only: Sequence[str] | None = None) -> tuple[MenuItem, ...]:
    """The live agents this workflow may use, one item a name."""
    state = draft.open()
    items: dict[str, MenuItem] = {}
    for card in allowed(state, draft.around.cards, only or ()):
        if card.name not in items and (only is None or card.name in only):
            items[card.name] = MenuItem.model_construct(  # what a card says was validated with it
                name=card.name,
                description=card.description,
                skills=card.skills,
                intents=card.intents,
                examples=card.examples,
                input_schema=card.input_schema,
                note=_NOT_WELL if card.name in draft.around.circuits else "",
            )
    return tuple(items.values())


def ask_classifier(draft: Draft, strategy: Router, number: int = 1) -> None:
    """Have the router's classifier choose among the live agents."""
    state = draft.open()
    asked = ClassifierInput(request=state.input, agents=menu(draft), threshold=strategy.threshold)
    name = free_id(state, f"classify-{number}")
    add_role_task(draft, name, Role.CLASSIFY, strategy.classifier, "Choose who can serve the request", asked)
