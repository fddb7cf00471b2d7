"""Find queued requests, which no supervisor has admitted yet. A queued request is in its stream, and has no log."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from pointsman.core.model.inputs import ControlReceived
from pointsman.engine.log.reader import gather_batched
from pointsman.engine.log.requests import find_request, read_input, recent_requests, workflow_of_request
from pointsman.engine.process.consumers import request_consumer
from pointsman.ports.bus import Bus, StoredMessage
from pointsman_schemas.errors import ContractError, InvalidTokenError
from pointsman_schemas.ids import token
from pointsman_schemas.subjects import Subjects

__all__ = ["QueuedRequest", "find_queued_request", "list_queued_requests"]


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """Request that waits in its stream.

    Attributes:
        workflow: Id of the workflow that the request will start.
        team: Team of the request.
        request: Message of the request.
        cancelled: True if a cancellation is stored. A supervisor of the team applies the cancellation later.
    """

    workflow: str
    team: str
    request: StoredMessage
    cancelled: bool


async def list_queued_requests(
    bus: Bus, subjects: Subjects, team: str | None = None, limit: int | None = None
) -> Sequence[QueuedRequest]:
    """Return the newest `limit` queued requests of `team`, or of each team, ordered by team and age.

    Only the last messages of the stream are read; see `recent_requests`.
    """
    teams = [team] if team else await _requested_teams(bus, subjects)
    return [each for name in teams for each in await _queued_for_team(bus, subjects, name, limit)]


async def find_queued_request(bus: Bus, subjects: Subjects, workflow: str) -> QueuedRequest | None:
    """Return the queued request that starts `workflow`, if it is among the last messages of the stream."""
    if (request := await find_request(bus, subjects.requests, workflow)) is None:
        return None
    return await _find_queued(bus, subjects, request.subject.split(".")[2], workflow, request)


async def _requested_teams(bus: Bus, subjects: Subjects) -> Sequence[str]:
    """Return the teams to which requests were sent."""
    teams: dict[str, None] = {}
    for subject in await bus.subjects("requests", subjects.requests):
        with suppress(InvalidTokenError):  # such a name is not valid for a team
            teams[token(subject.split(".")[2], "team")] = None
    return list(teams)


async def _queued_for_team(bus: Bus, subjects: Subjects, team: str, limit: int | None) -> Sequence[QueuedRequest]:
    left = await _unsettled_count(bus, subjects, team)
    if left == 0:  # return before a read, because the stream may have many requests
        return ()
    requests: dict[str, StoredMessage] = {}
    async for stored in recent_requests(bus, subjects.team_requests(team)):
        requests.setdefault(workflow_of_request(stored), stored)
    # A team's supervisors take requests in order, so the unsettled requests are the newest requests.
    most = min(len(requests) if each is None else each for each in (left, limit))
    asked = list(requests.items())[max(0, len(requests) - most) :]
    looks = (_find_queued(bus, subjects, team, workflow, request) for workflow, request in asked)
    return [each for each in await gather_batched(looks) if each is not None]


async def _unsettled_count(bus: Bus, subjects: Subjects, team: str) -> int | None:
    """Return the number of unacknowledged requests of the team; None if no supervisor of the team ever ran."""
    consumer = request_consumer(subjects, team)
    depth = await bus.depth(consumer.name, consumer.stream)
    return None if depth is None else depth.pending + depth.in_flight


async def _find_queued(
    bus: Bus, subjects: Subjects, team: str, workflow: str, request: StoredMessage
) -> QueuedRequest | None:
    if await bus.last("log", subjects.log(team, workflow)) is not None:
        return None
    said = await bus.last("controls", subjects.workflow_messages("control", team, workflow))
    return QueuedRequest(workflow, team, request, said is not None and _is_cancellation(said, subjects))


def _is_cancellation(stored: StoredMessage, subjects: Subjects) -> bool:
    with suppress(ContractError):
        received = read_input(stored, subjects)
        return isinstance(received, ControlReceived) and received.control.action == "cancel"
    return False
