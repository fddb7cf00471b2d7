"""Request a summary of the older turns of a thread, before the workflow of a new turn begins."""

from __future__ import annotations

from pydantic import ValidationError

from pointsman.core.decision import Decision
from pointsman.core.model.lifecycle import TaskStatus
from pointsman.core.model.state import State, unused_id
from pointsman.core.tasks.dispatch import add_role_task
from pointsman_schemas.card import Role
from pointsman_schemas.events import History
from pointsman_schemas.role_io import SummarizerInput, ThreadSummary

__all__ = ["awaits_summary", "conversation", "thread_summary"]


def awaits_summary(decision: Decision) -> bool:
    """Return True while the summarizer works. If the summarizer is live, the first call requests the summary.

    If no new summary is written, the workflow begins with the earlier summary and the newest turns. Its agents then do
    not receive the turns between them.
    """
    state = decision.state
    if state.thread is None or not state.thread.overflow or state.summarizer is None:
        return False
    asked = next((task for task in state.tasks.values() if task.role is Role.SUMMARIZE), None)
    if asked is not None:
        return not asked.settled
    card = decision.card(state.summarizer)
    if card is None or card.role is not Role.SUMMARIZE:
        return False
    given = SummarizerInput(summary=state.history.summary if state.history else "", turns=state.thread.overflow)
    name = unused_id(state, "summary")
    add_role_task(decision, name, Role.SUMMARIZE, state.summarizer, "Summarize the older turns", given)
    return not decision.ended


def thread_summary(state: State) -> str:
    """Return the summary that this workflow's summarizer wrote; an empty text without a summary."""
    if state.thread is None or not state.thread.overflow:
        return ""
    for task in state.tasks.values():
        if task.role is Role.SUMMARIZE and task.status is TaskStatus.SUCCEEDED and task.result is not None:
            try:
                return ThreadSummary.model_validate(task.result.output).summary
            except ValidationError:
                return ""
    return ""


def conversation(state: State) -> History | None:
    """Return the earlier turns for the agents of the workflow, with the new summary if the summarizer wrote one."""
    history, summary = state.history, thread_summary(state)
    if history is None or not summary or state.thread is None:
        return history
    through = state.thread.overflow[-1].number
    return History(summary=summary, turns=tuple(each for each in history.turns if each.number > through))
