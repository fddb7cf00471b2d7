"""Run a choreography. It has no plan at the start: agents react to named events, and their results report more events.

A reaction is a task, so a reaction has retries, deadlines, dead letters and a trace. Agents react to an event when the
result that reports the event is accepted. So each event counts once, and the events of a failed attempt do not count.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import JsonValue

from pointsman.core.budget.team_quota import committed, quota
from pointsman.core.completion.caller_messages import RAISE_LIMIT_ADVICE, START_AGENT_ADVICE, explain_failure
from pointsman.core.completion.outcome import end_workflow
from pointsman.core.decision import Decision
from pointsman.core.model.lifecycle import Phase, TaskStatus
from pointsman.core.model.state import Task, unused_ids
from pointsman.core.planning.role_tasks import available_cards
from pointsman.core.tasks.dispatch import start_task
from pointsman_schemas.events import EmittedEvent
from pointsman_schemas.log import LimitReached, PlanAccepted
from pointsman_schemas.plan import Plan, PlannedTask
from pointsman_schemas.strategies import Choreography

__all__ = ["add_missed_reactions", "add_reactions", "missing_reactor", "start_choreography"]


def start_choreography(decision: Decision, strategy: Choreography) -> None:
    """Emit the request as the first event. End the workflow if no agent reacts, or if the task quota is too small."""
    add_reactions(decision, strategy, None, [EmittedEvent(name=strategy.start_event, data=_request_data(decision))])
    state = decision.state
    if not state.ended and state.plan is None:
        reason = state.reached_limit or missing_reactor(strategy)
        end_workflow(
            decision,
            Phase.FAILED,
            explain_failure(reason, RAISE_LIMIT_ADVICE if state.reached_limit else START_AGENT_ADVICE),
            reason,
        )


def add_reactions(
    decision: Decision, strategy: Choreography, emitter: Task | None, events: Iterable[EmittedEvent]
) -> None:
    """Add a task for each agent that reacts to one of `events`, which the result of `emitter` reported."""
    for event in events:
        state = decision.state
        if state.reached_limit:
            return None
        if event.name in strategy.end_events:
            return end_workflow(decision, Phase.COMPLETED, event.data, f"the event {event.name} ended it")
        tasks = _reacting_agents(decision, emitter, event)
        if tasks and (count := committed(state).tasks + len(tasks)) > (most := quota(state).tasks):
            detail = f"the limit of {most} tasks was passed: {event.name} would make {count}"
            decision.add(LimitReached(at=decision.now, limit="tasks", detail=detail))
            return None
        if tasks:
            plan = Plan(goal=f"React to {event.name}", tasks=tasks)
            decision.add(PlanAccepted(at=decision.now, revision=state.revision + 1, plan=plan, event=event.name))
            for task in tasks:
                start_task(decision, task.id)
    return None


def add_missed_reactions(decision: Decision, strategy: Choreography) -> None:
    """Add the reactions to events of an earlier round that are missing because a limit prevented them."""
    for task in tuple(decision.state.plan_tasks()):
        if decision.ended or task.status is not TaskStatus.SUCCEEDED or task.result is None:
            continue
        reacted = {each.event for each in decision.state.plan_tasks() if task.id in each.depends_on}
        add_reactions(decision, strategy, task, [each for each in task.result.events if each.name not in reacted])


def _reacting_agents(decision: Decision, emitter: Task | None, event: EmittedEvent) -> tuple[PlannedTask, ...]:
    allowed = {card.name for card in available_cards(decision)}
    reacting = dict.fromkeys(
        card.name for card in decision.context.cards if card.name in allowed and event.name in card.reacts_to
    )
    ids = unused_ids(decision.state, (f"{agent}-{event.name}" for agent in reacting))
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


def _request_data(decision: Decision) -> JsonValue:
    state = decision.state
    return state.input if isinstance(state.input, dict) else {"request": state.input}


def missing_reactor(strategy: Choreography) -> str:
    """Return the reason for which a choreography cannot start, as a sentence for the outcome."""
    return f"no live agent of the team reacts to the event {strategy.start_event}"
