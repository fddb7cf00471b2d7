"""Requests that no supervisor has admitted yet: they wait in the work stream, and no log tells of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from pointsman.engine.log.reader import side_by_side
from pointsman.engine.log.requests import lately, request_for, workflow_of
from pointsman.ports.bus import Bus, Stored
from pointsman_schemas.envelope import decode
from pointsman_schemas.errors import ContractError, InvalidTokenError
from pointsman_schemas.events import Control
from pointsman_schemas.ids import token
from pointsman_schemas.strict_json import parse
from pointsman_schemas.subjects import Subjects

__all__ = ["Unadmitted", "unadmitted", "unadmitted_as"]


@dataclass(frozen=True, slots=True)
class Unadmitted:
    """A request and the workflow it will be. `cancelled`: its end is asked for, and comes when a
    supervisor of the team reads that."""

    workflow: str
    team: str
    request: Stored
    cancelled: bool


async def unadmitted(
    bus: Bus, subjects: Subjects, team: str | None = None, limit: int | None = None
) -> Sequence[Unadmitted]:
    """Those of `team`, or of all, by team and in the order they were published, the newest `limit` of each. Only what
    is among the last messages of the stream is looked at, as for a cancellation."""
    teams = [team] if team else await _asked(bus, subjects)
    return [each for name in teams for each in await _of_team(bus, subjects, name, limit)]


async def unadmitted_as(bus: Bus, subjects: Subjects, workflow: str) -> Unadmitted | None:
    """The one that will be `workflow`, if it is among the last messages of the stream. No other is looked at."""
    if (request := await request_for(bus, subjects.requests, workflow)) is None:
        return None
    return await _look(bus, subjects, request.subject.rpartition(".")[2], workflow, request)


async def _asked(bus: Bus, subjects: Subjects) -> Sequence[str]:
    """The teams that were sent a request."""
    teams: list[str] = []
    for subject in await bus.subjects("work", subjects.requests):
        with suppress(InvalidTokenError):  # no team may have such a name
            teams.append(token(subject.rpartition(".")[2], "team"))
    return teams


async def _of_team(bus: Bus, subjects: Subjects, team: str, limit: int | None) -> Sequence[Unadmitted]:
    left = await _left(bus, team)
    if left == 0:  # and no request is read, of which there may be many
        return ()
    requests: dict[str, Stored] = {}
    async for stored in lately(bus, subjects.request(team)):
        requests.setdefault(workflow_of(stored), stored)
    # A team's supervisor takes them in order, so what it has yet to settle is what came last.
    most = min(len(requests) if each is None else each for each in (left, limit))
    asked = list(requests.items())[max(0, len(requests) - most) :]
    looks = (_look(bus, subjects, team, workflow, request) for workflow, request in asked)
    return [each for each in await side_by_side(looks) if each is not None]


async def _left(bus: Bus, team: str) -> int | None:
    """How many requests the team's supervisors have yet to settle; None where none has ever run."""
    depth = await bus.depth(f"request-{team}", "work")
    return None if depth is None else depth.pending + depth.in_flight


async def _look(bus: Bus, subjects: Subjects, team: str, workflow: str, request: Stored) -> Unadmitted | None:
    if await bus.last("log", subjects.log(team, workflow)) is not None:
        return None
    said = await bus.last("work", subjects.workflow_controls(team, workflow))
    return Unadmitted(workflow, team, request, said is not None and _cancels(said))


def _cancels(stored: Stored) -> bool:
    try:
        return parse(Control, decode(stored.headers, stored.body)[1]).action == "cancel"
    except ContractError:
        return False
