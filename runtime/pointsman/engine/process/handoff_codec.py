"""Decode messages on handoff subjects. A message that cannot be read raises `ContractError` with the problem."""

from __future__ import annotations

from pointsman.ports.bus import StoredMessage
from pointsman_schemas.envelope import Envelope, decode
from pointsman_schemas.errors import ContractError, UndecodableEventError, UnknownEventTypeError
from pointsman_schemas.events import Handoff
from pointsman_schemas.ids import token
from pointsman_schemas.strict_json import parse
from pointsman_schemas.subjects import Subjects

__all__ = ["RESENT_HEADER", "consumer_name", "decode_handoff"]

RESENT_HEADER = "pointsman-resent"
"""The header of a handoff that may be the second handoff of its attempt. The broker may have lost a first handoff, and
a worker may have answered the lost handoff. A worker looks for a result before it starts such a handoff."""


def consumer_name(agent: str) -> str:
    """Return the durable consumer that all workers of an agent share; an autoscaler reads its queue."""
    return f"agent-{token(agent, 'agent')}"


def decode_handoff(message: StoredMessage, subjects: Subjects) -> tuple[Envelope, Handoff]:
    """Return the envelope and the handoff of a message.

    Raises:
        ContractError: The message is not a handoff that this release supports, or disagrees with its subject.
        UndecodableEventError: The message has no CloudEvents headers.
        UnknownEventTypeError: The message is an event of another type.
    """
    address = subjects.parse_handoff(message.subject)
    envelope, data = decode(message.headers, message.body)
    if envelope is None:
        raise UndecodableEventError(f"the message on {message.subject} has no ce- headers; a handoff is a CloudEvent")
    if envelope.type != Handoff.event_type:
        raise UnknownEventTypeError(f"the event type is {envelope.type[:80]!r}; expected {Handoff.event_type!r}")
    handoff = parse(Handoff, data)
    said = (handoff.to_agent, handoff.workflow_id, handoff.task_id, handoff.attempt)
    if said != (address.agent, address.workflow, address.task, address.attempt):
        raise ContractError(
            f"the subject is {message.subject}, but the body is for agent, workflow, task and attempt "
            f"{said}; publish a handoff on its own subject"
        )
    agent, workflow, task, attempt = said
    usual = f"{subjects.namespace}.inbox.{handoff.from_agent}.{workflow}.result.{agent}.{task}.{attempt}"
    if handoff.return_to != usual:
        _check_return_subject(handoff, message, subjects)
    return envelope, handoff


def _check_return_subject(handoff: Handoff, message: StoredMessage, subjects: Subjects) -> None:
    """Raise `ContractError` unless the reply subject is an inbox for this result. Any team may own this inbox."""
    said = (handoff.to_agent, handoff.workflow_id, handoff.task_id, handoff.attempt)
    inbox = subjects.parse_inbox(handoff.return_to)
    if inbox.kind != "result" or said != (inbox.agent, inbox.workflow, inbox.task, inbox.attempt):
        raise ContractError(
            f"return_to is {handoff.return_to!r}, which is not where the result of {message.subject} "
            "belongs; nothing is published elsewhere"
        )
