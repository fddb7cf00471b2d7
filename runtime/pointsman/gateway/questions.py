"""List and answer the open questions of a caller's workflows: approvals, and questions for information."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from pointsman.gateway.callers import Caller
from pointsman.gateway.context import CallerArg, Context, ContextArg
from pointsman.gateway.models import Answer, AnswerView, Approval, QuestionPage, QuestionView, Rejection
from pointsman.gateway.problems import problems
from pointsman_schemas.ids import TOKEN_PATTERN

__all__ = ["router"]

router = APIRouter(prefix="/v1/questions", tags=["questions"])

_ANSWER_TIMEOUT_S = 10.0  # seconds to wait until a supervisor has read the answer
QuestionPath = Annotated[str, Path(pattern=TOKEN_PATTERN, description="The id of the question.")]


@router.get("", summary="List questions", responses=problems(404))
async def list_questions(
    context: ContextArg,
    caller: CallerArg,
    workflow_id: Annotated[
        str | None,
        Query(pattern=TOKEN_PATTERN, description="The workflow that asks. Default: any of your workflows."),
    ] = None,
) -> QuestionPage:
    """List the questions that a person must answer (approvals, and questions for information), the oldest first."""
    if workflow_id is not None:
        await context.view(caller, workflow_id)
    found = await context.client.operations.questions(workflow_id)
    shown = [question for question in found if workflow_id or _may_see(context, caller, question.workflow_id)]
    return QuestionPage(questions=[QuestionView.of(question) for question in shown])


@router.post("/{question_id}/answer", summary="Give information", responses=problems(404, 409))
async def answer_question(
    question_id: QuestionPath, body: Answer, context: ContextArg, caller: CallerArg
) -> AnswerView:
    """Answer a question for information. Wait up to 10 s until a supervisor has decided whether the answer counts."""
    await _check(context, caller, question_id)
    result = await context.client.operations.answer(
        question_id, body.answer, actor=caller.name, timeout=_ANSWER_TIMEOUT_S
    )
    return AnswerView(counted=result.counted, message=result.message)


@router.post("/{question_id}/approve", summary="Approve", responses=problems(404, 409))
async def approve(question_id: QuestionPath, body: Approval, context: ContextArg, caller: CallerArg) -> AnswerView:
    """Approve a task, a tool call or a plan. Wait up to 10 s until a supervisor has decided whether this counts."""
    await _check(context, caller, question_id)
    result = await context.client.operations.approve(
        question_id, input=body.input, actor=caller.name, timeout=_ANSWER_TIMEOUT_S
    )
    return AnswerView(counted=result.counted, message=result.message)


@router.post("/{question_id}/reject", summary="Reject", responses=problems(404, 409))
async def reject(question_id: QuestionPath, body: Rejection, context: ContextArg, caller: CallerArg) -> AnswerView:
    """Reject a task, a tool call or a plan, or decline to answer. Wait up to 10 s until a supervisor has read this."""
    await _check(context, caller, question_id)
    result = await context.client.operations.reject(
        question_id, reason=body.reason, actor=caller.name, timeout=_ANSWER_TIMEOUT_S
    )
    return AnswerView(counted=result.counted, message=result.message)


async def _check(context: Context, caller: Caller, question: str) -> None:
    """Refuse a question of another caller's workflow. The id of the question begins with the id of this workflow."""
    await context.view(caller, question.rpartition("-")[0] or question)


def _may_see(context: Context, caller: Caller, workflow: str) -> bool:
    if caller.operator:
        return True
    row = context.index.find(workflow)
    return row is not None and row.caller == caller.name
