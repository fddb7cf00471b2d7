"""Ask a person to approve a plan, a task or a tool call, or to give information.

If no approval arrives in time, the plan, the task or the call counts as rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from pydantic import JsonValue

from pointsman.core.decision import Decision
from pointsman.core.model.state import OpenQuestion, State, Task
from pointsman_schemas.events import AttemptError, ErrorKind, QuestionRequest
from pointsman_schemas.log import QuestionAnswered, QuestionAsked
from pointsman_schemas.plan import Plan

__all__ = [
    "ask_questions",
    "questions_over_limit",
    "rejection_error",
    "request_plan_approval",
    "request_task_approval",
]


def request_task_approval(decision: Decision, task: Task, agent: str) -> None:
    """Request an approval for giving the task to `agent`."""
    _ask(decision, about="task", task_id=task.id, agent=agent)


def ask_questions(decision: Decision, task: Task, questions: Sequence[QuestionRequest]) -> None:
    """Ask each question of the task's agent. Equal questions are asked once."""
    asked: list[QuestionRequest] = []
    for each in questions:
        if each not in asked:
            asked.append(each)
            _ask(
                decision,
                each.timeout,
                about=each.about,
                task_id=task.id,
                agent=task.agent,
                tool=each.tool,
                input=_arguments(each),
                key=each.key,
                text=each.text,
                input_schema=each.input_schema,
                has_default=each.has_default,
                default=each.default,
            )


def questions_over_limit(state: State, questions: Sequence[QuestionRequest]) -> str:
    """Return a sentence about the limit that `questions` would exceed; an empty text if the limit allows them."""
    wanted = sum(1 for each in questions if each.about == "information")
    left = state.limits.questions - state.information_questions
    if wanted <= left:
        return ""
    return (
        f"the workflow may ask {state.limits.questions} questions for information; {max(left, 0)} are left, and "
        f"{wanted} were asked"
    )


def request_plan_approval(decision: Decision, plan: Plan, revision: int) -> None:
    """Request an approval for running the plan."""
    _ask(decision, about="plan", plan=plan, revision=revision)


def rejection_error(pending: OpenQuestion, decided: QuestionAnswered) -> AttemptError:
    """Return the error of a task or a plan that a person has not approved.

    The error does not name the person, because a model may repeat the error to the caller. The log names the person.
    """
    what = "the plan" if pending.about == "plan" else f"the {pending.about}"
    if decided.verdict == "expired":
        hours = (pending.expires_at - pending.asked_at).total_seconds() / 3600
        message = f"{what} was rejected: its approval got no answer within {hours:.3g} h"
    else:
        message = f"{what} was not allowed{': ' if decided.reason else ''}{decided.reason}"
    return AttemptError(kind=ErrorKind.REJECTED, message=message)


def _arguments(asked: QuestionRequest) -> JsonValue:
    return dict(asked.arguments) if asked.about == "tool" else None


def _ask(decision: Decision, timeout: float | None = None, **about: object) -> None:
    state = decision.state
    longest = state.limits.answer_timeout
    expires = decision.now + timedelta(seconds=longest if timeout is None else min(timeout, longest))
    if state.parent is not None:
        expires = min(expires, state.parent.deadline)
    name = f"{state.workflow_id}-q{state.questions_asked + 1}"
    asked = {"at": decision.now, "question": name, "expires_at": expires, **about}
    decision.add(QuestionAsked.model_validate(asked))
