"""Implement the router's protocol: read the classifier's selection and route the request."""

from __future__ import annotations

from pointsman.core.completion.caller_messages import explain_failure
from pointsman.core.completion.outcome import end_workflow
from pointsman.core.decision import Decision
from pointsman.core.model.lifecycle import Phase
from pointsman.core.model.state import Task
from pointsman.core.planning.acceptance import reject_plan, route_request, route_to_fallback
from pointsman.core.planning.role_tasks import available_cards
from pointsman.core.planning.validation import raw_text, read_selection
from pointsman_schemas.events import Result
from pointsman_schemas.plan import Selection
from pointsman_schemas.strategies import Router

__all__ = ["apply_selection"]


def apply_selection(decision: Decision, task: Task, result: Result) -> None:
    """Route the request to the agents that the classifier selected with enough confidence."""
    state = decision.state
    assert isinstance(state.strategy, Router)
    strategy = state.strategy
    cards = available_cards(decision)
    names, skills = {card.name for card in cards}, {skill for card in cards for skill in card.skills}
    selection = read_selection(result.output)
    if not isinstance(selection, Selection):
        if route_to_fallback(decision):
            return None
        return reject_plan(decision, task, selection, raw_text(result.output))
    sure = [
        chosen
        for chosen in selection.agents
        if chosen.confidence >= strategy.threshold
        and (chosen.agent in names if chosen.agent else chosen.skill in skills)
    ]
    if sure:
        return route_request(decision, sure, selection.unserved)
    if route_to_fallback(decision):
        return None
    reason = "no agent was selected with enough confidence"
    question = selection.question or explain_failure(reason, "Say more precisely what you need.")
    return end_workflow(decision, Phase.FAILED, question, reason)
