"""Request the approval of a person for a plan, a task or a tool call. No answer means no."""

from __future__ import annotations

from datetime import timedelta

from pointsman.core.decision import Decision
from pointsman.core.model.state import PendingApproval, Task
from pointsman_schemas.events import AttemptError, ErrorKind, ToolApprovalRequest
from pointsman_schemas.log import ApprovalDecided, ApprovalRequested
from pointsman_schemas.plan import Plan

__all__ = ["rejection_error", "request_plan_approval", "request_task_approval", "request_tool_approvals"]


def request_task_approval(decision: Decision, task: Task, agent: str) -> None:
    """Request an approval for giving the task to `agent`."""
    _request_approval(decision, about="task", task_id=task.id, agent=agent)


def request_tool_approvals(decision: Decision, task: Task, calls: tuple[ToolApprovalRequest, ...]) -> None:
    """Request an approval for each tool call of the task's agent. Equal calls are requested once."""
    asked: list[ToolApprovalRequest] = []
    for call in calls:
        if call not in asked:
            asked.append(call)
            _request_approval(
                decision,
                about="tool",
                task_id=task.id,
                agent=task.agent,
                tool=call.tool,
                input=dict(call.arguments),
                input_schema=call.input_schema,
            )


def request_plan_approval(decision: Decision, plan: Plan, revision: int) -> None:
    """Request an approval for running the plan."""
    _request_approval(decision, about="plan", plan=plan, revision=revision)


def rejection_error(pending: PendingApproval, decided: ApprovalDecided) -> AttemptError:
    """Return the error of a task or a plan that a person did not allow.

    The error omits the person, because a model may repeat the error to the caller. The log names the person.
    """
    what = "the plan" if pending.about == "plan" else f"the {pending.about}"
    if decided.verdict == "expired":
        hours = (pending.expires_at - pending.asked_at).total_seconds() / 3600
        message = f"{what} was rejected: its approval got no answer within {hours:.3g} h"
    else:
        message = f"{what} was not allowed{': ' if decided.reason else ''}{decided.reason}"
    return AttemptError(kind=ErrorKind.REJECTED, message=message)


def _request_approval(decision: Decision, **about: object) -> None:
    state = decision.state
    expires = decision.now + timedelta(seconds=state.limits.approval)
    if state.parent is not None:
        expires = min(expires, state.parent.deadline)
    name = f"{state.workflow_id}-a{state.approvals_requested + 1}"
    asked = {"at": decision.now, "approval": name, "expires_at": expires, **about}
    decision.add(ApprovalRequested.model_validate(asked))
