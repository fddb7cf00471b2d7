"""Make the bodies of deliveries from listed fields of outcomes, questions and dead letters."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pointsman.engine.log.reader import is_imported
from pointsman.errors import ContractError
from pointsman.ports.bus import StoredMessage
from pointsman.webhooks.endpoints import EventType
from pointsman_schemas.envelope import decode
from pointsman_schemas.events import DeadLetter, Outcome, Question
from pointsman_schemas.ids import derive_id
from pointsman_schemas.strict_json import compact_json, parse
from pointsman_schemas.subjects import Subjects

__all__ = ["WebhookEvent", "read_event"]

_OUTCOME_FIELDS = {
    "workflow_id", "team", "status", "answer", "reason", "gaps", "files", "usage", "correlation_id", "started_at",
    "ended_at", "round", "elapsed",
}  # fmt: skip
_QUESTION_FIELDS = {
    "id", "workflow_id", "team", "about", "task_id", "agent", "intent", "tool", "text", "input", "input_schema",
    "has_default", "default", "asked_at", "expires_at",
}  # fmt: skip
_TRACE_HEADERS = ("traceparent", "tracestate")
_SHORT_FIELDS = ("id", "workflow_id", "team", "origin", "status", "about", "kind", "correlation_id", "round")


class WebhookEvent(NamedTuple):
    """An event for webhooks.

    Attributes:
        id: The id, equal in each attempt. Sent as the header `webhook-id`.
        type: The type.
        workflow: The workflow; None if the event belongs to no workflow.
        teams: The teams that the event concerns.
        caller: The caller whose workflow the event is about; None for a dead letter, and for an event of a child
            workflow.
        at: The time at which the broker stored the event.
        body: The body of the delivery.
        trace: The headers with the trace of the workflow.
    """

    id: str
    type: EventType
    workflow: str | None
    teams: Collection[str]
    caller: str | None
    at: datetime
    body: bytes
    trace: Mapping[str, str] = {}


class _Content(NamedTuple):
    type: EventType
    workflow: str | None
    teams: Collection[str]
    caller: str | None
    at: datetime
    data: Mapping[str, Any]


def read_event(stored: StoredMessage, subjects: Subjects, *, max_body: int) -> WebhookEvent | None:
    """Make the event of a stored outcome, question or dead letter.

    Args:
        stored: The message.
        subjects: The subjects of the namespace.
        max_body: The greatest size of the body in bytes. A larger body is replaced by a body with only the short
            fields, such as the ids, and `truncated`.

    Returns:
        The event; None for an imported message, which causes no delivery, and for the empty message of a removed dead
        letter.

    Raises:
        ContractError: The message cannot be read.
    """
    kind = subjects.kind_of(stored.subject)
    if is_imported(stored) or (kind == "dead" and not stored.body):
        return None
    envelope, content = decode(stored.headers, stored.body)
    found = _content_of(kind, stored.subject.split(".")[2], content)
    # The id is derived from the subject, so only a user with the right to publish there can cause an event with it.
    # The id is also derived from the id of the CloudEvent. So a message that is published twice gives two events with
    # the same id.
    id = derive_id("webhook", stored.subject, envelope.id if envelope is not None else str(stored.sequence))
    head = {"type": found.type, "id": f"evt_{id}", "timestamp": _text(found.at)}
    body = _encode({**head, "data": found.data})
    if len(body) > max_body:
        short = {name: found.data[name] for name in _SHORT_FIELDS if name in found.data}
        body = _encode({**head, "data": {**short, "truncated": True}})
    trace = {name: stored.headers[name] for name in _TRACE_HEADERS if name in stored.headers}
    return WebhookEvent(head["id"], found.type, found.workflow, found.teams, found.caller, stored.at, body, trace)


def _content_of(kind: str, owner: str, content: bytes) -> _Content:
    """Return the content of an event.

    The owner is the team in the subject. For a dead letter, the owner is the origin in the subject. The team is read
    from the subject and not from the content, because a supervisor must not publish an event for another team, and the
    broker checks only the subject.

    Raises:
        ContractError: The message cannot be read.
    """
    match kind:
        case "outcome":
            outcome = parse(Outcome, content)
            data = outcome.model_dump(mode="json", include=_OUTCOME_FIELDS)
            caller = _caller_of(outcome)
            return _Content("workflow.ended", outcome.workflow_id, (owner,), caller, outcome.ended_at, data)
        case "question":
            question = parse(Question, content)
            data = question.model_dump(mode="json", include=_QUESTION_FIELDS)
            caller = _caller_of(question)
            return _Content("question.asked", question.workflow_id, (owner,), caller, question.asked_at, data)
        case "dead":
            letter = parse(DeadLetter, content)
            data = {
                "id": letter.id,
                "origin": letter.origin,
                "workflow_id": letter.workflow_id,
                "task_id": letter.task_id,
                "kind": letter.cause.kind,
                "message": letter.cause.for_operators,
                "attempts": letter.attempts,
                "subject": letter.subject,
                "at": _text(letter.at),
            }
            teams = (owner, letter.team) if letter.team else (owner,)
            return _Content("dead_letter.stored", letter.workflow_id, teams, None, letter.at, data)
    raise ContractError(f"a message of the kind {kind!r} is not an event for webhooks")


def _caller_of(event: Outcome | Question) -> str | None:
    """Return the caller. For a child workflow, return None: the caller is a team, and a user may have the same name."""
    return event.caller if event.parent is None and event.caller else None


def _text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _encode(content: Mapping[str, Any]) -> bytes:
    return compact_json(dict(content))
