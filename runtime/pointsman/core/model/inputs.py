"""What can happen to a workflow from outside, and the circumstances in which it is judged."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from pointsman_schemas.events import AttemptError, Control, Request, Result
from pointsman_schemas.log import Parent, TraceOrigin
from pointsman_schemas.team import Team

__all__ = [
    "CLOCK_SKEW",
    "ControlReceived",
    "Input",
    "RequestReceived",
    "RequestRefused",
    "ResultReceived",
    "TimerFired",
]

CLOCK_SKEW = timedelta(seconds=2)
"""How far before its time, by the clock here, a timer is believed: no two clocks that are right differ by more."""


@dataclass(frozen=True, slots=True)
class Admission:
    """Who asks, and where the workflow's spans hang. With a `parent` it is another team's workflow that asks; else
    `digest` is that of the request, by which another one under the same id is told from it."""

    workflow_id: str
    request_id: str
    correlation_id: str
    team: Team
    trace: TraceOrigin
    parent: Parent | None = None
    depth: int = 0
    digest: str = ""


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """A caller's request, or a handoff to the team, which may begin a workflow."""

    admission: Admission
    request: Request


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """A request that cannot be read still gets its one outcome, which says why."""

    admission: Admission
    error: AttemptError


@dataclass(frozen=True, slots=True)
class ResultReceived:
    """An agent's result, for the attempt it names; whether it counts is decided."""

    event_id: str
    result: Result


@dataclass(frozen=True, slots=True)
class ControlReceived:
    """What an operator, a caller or a parent wants: to cancel, to replay, to approve or to reject."""

    event_id: str
    control: Control


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The broker says that it is time; `name` is the timer's."""

    name: str


Input: TypeAlias = RequestReceived | RequestRefused | ResultReceived | ControlReceived | TimerFired
