"""The commands for questions: questions, answer, approve, reject."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated

import typer
from pydantic import JsonValue

from pointsman.cli.arguments import Json, OfWorkflow, QuestionId, read_stdin
from pointsman.cli.render.outcome import question_table
from pointsman.cli.render.output import Code, print_error, print_json, print_list
from pointsman.cli.support.ids import resolve_question_id, resolve_workflow_id
from pointsman.cli.support.session import Execution, Session, broker_command
from pointsman.client.client import Client
from pointsman.client.operations import AnswerResult
from pointsman.core.questions.answer_schema import answer_problem
from pointsman.errors import ContractError
from pointsman_schemas.strict_json import parse_json

__all__ = ["answer", "approve", "questions", "reject"]


@broker_command
async def questions(session: Session, workflow: OfWorkflow = None, json: Json = False) -> None:
    """List the questions that wait for a person, oldest first."""
    async with session() as client:
        found = await client.operations.questions(await resolve_workflow_id(client, workflow) if workflow else None)
    print_list(found, lambda _: question_table(found, datetime.now(UTC)), "No question is open.", json=json)


@broker_command
def answer(
    session: Session,
    question: QuestionId,
    answer: Annotated[
        str,
        typer.Argument(
            metavar="ANSWER", help="The answer: text, or JSON if the question requires JSON; - reads standard input."
        ),
    ],
    json: Json = False,
) -> Execution:
    """Answer a question of an agent or a planner.

    Returns:
        The execution of the command.
    """
    text = read_stdin().strip() if answer == "-" else answer

    async def send(client: Client, id: str) -> AnswerResult:
        value = _value(text, await _schema(client, id))
        return await client.operations.answer(id, value)

    return _send(session, question, send, json=json)


@broker_command
def approve(
    session: Session,
    question: QuestionId,
    input_json: Annotated[
        str | None,
        typer.Option(
            "--input",
            metavar="JSON",
            help="JSON that replaces the input of the task, the arguments of the tool call, or the plan; "
            "- reads standard input. Default: unchanged.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> Execution:
    """Approve a task, a tool call or a plan.

    Returns:
        The execution of the command.
    """
    text = read_stdin() if input_json == "-" else input_json
    replacement = None if text is None else parse_json(text.encode())

    async def send(client: Client, id: str) -> AnswerResult:
        return await client.operations.approve(id, input=replacement)

    return _send(session, question, send, json=json)


@broker_command
async def reject(
    session: Session,
    question: QuestionId,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="The reason, for the planner or the agent and for the log.")
    ] = "",
    json: Json = False,
) -> Code:
    """Reject a task, tool call or plan, or decline to answer.

    Returns:
        The exit code.
    """

    async def send(client: Client, id: str) -> AnswerResult:
        return await client.operations.reject(id, reason=reason)

    return await _send(session, question, send, json=json)


async def _schema(client: Client, question: str) -> dict[str, JsonValue]:
    """Return the JSON Schema of an open question; an empty schema if the question is not open."""
    if not (workflow := question.rpartition("-")[0]):  # not the id of a question; sending the answer reports the error
        return {}
    found = await client.operations.questions(workflow)
    return next((each.input_schema or {} for each in found if each.id == question), {})


def _value(text: str, schema: dict[str, JsonValue]) -> JsonValue:
    """Return the typed text if the question requires text. Otherwise parse the typed text as JSON."""
    if not answer_problem(schema, text):
        return text
    try:
        return parse_json(text.encode())
    except ContractError:
        return text  # sent as a text; the check of the answer by the schema reports the problem


async def _send(
    session: Session, given: str, send: Callable[[Client, str], Awaitable[AnswerResult]], *, json: bool
) -> Code:
    async with session() as client:
        question = await resolve_question_id(client, given)
        result = await send(client, question)
    if json:
        print_json({"question": question, "counted": result.counted, "said": result.message})
    elif result.counted is not False:
        print(f"{result.message}.")  # not formatted, because users copy the id at the beginning of the line
    if result.counted is False:
        print_error(result.message)
    return Code.FAILED if result.counted is False else Code.OK
