"""Convert a question of a workflow to an elicitation, and answer the question with the person's response."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import mcp.types as types
from mcp.server.context import ServerRequestContext
from pydantic import JsonValue

from pointsman.errors import ContractError
from pointsman.gateway.mcp.backend import Backend
from pointsman_schemas.events import Question
from pointsman_schemas.strict_json import compact_json

__all__ = ["answer_questions", "elicitation_of", "form_of", "may_elicit", "open_questions"]

_ANSWER_TIMEOUT_S = 10.0  # seconds to wait until a supervisor has read the answer
_PRIMITIVES = ("string", "number", "integer", "boolean")
_ANSWER = "answer"
_REASON_FORM: dict[str, Any] = {
    "type": "object",
    "properties": {"reason": {"type": "string", "title": "Reason", "description": "Your reason, if you refuse."}},
}


def may_elicit(ctx: ServerRequestContext[Any, Any]) -> bool:
    """Return True if the client shows forms to a person. A client that declares elicitation without a mode does, too.

    Args:
        ctx: The context of the request.
    """
    capabilities = ctx.session.client_capabilities
    declared = capabilities.elicitation if capabilities else None
    return declared is not None and (declared.form is not None or declared.url is None)


async def open_questions(backend: Backend, workflow: str) -> Sequence[Question]:
    """Return the open questions of a workflow.

    Args:
        backend: The operations for the caller.
        workflow: The workflow.

    Returns:
        The questions, the oldest first.
    """
    return await backend.client.operations.questions(workflow)


def elicitation_of(question: Question, problem: str = "") -> types.ElicitRequest:
    """Return the elicitation for a question.

    Args:
        question: The question.
        problem: The reason why an earlier answer was not accepted; empty without an earlier answer.

    Returns:
        The elicitation.
    """
    message = _message(question)
    if problem:
        message = f"{message}\n\nThe last answer was not accepted: {problem}"
    params = types.ElicitRequestFormParams(mode="form", message=message, requested_schema=form_of(question))
    return types.ElicitRequest(method="elicitation/create", params=params)


def form_of(question: Question) -> dict[str, Any]:
    """Return the form for a question.

    MCP allows only forms of flat objects. If the answer is of another type, the form has one field `answer`.

    Args:
        question: The question.

    Returns:
        JSON Schema of the form.
    """
    if question.about != "information":
        return _REASON_FORM
    schema = question.input_schema or {"type": "string"}
    if _is_flat(schema):
        return dict(schema)
    if schema.get("type") in _PRIMITIVES:
        field: dict[str, Any] = dict(schema)
    else:
        field = {"type": "string", "title": "Answer", "description": f"JSON that fits {compact_json(schema).decode()}"}
    return {"type": "object", "properties": {_ANSWER: field}, "required": [_ANSWER]}


async def answer_questions(
    backend: Backend, questions: Sequence[Question], responses: Mapping[str, object]
) -> dict[str, str]:
    """Answer questions with the responses to elicitations. A response to a question that is not open is ignored.

    Args:
        backend: The operations for the caller.
        questions: The open questions.
        responses: The responses by the ids of the questions.

    Returns:
        The reasons why answers were not accepted, by the ids of the questions.
    """
    problems: dict[str, str] = {}
    operations, actor = backend.client.operations, backend.actor
    for question in questions:
        response = responses.get(question.id)
        if not isinstance(response, types.ElicitResult) or response.action == "cancel":
            continue  # the person has closed the form, so the question is still open
        content: Mapping[str, Any] = response.content or {}
        try:
            if response.action == "decline":
                reason = str(content.get("reason") or "declined")
                await operations.reject(question.id, reason=reason, actor=actor, timeout=_ANSWER_TIMEOUT_S)
            elif question.about == "information":
                answer = _answer_of(question, content)
                await operations.answer(question.id, answer, actor=actor, timeout=_ANSWER_TIMEOUT_S)
            else:
                await operations.approve(question.id, actor=actor, timeout=_ANSWER_TIMEOUT_S)
        except ContractError as error:
            problems[question.id] = str(error)
    return problems


def _answer_of(question: Question, content: Mapping[str, Any]) -> JsonValue:
    schema = question.input_schema or {"type": "string"}
    if _is_flat(schema):
        return dict(content)
    answer: JsonValue = content.get(_ANSWER)
    if schema.get("type") in _PRIMITIVES or not isinstance(answer, str):
        return answer
    try:
        parsed: JsonValue = json.loads(answer)
    except ValueError:
        return answer
    return parsed


def _is_flat(schema: Mapping[str, Any]) -> bool:
    """Return True for an object whose fields are only strings, numbers and booleans."""
    fields = schema.get("properties")
    return (
        schema.get("type") == "object"
        and isinstance(fields, dict)
        and all(isinstance(each, dict) and each.get("type") in _PRIMITIVES for each in fields.values())
    )


def _message(question: Question) -> str:
    match question.about:
        case "information":
            return question.text or "The team asks for information."
        case "tool":
            return f"{question.agent} asks to call {question.tool} with {_text(question.input)}."
        case "plan":
            return f"The team asks to begin with this plan: {_text(question.input)}"
        case "task":
            return f"The team asks to give this task to {question.agent}: {question.intent} {_text(question.input)}"


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else compact_json(value).decode()
