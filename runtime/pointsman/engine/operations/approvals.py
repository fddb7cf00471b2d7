"""Publish a person's answer to a question of a workflow once. Read the answer that counts back from the log."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal
from uuid import uuid4

from pydantic import JsonValue

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
from pointsman.util.schema_validation import value_problem
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import Control
from pointsman_schemas.log import ApprovalDecided, ApprovalRequested, Entry
from pointsman_schemas.strict_json import as_json_value, dump
from pointsman_schemas.subjects import Subjects

__all__ = ["AnswerResult", "answer_approval"]


@dataclass(frozen=True, slots=True)
class AnswerResult:
    """The result of a person's answer.

    Attributes:
        counted: True if the answer decided the approval; None if no supervisor has read it yet.
        message: The result in one sentence.
        decided: The decision in the log; None if there is no decision yet.
    """

    counted: bool | None
    message: str
    decided: ApprovalDecided | None = None


async def answer_approval(
    bus: Bus,
    subjects: Subjects,
    action: Literal["approve", "reject"],
    approval: str,
    *,
    input: JsonValue = None,
    reason: str = "",
    by: str = "",
    timeout: float = 10.0,
) -> AnswerResult:
    """Publish the answer, unless the answer could not count. Wait for the answer that counts.

    Returns:
        The answer that counts, or a result without a verdict if no supervisor has read the answer in `timeout` seconds.

    Raises:
        ContractError: `input` is not valid in place of the old input, or is no JSON. The approval stays open.
        NotFoundError: The approval does not exist, or the log was removed.
    """
    workflow = approval.rpartition("-")[0]
    if not workflow:
        raise NotFoundError(_unknown_approval_message(approval))
    newest = await newest_commit(bus, subjects, workflow)
    check_not_imported(workflow, newest.imported_from)
    team = newest.team
    entries = await read_entries(bus, subjects, workflow)
    asked = [entry for entry in entries if isinstance(entry, ApprovalRequested) and entry.approval == approval]
    if not asked:
        raise NotFoundError(_unknown_approval_message(approval))
    name = uuid4().hex
    for entry in entries:
        if (found := _matching_entry(entry, approval, name)) is not None:
            return found
    if datetime.now(UTC) >= asked[0].expires_at:
        return AnswerResult(False, f"{approval} expired at {asked[0].expires_at.isoformat()} and counts as rejected")
    given = as_json_value(input, "input")
    if given is not None:
        await _check_input(bus, asked[0], given)
    control = Control(action=action, approval=approval, input=given, reason=reason, by=by)
    source = subjects.source("client", "python")
    envelope = Envelope(id=name, type=Control.event_type, source=source, time=datetime.now(UTC), subject=workflow)
    subject = subjects.control(team, workflow, name)
    await publish_with_retry(bus, subject, dump(control), encode(envelope), message_id=name)
    log = bus.follow("log", (subjects.log(team, workflow),))
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout), aclosing(as_async_generator(log)) as messages:
            async for stored in messages:
                for entry in read_commit(stored).entries:
                    if (found := _matching_entry(entry, approval, name)) is not None:
                        return found
    return AnswerResult(None, f"{approval} is answered in the stream; no supervisor of {team} has read it yet")


async def _check_input(bus: Bus, asked: ApprovalRequested, given: JsonValue) -> None:
    """Refuse a replacement input that is not valid, while a person can still give a better answer.

    The supervisor checks plans, and the worker checks every input again.

    Raises:
        ContractError: The input is not valid by the schema of the tool or of the agent.
    """
    match asked.about:
        case "tool":
            what = f"the tool {asked.tool}"
            schemas: Sequence[Mapping[str, JsonValue]] = [asked.input_schema or {"type": "object"}]
        case "task":
            what = f"the agent {asked.agent}"
            schemas = [card.input_schema for card in await bus.registry.cards() if card.name == asked.agent]
        case "plan":
            return
    problems = [_schema_problem(schema, given) for schema in schemas]
    if problems and all(problems):  # instances of two versions may be alive
        raise ContractError(
            f"the input does not fit {what}: {problems[0]}; {asked.approval} still waits: send what fits"
        )


def _schema_problem(schema: Mapping[str, JsonValue], value: JsonValue) -> str:
    if schema.get("type") == "string" and isinstance(value, dict):
        value = value.get("request", value)  # an agent that takes text also reads this field
    return value_problem(schema, value)


def _matching_entry(entry: Entry, approval: str, name: str) -> AnswerResult | None:
    """Return the answer that an entry gives about the approval, or about the control event `name`.

    For any other entry, the result is None.
    """
    match entry.kind:
        case "approval_decided" if entry.approval == approval:
            mine = entry.event_id == name
            by = f" by {entry.by}" if entry.by and not mine else ""
            said = f"{approval} {'is' if mine else 'was already'} {entry.verdict}{by}"
            return AnswerResult(mine, said if mine else f"{said}; nothing has changed", entry)
        case "control_ignored" if entry.event_id == name:
            return AnswerResult(False, entry.reason)
        case "workflow_ended":
            return AnswerResult(False, f"the workflow has ended: {entry.outcome.status}; {approval} is asked no more")
        case _:
            return None


def _unknown_approval_message(approval: str) -> str:
    return f"no approval {approval!r} was ever asked for; `pointsman approvals` lists what is asked now"
