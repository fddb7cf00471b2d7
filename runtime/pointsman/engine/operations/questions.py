"""Publish a person's answer to a question of a workflow once. Read the answer that counts from the log."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, assert_never
from uuid import uuid4

from pydantic import JsonValue

from pointsman.core.questions.answer_schema import answer_problem
from pointsman.engine.log.reader import (
    as_async_generator,
    check_not_imported,
    newest_commit,
    read_commit,
    read_entries,
)
from pointsman.engine.process.retrying import publish_with_retry
from pointsman.errors import ContractError, NotFoundError
from pointsman.ports.bus import Bus
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import Control
from pointsman_schemas.log import Entry, QuestionAnswered, QuestionAsked
from pointsman_schemas.strict_json import as_json_value, dump
from pointsman_schemas.subjects import Subjects

__all__ = ["AnswerResult", "answer_question"]


@dataclass(frozen=True, slots=True)
class AnswerResult:
    """The result of a person's answer.

    Attributes:
        counted: True if the answer decided the question, False if not; None if no supervisor has read the answer yet.
        message: The result in one sentence.
        decided: The decision in the log; None if the log has no decision yet.
    """

    counted: bool | None
    message: str
    decided: QuestionAnswered | None = None


async def answer_question(
    bus: Bus,
    subjects: Subjects,
    action: Literal["approve", "reject", "answer"],
    question: str,
    *,
    actor: str,
    input: JsonValue = None,
    reason: str = "",
    timeout: float = 10.0,
) -> AnswerResult:
    """Publish the answer if the question is still open. Wait until the log has the answer that counts.

    Returns:
        The result. `counted` is None if no supervisor has read the answer in `timeout` seconds.

    Raises:
        ContractError: `input` is not JSON, is not valid by the schema of the question, of the tool or of the agent, or
            the action does not fit the question. The question stays open.
        NotFoundError: The question does not exist, or the log was removed.
    """
    workflow = question.rpartition("-")[0]
    if not workflow:
        raise NotFoundError(_unknown_question_message(question))
    newest = await newest_commit(bus, subjects, workflow)
    check_not_imported(workflow, newest.imported_from)
    team = newest.team
    entries = await read_entries(bus, subjects, workflow)
    asked = [entry for entry in entries if isinstance(entry, QuestionAsked) and entry.question == question]
    if not asked:
        raise NotFoundError(_unknown_question_message(question))
    name = uuid4().hex
    for entry in entries:
        if (found := _matching_entry(entry, question, name)) is not None:
            return found
    if datetime.now(UTC) >= asked[0].expires_at:
        return AnswerResult(False, f"{question} expired at {asked[0].expires_at.isoformat()} and accepts no answer")
    given = as_json_value(input, "input")
    _check_action(asked[0], action)
    if given is not None or action == "answer":
        await _check_input(bus, asked[0], given)
    control = Control(action=action, question=question, input=given, reason=reason)
    source = subjects.source("client", "python")
    envelope = Envelope(id=name, type=Control.event_type, source=source, time=datetime.now(UTC), subject=workflow)
    subject = subjects.control(team, workflow, action, actor, name)
    await publish_with_retry(bus, subject, dump(control), encode(envelope))
    log = bus.follow("log", (subjects.log(team, workflow),))
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout), aclosing(as_async_generator(log)) as messages:
            async for stored in messages:
                for entry in read_commit(stored).entries:
                    if (found := _matching_entry(entry, question, name)) is not None:
                        return found
    return AnswerResult(None, f"the answer to {question} is stored; no supervisor of {team} has read the answer yet")


def _check_action(asked: QuestionAsked, action: str) -> None:
    """Refuse an action that does not fit the question.

    Raises:
        ContractError: The action answers another kind of question.
    """
    fitting = ("answer", "reject") if asked.about == "information" else ("approve", "reject")
    if action not in fitting:
        raise ContractError(
            f"{asked.question} is a question about {asked.about}, which `{action}` does not answer; use {fitting[0]} "
            f"or {fitting[1]}"
        )


async def _check_input(bus: Bus, asked: QuestionAsked, given: JsonValue) -> None:
    """Refuse an answer or an input that is not valid, because the person can still correct the value.

    The supervisor checks answers and plans again, and the worker checks every value again.

    Raises:
        ContractError: The value is not valid by the schema of the question, of the tool or of the agent.
    """
    match asked.about:
        case "information":
            if problem := answer_problem(asked.input_schema or {}, given):
                raise ContractError(
                    f"the answer does not fit the question: {problem}; {asked.question} is still open; send an answer "
                    "that fits"
                )
            return
        case "tool":
            what = f"the tool {asked.tool}"
            schemas: Sequence[Mapping[str, JsonValue]] = [asked.input_schema or {"type": "object"}]
        case "task":
            what = f"the agent {asked.agent}"
            schemas = [card.input_schema for card in await bus.registry.cards() if card.name == asked.agent]
        case "plan":
            return
        case _:
            assert_never(asked.about)
    problems = [answer_problem(schema, given, is_input=True) for schema in schemas]
    if problems and all(problems):  # one fitting schema suffices, because two versions may be live
        raise ContractError(
            f"the input does not fit {what}: {problems[0]}; {asked.question} is still open; send an input that fits"
        )


def _matching_entry(entry: Entry, question: str, name: str) -> AnswerResult | None:
    """Return the result that an entry reports about the question or about the control event `name`.

    For any other entry, return None.
    """
    match entry.kind:
        case "question_answered" if entry.question == question:
            mine = entry.event_id == name
            by = f" by {entry.by}" if entry.by and not mine else ""
            said = f"{question} {'is' if mine else 'was already'} {entry.verdict}{by}"
            return AnswerResult(mine, said if mine else f"{said}; nothing has changed", entry)
        case "control_ignored" if entry.event_id == name:
            return AnswerResult(False, entry.reason)
        case "workflow_ended":
            return AnswerResult(False, f"the workflow has ended: {entry.outcome.status}; {question} is closed")
        case _:
            return None


def _unknown_question_message(question: str) -> str:
    return f"there is no question {question!r}; `pointsman questions` lists the open questions"
