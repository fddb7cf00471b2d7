"""Create and control schedules over HTTP, with the same calls as the command line."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import AwareDatetime, TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from pointsman.client.client import Client
from pointsman.client.known_teams import check_team
from pointsman.errors import ContractError, NotFoundError
from pointsman.web.auth import client_of
from pointsman.web.files import read_files
from pointsman.web.responses import json_response, read_json_object
from pointsman_schemas.ids import token
from pointsman_schemas.schedules import Schedule
from pointsman_schemas.strict_json import describe

__all__ = ["ScheduleActions"]

_FIELDS = (
    "name",
    "team",
    "input",
    "cron",
    "at",
    "timezone",
    "overlap",
    "missed",
    "grace",
    "thread",
    "files",
    "request_id",
)
_TIME = TypeAdapter(AwareDatetime)


class ScheduleActions:
    """The actions of the page of schedules.

    Args:
        client: The client of the dashboard.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def create(self, request: Request) -> Response:
        """Create a schedule for the user. The schedule gets copies of the files that were uploaded for it.

        Returns:
            The status of the schedule; `waiting` if no supervisor has answered yet.
        """
        given = await read_json_object(request, _FIELDS, self._client.bus.max_body)
        team = token(str(given.pop("team", "")), "team")
        await check_team(self._client, team)
        name, asked = str(given.pop("name", "")), given.pop("input", "")
        at = _time(given.pop("at", None))
        client = client_of(request, self._client)
        files = read_files(given.pop("files", None), client, team, given.pop("request_id", None))
        return _response(await client.schedules.create(name, team, asked, at=at, files=files, **given))

    async def act(self, request: Request) -> Response:
        """Pause, resume, run or delete a schedule of any caller.

        Returns:
            The status of the schedule; `waiting` if no supervisor has answered yet.

        Raises:
            NotFoundError: There is no such action, or no such schedule.
        """
        await read_json_object(request)
        path = request.path_params
        team, caller, name = (token(path[part], part) for part in ("team", "caller", "name"))
        schedules = client_of(request, self._client).schedules
        commands = {
            "pause": schedules.pause,
            "resume": schedules.resume,
            "run": schedules.run,
            "delete": schedules.delete,
        }
        if (command := commands.get(path["action"])) is None:
            raise NotFoundError(f"{path['action']!r} is not an action; expected {', '.join(commands)}")
        return _response(await command(name, team, caller=caller))


def _time(given: Any) -> datetime | None:
    try:
        return None if given is None else _TIME.validate_python(given)
    except ValidationError as error:
        raise ContractError(f"the time is not valid: {describe(error)}; nothing was sent") from None


def _response(schedule: Schedule | None) -> Response:
    return json_response({"state": schedule.status if schedule else "waiting"})
