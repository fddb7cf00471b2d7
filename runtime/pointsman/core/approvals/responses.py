"""What a person's verdict leads to: the work goes on, or it has failed and says why."""

from __future__ import annotations

from datetime import datetime
from typing import assert_never

from pydantic import JsonValue

from pointsman.core.attempts.failures import task_failed
from pointsman.core.completion.caller_messages import could_not
from pointsman.core.completion.outcome import end
from pointsman.core.decision import Draft
from pointsman.core.model.inputs import ControlReceived
from pointsman.core.model.lifecycle import Phase, TaskStatus
from pointsman.core.model.state import Pending
from pointsman.core.planning.acceptance import accept_plan, keep_plan, last_planner, reject_plan
from pointsman.core.planning.planner import problems_of
from pointsman.core.planning.validation import read_plan
from pointsman.core.tasks.agent_selection import addressed
from pointsman.core.tasks.approval_requests import refusal
from pointsman.core.tasks.dispatch import dispatch
from pointsman_schemas.events import Control
from pointsman_schemas.log import ApprovalDecided, ControlIgnored
from pointsman_schemas.plan import Plan
from pointsman_schemas.strict_json import compact

__all__ = ["answered", "expire_approvals", "first_expiry"]


def answered(draft: Draft, received: ControlReceived) -> None:
    """Take a person's answer, if it is one to something that is asked."""
    state, control = draft.open(), received.control
    if received.event_id in state.ignored:
        return  # a redelivery
    pending = state.approvals.get(control.approval or "")
    if reason := _counts_for_nothing(draft, pending, control):
        draft.add(
            ControlIgnored(
                at=draft.now,
                event_id=received.event_id,
                action=control.action,
                approval=control.approval,
                input=control.input,
                reason=reason,
            )
        )
        return
    assert pending is not None
    verdict = "approved" if control.action == "approve" else "rejected"
    _decide(
        draft,
        pending,
        ApprovalDecided(
            at=draft.now,
            event_id=received.event_id,
            approval=pending.id,
            verdict=verdict,
            input=control.input if verdict == "approved" else None,
            reason=control.reason,
            by=control.by,
        ),
    )


def expire_approvals(draft: Draft) -> None:
    """What nobody has answered in time is refused."""
    for pending in tuple(draft.open().approvals.values()):
        if draft.now >= pending.expires_at and pending.id in draft.open().approvals:
            expired = ApprovalDecided(
                at=draft.now, event_id=f"expired-{pending.id}", approval=pending.id, verdict="expired"
            )
            _decide(draft, pending, expired)


def first_expiry(draft: Draft) -> list[datetime]:
    """When the first of what is asked expires; nothing when nothing is asked."""
    return sorted(pending.expires_at for pending in draft.open().approvals.values())[:1]


def _counts_for_nothing(draft: Draft, pending: Pending | None, control: Control) -> str:
    """Why this is no answer; nothing when it is one."""
    if pending is None:
        return f"the workflow does not wait for the approval {control.approval}: it was answered, or never asked for"
    if draft.now >= pending.expires_at:
        return f"the approval {pending.id} expired at {pending.expires_at.isoformat()}"
    if control.action == "reject" or control.input is None or pending.about == "task":
        return ""
    if pending.about == "tool":
        return "" if isinstance(control.input, dict) else "the arguments of a tool are an object"
    plan = read_plan(control.input)
    problems = problems_of(draft, plan) if isinstance(plan, Plan) else plan
    return f"the plan given in its place will not do: {'; '.join(problems)}" if problems else ""


def _decide(draft: Draft, pending: Pending, decided: ApprovalDecided) -> None:
    state = draft.add(decided)
    match pending.about:
        case "plan":
            _about_plan(draft, pending, decided)
        case "task":
            assert pending.task_id is not None
            if decided.verdict == "approved":
                dispatch(draft, pending.task_id)
            else:
                task_failed(draft, state.tasks[pending.task_id], refusal(pending, decided))
        case "tool":
            # The agent is told either way: it may do without the call.
            assert pending.task_id is not None
            more = any(each.task_id == pending.task_id for each in state.approvals.values())
            if not more and state.tasks[pending.task_id].status is TaskStatus.AWAITING_APPROVAL:
                dispatch(draft, pending.task_id)
        case _:
            assert_never(pending.about)


def _about_plan(draft: Draft, pending: Pending, decided: ApprovalDecided) -> None:
    assert pending.plan is not None
    if decided.verdict == "approved":
        plan = pending.plan
        if decided.input is not None:
            edited = read_plan(decided.input)
            assert isinstance(edited, Plan)
            plan = addressed(draft, edited)
        return accept_plan(draft, plan, revision=pending.revision, approved=True)
    state = draft.open()
    error = refusal(pending, decided)
    planner = last_planner(state)
    if decided.verdict == "rejected" and planner is not None:
        return reject_plan(draft, planner, (error.message,), _text(pending.plan.model_dump(mode="json")))
    if state.plan is not None:
        return keep_plan(draft, error.message)
    next_step = (
        "Submit the request again, and answer in time." if decided.verdict == "expired" else "Ask in another way."
    )
    return end(draft, Phase.FAILED, could_not(error.message, next_step), error.message)


def _text(plan: JsonValue) -> str:
    return compact(plan).decode()
