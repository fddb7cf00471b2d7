"""Inputs that a supervisor processes, each with its delivery, which is settled after the processing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeGuard, assert_never

from pointsman.core.model.inputs import (
    CLOCK_SKEW,
    ControlReceived,
    Input,
    RequestReceived,
    RequestRefused,
    ResultReceived,
    TimerFired,
    is_first_round,
)
from pointsman.core.model.state import State
from pointsman.core.results import has_token
from pointsman.core.tasks.child_workflow import PARENT_CONTROL
from pointsman.core.user_messages import late_message
from pointsman.errors import InvariantError, OversizeEventError
from pointsman.ports.bus import Delivery
from pointsman_schemas.events import AttemptError, ErrorKind
from pointsman_schemas.log import Entry

__all__ = [
    "InboundInput",
    "all_committed",
    "find_refusal",
    "fired_early",
    "is_cancellation",
    "is_late_timer",
    "is_message",
    "is_request",
    "refuse_oversized",
]


@dataclass(slots=True)
class InboundInput:
    """An input and its delivery.

    Attributes:
        input: The input.
        delivery: The delivery to settle after the input is processed.
        event_id: The id of the event.
        refusal: The error for the dead letter of the input; None for an accepted input.
        postponed: True if the input cannot be decided yet and is redelivered.
        related_inputs: Stored inputs that are decided together with this input. Each has its own delivery, which is
            settled separately.
    """

    input: Input
    delivery: Delivery
    event_id: str
    refusal: AttemptError | None = None
    postponed: bool = False
    related_inputs: tuple[Input, ...] = ()


def is_request(each: Input) -> bool:
    """Return True if an input can begin a workflow. Such an input is a request or a handoff to the team.

    An unreadable request counts, too, because its workflow begins and ends at once.
    """
    return isinstance(each, RequestReceived | RequestRefused)


def is_late_timer(each: Input) -> bool:
    """Return True if an input of an ended workflow is a timer of the first round. Such a timer has no effect.

    For any other input the log is read again, because another supervisor may have resumed the workflow.
    """
    return isinstance(each, TimerFired) and is_first_round(each.name)


def find_refusal(state: State, each: Input) -> AttemptError | None:
    """Return the error for the dead letter of a processed input; None for an accepted input."""
    match each:
        case ResultReceived():
            return _result_forgery(state, each)
        case RequestReceived() | RequestRefused():
            return _request_id_conflict(state, each)
        case ControlReceived():
            return _message_refusal(state, each)
        case TimerFired():
            return None
        case _:
            assert_never(each)


def _request_id_conflict(state: State, each: RequestReceived | RequestRefused) -> AttemptError | None:
    """Return an error if another request with the same id began the workflow; None if this request began it."""
    if each.admission.digest == state.request_digest:
        return None
    return AttemptError(
        kind="request_id_taken",
        message=(
            f"the id {each.admission.request_id!r} belongs to the workflow {state.workflow_id}, which began with "
            "another request of the same source; publish this request under a new id"
        ),
    )


def _result_forgery(state: State, each: ResultReceived) -> AttemptError | None:
    """Return an error for a result without the token of the handoff."""
    if has_token(state, each):
        return None
    return AttemptError(
        kind="wrong_token",
        message=(
            f"the token of the result of {each.result.task_id} is not the token of attempt {each.result.attempt}; "
            "publish a result on the return_to of its handoff; the result is ignored"
        ),
    )


def _message_refusal(state: State, each: ControlReceived) -> AttemptError | None:
    """Return an error for a message to an ended workflow; None for any other control.

    No error is returned if the message starts the next turn of a thread, is a redelivery, or comes from a parent.
    """
    if not is_message(each) or not state.ended or not (reason := late_message(state, each)):
        return None
    return AttemptError(kind="workflow_ended", message=reason)


def is_message(each: Input) -> TypeGuard[ControlReceived]:
    """Return True if an input is a message to the workflow."""
    return isinstance(each, ControlReceived) and each.control.action == "tell"


def is_cancellation(workflow: str, received: ControlReceived) -> bool:
    """Return True if a person or a caller cancels the workflow.

    A cancellation by a parent does not count: it is for a child workflow, which began with a handoff and has no queued
    request.
    """
    return received.control.action == "cancel" and received.event_id != f"{workflow}-{PARENT_CONTROL}"


def fired_early(state: State, inbound: Iterable[InboundInput], now: Callable[[], datetime]) -> bool:
    """Return True if the armed timer fired long before its time."""
    fired = any(isinstance(each.input, TimerFired) and each.input.name == state.timer for each in inbound)
    return fired and state.timer_due is not None and state.timer_due - now() > CLOCK_SKEW


def all_committed(inbound: Iterable[InboundInput], entries: Iterable[Entry]) -> bool:
    """Return True if the new `entries` record every input, so no earlier commit had recorded any of the inputs.

    No entry records a timer, so a timer among the inputs makes the result False.
    """
    committed = {getattr(entry, "event_id", None) for entry in entries}
    return all(inbound_input.event_id in committed for inbound_input in inbound)


def refuse_oversized(inbound_input: InboundInput, error: OversizeEventError) -> None:
    """Refuse an input that fits into a message, but is too large for a log entry that contains the input."""
    failure = AttemptError(kind=ErrorKind.OVERSIZE, message=f"too large to be stored in the log: {error}")
    match inbound_input.input:
        case RequestReceived() as received:
            inbound_input.input = RequestRefused(received.admission, failure, received.request.reply_to)
            inbound_input.refusal = failure
        case ResultReceived() as received if received.result.output is not None:
            result = received.result.model_copy(update={"status": "failed", "output": None, "error": failure})
            inbound_input.input = ResultReceived(received.event_id, result, received.token)
        case _:
            raise InvariantError(f"an input without a large body does not fit into a commit: {error}") from error
