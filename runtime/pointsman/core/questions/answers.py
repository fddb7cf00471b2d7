"""Apply the answer of a person to a question. The work continues, or fails with the reason."""

from __future__ import annotations

from typing import assert_never

from pydantic import JsonValue

from pointsman.core.attempts.failures import fail_task
from pointsman.core.completion.caller_messages import explain_failure
from pointsman.core.completion.outcome import end_workflow
from pointsman.core.decision import Decision
from pointsman.core.model.inputs import ControlReceived
from pointsman.core.model.lifecycle import Phase, TaskStatus
from pointsman.core.model.state import OpenQuestion
from pointsman.core.planning.acceptance import accept_plan, keep_current_plan, newest_planner, reject_plan
from pointsman.core.planning.planner import plan_problems
from pointsman.core.planning.validation import read_plan
from pointsman.core.questions.answer_schema import answer_problem
from pointsman.core.tasks.agent_selection import resolve_skills
from pointsman.core.tasks.dispatch import dispatch_task
from pointsman.core.tasks.questions import rejection_error
from pointsman_schemas.events import Control, Verdict
from pointsman_schemas.log import ControlIgnored, QuestionAnswered
from pointsman_schemas.plan import Plan
from pointsman_schemas.strict_json import compact_json

__all__ = ["apply_answer", "expire_questions"]

_VERDICTS: dict[str, Verdict] = {"approve": "approved", "reject": "rejected", "answer": "answered"}
"""The verdict of each action that answers a question."""


def apply_answer(decision: Decision, received: ControlReceived) -> None:
    """Apply the answer of a person to its question. If the answer cannot count, record the reason instead."""
    state, control = decision.state, received.control
    if received.event_id in state.ignored_events:
        return  # a redelivery
    pending = state.questions.get(control.question or "")
    if reason := _ignored_reason(decision, pending, control):
        decision.add(
            ControlIgnored(
                at=decision.now,
                event_id=received.event_id,
                action=control.action,
                question=control.question,
                input=control.input,
                reason=reason,
            )
        )
        return
    assert pending is not None
    verdict = _VERDICTS[control.action]
    _apply_decision(
        decision,
        pending,
        QuestionAnswered(
            at=decision.now,
            event_id=received.event_id,
            question=pending.id,
            verdict=verdict,
            input=None if verdict == "rejected" else control.input,
            reason=control.reason,
            by=received.actor,
        ),
    )


def expire_questions(decision: Decision) -> None:
    """End each question that has expired. Its default becomes the answer. Without a default, it counts as rejected."""
    for pending in tuple(decision.state.questions.values()):
        if decision.now >= pending.expires_at and pending.id in decision.state.questions:
            expired = QuestionAnswered(
                at=decision.now,
                event_id=f"expired-{pending.id}",
                question=pending.id,
                verdict="expired",
                input=pending.default,
            )
            _apply_decision(decision, pending, expired)


def _ignored_reason(decision: Decision, pending: OpenQuestion | None, control: Control) -> str:
    """Return the reason why an answer is ignored; an empty text for an answer that counts."""
    if pending is None:
        return f"the workflow does not wait for an answer to {control.question}: it was answered, or never asked"
    if decision.now >= pending.expires_at:
        return f"the question {pending.id} expired at {pending.expires_at.isoformat()}"
    if control.action == "reject":
        return ""
    if (control.action == "answer") != (pending.about == "information"):
        expected = "`answer` or `reject`" if pending.about == "information" else "`approve` or `reject`"
        return f"the question {pending.id} is about {pending.about}: expected {expected}, not `{control.action}`"
    if pending.about == "information":
        problem = answer_problem(pending.input_schema or {}, control.input)
        return f"the answer does not fit the question: {problem}" if problem else ""
    if control.input is None or pending.about == "task":
        return ""
    if pending.about == "tool":
        return "" if isinstance(control.input, dict) else "the arguments of a tool are an object"
    plan = read_plan(control.input, strict=True)
    problems = plan_problems(decision, plan) if isinstance(plan, Plan) else plan
    return f"the replacement plan is not valid: {'; '.join(problems)}" if problems else ""


def _apply_decision(decision: Decision, pending: OpenQuestion, decided: QuestionAnswered) -> None:
    state = decision.add(decided)
    match pending.about:
        case "plan":
            _apply_plan_decision(decision, pending, decided)
        case "task":
            assert pending.task_id is not None
            if decided.verdict == "approved":
                dispatch_task(decision, pending.task_id)
            else:
                fail_task(decision, state.tasks[pending.task_id], rejection_error(pending, decided))
        case "tool" | "information":
            # The agent continues even after a rejection, because it may be able to do the task in another way. The
            # next handoff contains the rejection.
            assert pending.task_id is not None
            more = any(each.task_id == pending.task_id for each in state.questions.values())
            if not more and state.tasks[pending.task_id].status is TaskStatus.AWAITING_ANSWER:
                dispatch_task(decision, pending.task_id)
        case _:
            assert_never(pending.about)


def _apply_plan_decision(decision: Decision, pending: OpenQuestion, decided: QuestionAnswered) -> None:
    assert pending.plan is not None
    if decided.verdict == "approved":
        plan = pending.plan
        if decided.input is not None:
            edited = read_plan(decided.input)
            assert isinstance(edited, Plan)
            plan = resolve_skills(decision, edited)
        return accept_plan(decision, plan, revision=pending.revision, approved=True)
    state = decision.state
    error = rejection_error(pending, decided)
    planner = newest_planner(state)
    if decided.verdict == "rejected" and planner is not None:
        return reject_plan(decision, planner, (error.message,), _plan_text(pending.plan.model_dump(mode="json")))
    if state.plan is not None:
        return keep_current_plan(decision, error.message)
    next_step = (
        "Submit the request again, and answer in time." if decided.verdict == "expired" else "Ask in another way."
    )
    return end_workflow(decision, Phase.FAILED, explain_failure(error.message, next_step), error.message)


def _plan_text(plan: JsonValue) -> str:
    return compact_json(plan).decode()
