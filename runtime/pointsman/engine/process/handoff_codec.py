"""Decode messages on handoff subjects. A message that cannot be read raises `ContractError` with the problem."""

from __future__ import annotations

from pointsman.ports.bus import StoredMessage
from pointsman_schemas.envelope import Envelope, decode
from pointsman_schemas.errors import ContractError, UndecodableEventError, UnknownEventTypeError
from pointsman_schemas.events import Cancellation, Handoff
from pointsman_schemas.ids import delayed_handoff_id
from pointsman_schemas.strict_json import parse
from pointsman_schemas.subjects import HandoffAddress, ResultAddress, Subjects

__all__ = ["RESENT_HEADER", "decode_handoff", "is_cancellation"]

RESENT_HEADER = "pointsman-resent"
"""The header of a handoff that is sent again, because the broker may have lost the first copy. A worker may already
have answered the first copy. So before a worker starts such a handoff, it searches for a result."""


def is_cancellation(message: StoredMessage) -> bool:
    """Return True if a message on the subject of a handoff is a cancellation that replaced the handoff."""
    return message.headers.get("ce-type") == Cancellation.event_type


def decode_handoff(message: StoredMessage, subjects: Subjects) -> tuple[Envelope, Handoff]:
    """Return the envelope and the handoff of a message.

    Raises:
        ContractError: The message is not a handoff that this release supports, or does not agree with its subject.
        UndecodableEventError: The message has no CloudEvents headers.
        UnknownEventTypeError: The message is an event of another type.
    """
    address = subjects.parse(message.subject, HandoffAddress)
    envelope, data = decode(message.headers, message.body)
    if envelope is None:
        raise UndecodableEventError(f"the message on {message.subject} has no ce- headers; a handoff is a CloudEvent")
    if envelope.type != Handoff.event_type:
        raise UnknownEventTypeError(f"the event type is {envelope.type[:80]!r}; expected {Handoff.event_type!r}")
    if message.scheduled_by:
        planned = subjects.retry(address.team, address.workflow, delayed_handoff_id(address.task, address.attempt))
        if message.scheduled_by != planned:
            raise ContractError(
                f"the message on {message.subject} comes from the schedule {message.scheduled_by}; expected {planned}, "
                "or no schedule; only the supervisors of the team schedule its handoffs"
            )
    handoff = parse(Handoff, data)
    said = (handoff.to_agent, handoff.from_agent, handoff.workflow_id, handoff.task_id, handoff.attempt)
    if said != (address.agent, address.team, address.workflow, address.task, address.attempt):
        raise ContractError(
            f"the subject is {message.subject}, but the body is for agent, team, workflow, task and attempt "
            f"{said}; publish a handoff on its own subject"
        )
    answer = subjects.parse(handoff.return_to, ResultAddress)
    if said != (answer.agent, answer.team, answer.workflow, answer.task, answer.attempt):
        raise ContractError(
            f"return_to is {handoff.return_to!r}; expected the subject of the result of {message.subject}, because a "
            "worker publishes a result on no other subject"
        )
    return envelope, handoff
