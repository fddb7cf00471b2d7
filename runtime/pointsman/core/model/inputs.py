"""Define the inputs of a workflow: requests, results, controls and timers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from pointsman_schemas.events import AttemptError, Control, History, Request, Result, UserMessage
from pointsman_schemas.log import Parent, ThreadTurn, TraceOrigin
from pointsman_schemas.team import Team

__all__ = [
    "CLOCK_SKEW",
    "ROUND_MARK",
    "ControlReceived",
    "Input",
    "RequestReceived",
    "RequestRefused",
    "ResultReceived",
    "TimerFired",
    "is_first_round",
]

CLOCK_SKEW = timedelta(seconds=2)
"""By the supervisor's clock, a timer can fire too early by this time, because the broker's clock differs. The clocks of
two correctly set machines differ by less."""

ROUND_MARK = "-round-"
"""The mark in timer names from the second round on, before the number of the round: `wake-3-round-2`."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The origin of a workflow: the request or the handoff, the team and the trace.

    Attributes:
        workflow_id: The workflow.
        request_id: The id of the request, unique within its source.
        correlation_id: The correlation id of the request.
        team: The team.
        trace: The trace context.
        parent: The task of a parent team, if the handoff of that task starts the workflow.
        depth: Number of teams above the workflow.
        caller: The caller, from the subject of the request. For a handoff: `team:` and the name of the parent team.
        secret: A random secret, from which the tokens of the workflow's attempts are computed. Each delivery of a
            request makes a new secret, and only the secret in the log is used.
        digest: Digest of the request; empty for a handoff. The digest distinguishes requests with the same id.
        thread: The turn of a thread, if the request names a thread that has admitted the turn.
        history: The earlier turns of the thread.
        messages: For a handoff: the messages that the workflow of the parent received before the handoff.
    """

    workflow_id: str
    request_id: str
    correlation_id: str
    team: Team
    trace: TraceOrigin
    caller: str
    secret: str
    parent: Parent | None = None
    depth: int = 0
    digest: str = ""
    thread: ThreadTurn | None = None
    history: History | None = None
    messages: tuple[UserMessage, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """A request of a caller or a handoff to the team. Either may start a workflow."""

    admission: Admission
    request: Request
    ignored_fields: tuple[str, ...] = ()
    """Fields of the message that the request schema does not have."""


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """A refused request, such as an unreadable one. Its workflow ends at once, with an outcome that names the fault."""

    admission: Admission
    error: AttemptError
    reply_to: str | None = None
    """The core NATS subject that receives a copy of the outcome, if the subject could be read."""


@dataclass(frozen=True, slots=True)
class ResultReceived:
    """A result of an agent for one attempt. A decision can ignore it, for example if a later attempt has begun.

    Attributes:
        event_id: The id of the event.
        result: The result.
        token: The token of the attempt, from the subject of the result.
    """

    event_id: str
    result: Result
    token: str


@dataclass(frozen=True, slots=True)
class ControlReceived:
    """A command of an operator, a caller or a parent, such as `cancel`, `approve` or `tell`.

    Attributes:
        event_id: The id of the event.
        control: The command.
        actor: The user who sent the command, or the parent team, from the subject.
    """

    event_id: str
    control: Control
    actor: str


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer of the broker has fired. `name` is the name of the timer."""

    name: str


Input: TypeAlias = RequestReceived | RequestRefused | ResultReceived | ControlReceived | TimerFired


def is_first_round(timer: str) -> bool:
    """Return True if a timer of this name belongs to the first round of its workflow."""
    return ROUND_MARK not in timer
