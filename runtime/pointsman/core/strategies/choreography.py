"""Choreography: no plan. Agents react to named events, and what they emit, reported with their results, goes on.

A reaction is a task like any other, so retries, deadlines, dead letters and the trace are those of every task. An event
counts with the result that reports it, once: an attempt that failed has emitted nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import JsonValue

from pointsman.core.budget.team_quota import may_plan, taken
from pointsman.core.completion.caller_messages import ASK_FOR_LESS, START_IT, could_not
from pointsman.core.completion.outcome import end
from pointsman.core.decision import Draft
from pointsman.core.model.lifecycle import Phase
from pointsman.core.model.state import Task
from pointsman.core.planning.role_tasks import menu
from pointsman.core.tasks.availability import nobody_reacts
from pointsman.core.tasks.dispatch import free_ids, start
from pointsman_schemas.events import Emitted
from pointsman_schemas.log import LimitReached, PlanAccepted
from pointsman_schemas.plan import Plan, PlannedTask
from pointsman_schemas.strategies import Choreography

__all__ = ["begin_choreography", "react"]


def begin_choreography(draft: Draft, strategy: Choreography) -> None:
    """The request is the first event. Somebody must react to it, and a task must be left for each who does."""
    react(draft, strategy, None, [Emitted(name=strategy.begins, data=_data(draft))])
    state = draft.open()
    if not state.ended and state.plan is None:
        reason = state.limit or nobody_reacts(strategy)
        end(draft, Phase.FAILED, could_not(reason, ASK_FOR_LESS if state.limit else START_IT), reason)


def react(draft: Draft, strategy: Choreography, emitter: Task | None, events: Iterable[Emitted]) -> None:
    """A task for each agent that reacts to each of `events`, which came with the result of `emitter`."""
    for event in events:
        state = draft.open()
        if state.limit:
            return None
        if event.name in strategy.ends:
            return end(draft, Phase.COMPLETED, event.data, f"the event {event.name} ended it")
        tasks = _reactions(draft, emitter, event)
        if tasks and (count := taken(state).tasks + len(tasks)) > (most := may_plan(state).tasks):
            detail = f"the limit of {most} tasks was passed: {event.name} would make {count}"
            draft.add(LimitReached(at=draft.now, limit="tasks", detail=detail))
            return None
        if tasks:
            plan = Plan(goal=f"React to {event.name}", tasks=tasks)
            draft.add(PlanAccepted(at=draft.now, revision=state.revision + 1, plan=plan, event=event.name))
            for task in tasks:
                start(draft, task.id)
    return None


def _reactions(draft: Draft, emitter: Task | None, event: Emitted) -> tuple[PlannedTask, ...]:
    allowed = {item.name for item in menu(draft)}
    reacting = dict.fromkeys(
        card.name for card in draft.around.cards if card.name in allowed and event.name in card.reacts_to
    )
    ids = free_ids(draft.open(), (f"{agent}-{event.name}" for agent in reacting))
    return tuple(
        PlannedTask(
            id=task_id,
            agent=agent,
            intent=f"React to {event.name}" + (f" from {emitter.agent}" if emitter else ""),
            input=event.data,
            depends_on=(emitter.id,) if emitter else (),
        )
        for task_id, agent in zip(ids, reacting, strict=True)
    )


def _data(draft: Draft) -> JsonValue:
    state = draft.open()
    return state.input if isinstance(state.input, dict) else {"request": state.input}
