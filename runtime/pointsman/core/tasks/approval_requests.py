"""What a person must allow: a plan, a task, a tool call. The workflow waits for it, and silence means no."""

from __future__ import annotations

from datetime import timedelta

from pointsman.core.decision import Draft
from pointsman.core.model.state import Pending, Task
from pointsman_schemas.events import ApprovalWanted, AttemptError, ErrorKind
from pointsman_schemas.log import ApprovalDecided, ApprovalRequested
from pointsman_schemas.plan import Plan

__all__ = ["ask_about_calls", "ask_about_plan", "ask_about_task", "refusal"]


def ask_about_task(draft: Draft, task: Task, agent: str) -> None:
    """Ask whether `agent` may have the task."""
    _ask(draft, about="task", task_id=task.id, agent=agent)


def ask_about_calls(draft: Draft, task: Task, calls: tuple[ApprovalWanted, ...]) -> None:
    """Ask about each tool call that the task's agent wants to make; one that is wanted twice is asked about once."""
    asked: list[ApprovalWanted] = []
    for call in calls:
        if call not in asked:
            asked.append(call)
            _ask(
                draft,
                about="tool",
                task_id=task.id,
                agent=task.agent,
                tool=call.tool,
                input=dict(call.arguments),
                input_schema=call.input_schema,
            )


def ask_about_plan(draft: Draft, plan: Plan, revision: int) -> None:
    """Ask whether the plan may run."""
    _ask(draft, about="plan", plan=plan, revision=revision)


def refusal(pending: Pending, decided: ApprovalDecided) -> AttemptError:
    """Why a task or plan that a person did not allow has failed. Who that was stands in the log, for those who run it:
    a model that reads this may tell it to who asked."""
    what = "the plan" if pending.about == "plan" else "it"
    if decided.verdict == "expired":
        hours = (pending.expires_at - pending.asked_at).total_seconds() / 3600
        message = f"nobody approved {what} within {hours:.3g} h, which means no"
    else:
        message = f"{what} was not allowed{': ' if decided.reason else ''}{decided.reason}"
    return AttemptError(kind=ErrorKind.REJECTED, message=message)


def _ask(draft: Draft, **about: object) -> None:
    state = draft.open()
    expires = draft.now + timedelta(seconds=state.limits.approval)
    if state.parent is not None:
        expires = min(expires, state.parent.deadline)
    name = f"{state.workflow_id}-a{state.asked + 1}"
    asked = {"at": draft.now, "approval": name, "expires_at": expires, **about}
    draft.add(ApprovalRequested.model_validate(asked))
