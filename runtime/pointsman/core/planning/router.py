"""The router's protocol: read the classifier's selection and route the request."""

from __future__ import annotations

from pointsman.core.completion.caller_messages import could_not
from pointsman.core.completion.outcome import end
from pointsman.core.decision import Draft
from pointsman.core.model.lifecycle import Phase
from pointsman.core.model.state import Task
from pointsman.core.planning.acceptance import _route, reject_plan, route_to_fallback
from pointsman.core.planning.role_tasks import menu
from pointsman.core.planning.validation import raw_text, read_selection
from pointsman_schemas.events import Result
from pointsman_schemas.plan import Selection
from pointsman_schemas.strategies import Router

__all__ = ["classified"]


def classified(draft: Draft, task: Task, result: Result) -> None:
    """Route the request to whom the classifier is sure of."""
    state = draft.open()
    assert isinstance(state.strategy, Router)
    strategy = state.strategy
    items = menu(draft)
    names, skills = {item.name for item in items}, {skill for item in items for skill in item.skills}
    selection = read_selection(result.output)
    if not isinstance(selection, Selection):
        if route_to_fallback(draft):
            return None
        return reject_plan(draft, task, selection, raw_text(result.output))
    sure = [
        chosen
        for chosen in selection.agents
        if chosen.confidence >= strategy.threshold
        and (chosen.agent in names if chosen.agent else chosen.skill in skills)
    ]
    if sure:
        return _route(draft, sure, selection.unserved)
    if route_to_fallback(draft):
        return None
    reason = "no agent is sure enough to serve the request"
    question = selection.question or could_not(reason, "Say more precisely what you need.")
    return end(draft, Phase.FAILED, question, reason)
