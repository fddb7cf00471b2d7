"""Create and change schedules. Supervisors send the request of a schedule at cron times, or once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Literal
from uuid import uuid4

from pydantic import JsonValue, ValidationError

from pointsman.bus.file_store import FileStore
from pointsman.client.files import GivenFile, store_files
from pointsman.clock import SystemClock
from pointsman.engine.log.records import SCHEDULE
from pointsman.engine.process.retrying import publish_with_retry
from pointsman.errors import (
    BodyLostError,
    ContractError,
    NotFoundError,
    PermissionDeniedError,
    ScheduleRefusedError,
)
from pointsman.ports.bus import Bus, StoredMessage
from pointsman.ports.clock import Clock
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import Budget, Request
from pointsman_schemas.files import MAX_FILE_BYTES
from pointsman_schemas.ids import schedule_id_for, token
from pointsman_schemas.schedules import Schedule, ScheduleChange, ScheduleSpec
from pointsman_schemas.strict_json import as_json_value, describe, dump
from pointsman_schemas.subjects import Subjects

__all__ = ["Schedules"]

_CONFIRM_TIMEOUT_S = 5.0
"""Seconds to wait, by default, until a supervisor has carried out a change."""
_MAX_FIRES = 100
_RECHECK_INTERVAL_S = 0.5
"""Seconds after which a waiting call reads the schedule again, because the message about a change might be lost."""


class Schedules:
    """The schedules of a namespace, for one user. Use `Client.schedules`.

    A change is stored at once, and a supervisor of the team carries out the change. Each method that changes a schedule
    waits for the supervisor. If no supervisor has answered in time, the method returns None. In this case, the change
    stays stored, and a supervisor carries it out later.

    Args:
        bus: The bus, after its setup.
        subjects: The subjects of the namespace.
        user: The name of the user, in the subjects of commands; default: `anonymous`.
        clock: The clock for the times of schedules. Default: the clock of the system.
        max_file_bytes: Largest size of a file of a schedule, in bytes.
    """

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        *,
        user: str = "anonymous",
        clock: Clock | None = None,
        max_file_bytes: int = MAX_FILE_BYTES,
    ) -> None:
        self._bus = bus
        self._subjects = subjects
        self._user = user
        self._clock = clock or SystemClock()
        self._files = FileStore(bus, subjects.artifacts_bucket, self._clock, max_file_bytes)

    async def create(
        self,
        name: str,
        team: str,
        input: str | Mapping[str, JsonValue],
        *,
        cron: str | None = None,
        at: datetime | None = None,
        timezone: str = "UTC",
        overlap: Literal["skip", "queue", "allow"] = "skip",
        missed: Literal["skip", "once"] | None = None,
        grace: float = 60.0,
        deadline: float | None = None,
        budget: Budget | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
        files: Sequence[GivenFile] = (),
        thread: str | None = None,
        timeout: float = _CONFIRM_TIMEOUT_S,
    ) -> Schedule | None:
        """Create a schedule that belongs to the user of the client.

        Args:
            name: The name. It is a token and unique for the user and the team.
            team: The team.
            input: The request of each fire: a text or an object.
            cron: The times as a cron expression of five fields.
            at: A single time, instead of a cron expression.
            timezone: The IANA time zone of the cron expression.
            overlap: Policy for a fire while an earlier run has not ended: `skip` the fire, `queue` the fire until the
                run has ended, or `allow` both runs.
            missed: Policy for fires that are later than `grace`: `skip` these fires, or start one run for all (`once`).
                Default: `skip` for a cron expression, `once` for a single time.
            grace: Seconds by which a fire may be late.
            deadline: Seconds from the start of each workflow to its deadline.
            budget: Limits of each workflow.
            metadata: Data for the agents, as JSON.
            files: Files for the agents of each run: paths, names with content, or stored files, which are copied. The
                files are deleted with the schedule.
            thread: The thread in which each run becomes the next turn.
            timeout: The longest wait for a supervisor, in seconds.

        Returns:
            The schedule; None if no supervisor has answered in time.

        Raises:
            BodyLostError: A stored file was removed or is damaged.
            ConfigurationError: The path of a file cannot be read.
            ContractError: The name, a time, the request or a file is not valid. Nothing was sent.
            ScheduleRefusedError: The name is taken, or the team already has the largest allowed number of schedules.
        """
        from pointsman.core.schedules.runs import check_spec

        token(name, "schedule")
        given = {
            "input": as_json_value(input, "input"),
            "deadline": deadline,
            "budget": budget,
            "metadata": as_json_value(metadata or {}, "metadata"),
            "thread": thread,
        }
        try:
            spec = ScheduleSpec(
                cron=cron,
                at=at,
                timezone=timezone,
                overlap=overlap,
                missed=missed or ("skip" if at is None else "once"),
                grace=grace,
                request=Request.model_validate(given),
            )
        except ValidationError as error:
            raise ContractError(f"the schedule does not fit: {describe(error)}; nothing was sent") from None
        try:
            check_spec(spec, self._clock.now())
            if files:
                owner = schedule_id_for(team, self._user, name)
                stored = await store_files(self._files, files, owner, copy=True)
                request = spec.request.model_copy(update={"files": stored})
                spec = spec.model_copy(update={"request": request})
                check_spec(spec, self._clock.now())  # checked again, because the references make the request larger
        except BodyLostError:
            raise
        except ContractError as error:
            raise ContractError(f"{error}; nothing was sent") from None
        change = ScheduleChange(action="create", caller=self._user, schedule=name, spec=spec)
        return await self._send(team, change, self._user, timeout)

    async def list(self, team: str | None = None, *, caller: str | None = None) -> Sequence[Schedule]:
        """List the active, paused and ended schedules. Deleted and refused schedules are left out.

        Args:
            team: Only schedules of this team.
            caller: Only schedules of this caller.

        Returns:
            The schedules, sorted by team, caller and name.

        Raises:
            PermissionDeniedError: The user may not read these schedules. A caller with a grant must give `team` and its
                own name as `caller`.
        """
        return await self._read(team, caller)

    async def get(self, name: str, team: str | None = None, *, caller: str | None = None) -> Schedule:
        """Read a schedule with its definition, its status and its last runs. `next_fires` computes the next times.

        Args:
            name: The name.
            team: The team; None if the name is unique among the caller's schedules.
            caller: The caller to whom the schedule belongs. Default: the user of the client.

        Returns:
            The schedule.

        Raises:
            NotFoundError: There is no such schedule.
            ContractError: Several teams have a schedule of this name.
            PermissionDeniedError: The user may not read this schedule. A caller with a grant must give `team`.
        """
        owner = caller or self._user
        found = await self._read(team, owner, name)
        if not found:
            raise NotFoundError(
                f"{owner} has no schedule {name!r}{f' with {team}' if team else ''}; `pointsman schedules list` shows "
                "the schedules"
            )
        if len(found) > 1:
            teams = ", ".join(each.team for each in found)
            raise ContractError(f"{owner} has a schedule {name!r} with each of {teams}; name the team")
        return found[0]

    def next_fires(self, schedule: Schedule, count: int = 5) -> Sequence[datetime]:
        """Compute the next times of a schedule.

        Args:
            schedule: The schedule.
            count: The largest number of times, from 1 to 100.

        Returns:
            The times, in order; empty for a schedule that is paused or has ended.
        """
        from pointsman.core.schedules.runs import next_fires

        return next_fires(schedule, self._clock.now(), min(count, _MAX_FIRES))

    def workflow_of(self, team: str, name: str, fire: datetime) -> str:
        """Return the id of the workflow that a fire of the user's schedule starts. The id is known before the fire.

        Args:
            team: The team.
            name: The name of the schedule.
            fire: The time of the fire.

        Returns:
            The id of the workflow.
        """
        from pointsman.core.schedules.runs import fire_id, workflow_of_run

        return workflow_of_run(self._subjects, team, self._user, name, fire_id(name, fire))

    async def pause(
        self,
        name: str,
        team: str | None = None,
        *,
        caller: str | None = None,
        actor: str | None = None,
        timeout: float = _CONFIRM_TIMEOUT_S,
    ) -> Schedule | None:
        """Pause a schedule. Its times then pass without a run.

        Args:
            name: The name.
            team: The team; None if the name is unique among the caller's schedules.
            caller: The caller to whom the schedule belongs. Default: the user of the client.
            actor: The user who sends the command. Default: the user of the client. The broker must allow the client to
                name a different user, and to change schedules of other callers.
            timeout: The longest wait for a supervisor, in seconds.

        Returns:
            The schedule; None if no supervisor has answered in time.

        Raises:
            NotFoundError: There is no such schedule.
            ScheduleRefusedError: The supervisor refuses the command.
        """
        return await self._command("pause", name, team, caller, actor, timeout)

    async def resume(
        self,
        name: str,
        team: str | None = None,
        *,
        caller: str | None = None,
        actor: str | None = None,
        timeout: float = _CONFIRM_TIMEOUT_S,
    ) -> Schedule | None:
        """Resume a schedule. The times during the pause do not count as missed.

        Args:
            name: The name.
            team: The team; None if the name is unique among the caller's schedules.
            caller: The caller to whom the schedule belongs. Default: the user of the client.
            actor: The user who sends the command. Default: the user of the client. The broker must allow the client to
                name a different user, and to change schedules of other callers.
            timeout: The longest wait for a supervisor, in seconds.

        Returns:
            The schedule; None if no supervisor has answered in time.

        Raises:
            NotFoundError: There is no such schedule.
            ScheduleRefusedError: The supervisor refuses the command.
        """
        return await self._command("resume", name, team, caller, actor, timeout)

    async def run(
        self,
        name: str,
        team: str | None = None,
        *,
        caller: str | None = None,
        actor: str | None = None,
        timeout: float = _CONFIRM_TIMEOUT_S,
    ) -> Schedule | None:
        """Start a run now, in addition to the times of the schedule. The overlap policy also applies to this run.

        Args:
            name: The name.
            team: The team; None if the name is unique among the caller's schedules.
            caller: The caller to whom the schedule belongs. Default: the user of the client.
            actor: The user who sends the command. Default: the user of the client. The broker must allow the client to
                name a different user, and to change schedules of other callers.
            timeout: The longest wait for a supervisor, in seconds.

        Returns:
            The schedule; None if no supervisor has answered in time.

        Raises:
            NotFoundError: There is no such schedule.
            ScheduleRefusedError: The supervisor refuses the command.
        """
        return await self._command("run", name, team, caller, actor, timeout)

    async def delete(
        self,
        name: str,
        team: str | None = None,
        *,
        caller: str | None = None,
        actor: str | None = None,
        timeout: float = _CONFIRM_TIMEOUT_S,
    ) -> Schedule | None:
        """Delete a schedule. Its started runs continue, and its waiting runs are dropped.

        Args:
            name: The name.
            team: The team; None if the name is unique among the caller's schedules.
            caller: The caller to whom the schedule belongs. Default: the user of the client.
            actor: The user who sends the command. Default: the user of the client. The broker must allow the client to
                name a different user, and to change schedules of other callers.
            timeout: The longest wait for a supervisor, in seconds.

        Returns:
            The schedule; None if no supervisor has answered in time.

        Raises:
            NotFoundError: There is no such schedule.
            ScheduleRefusedError: The supervisor refuses the command.
        """
        return await self._command("delete", name, team, caller, actor, timeout)

    async def _read(self, team: str | None, caller: str | None, name: str | None = None) -> Sequence[Schedule]:
        try:
            found = await SCHEDULE.read_all(self._bus, self._subjects.crons(team, caller, name))
        except PermissionDeniedError as error:
            if team is not None and caller is not None:
                raise
            hint = f"this user may not read all schedules: give a team, and {self._user} as the caller"
            raise PermissionDeniedError(f"{error}; {hint}") from None
        return [each for each in found if each.status not in ("deleted", "refused")]

    async def _command(
        self,
        action: Literal["pause", "resume", "run", "delete"],
        name: str,
        team: str | None,
        caller: str | None,
        actor: str | None,
        timeout: float,
    ) -> Schedule | None:
        found = await self.get(name, team, caller=caller)
        change = ScheduleChange(action=action, caller=found.caller, schedule=found.name)
        return await self._send(found.team, change, actor or self._user, timeout)

    async def _send(self, team: str, change: ScheduleChange, actor: str, timeout: float) -> Schedule | None:
        """Publish a command, and wait until a supervisor has decided about it."""
        id = uuid4().hex
        schedule_id = schedule_id_for(team, change.caller, change.schedule)
        envelope = Envelope(
            id=id,
            type=ScheduleChange.event_type,
            source=self._subjects.source("client", "python"),
            time=self._clock.now(),
            subject=schedule_id,
        )
        record = self._subjects.cron(team, change.caller, change.schedule)
        told = asyncio.Event()

        async def on_message(_: StoredMessage) -> None:
            told.set()

        async with await self._bus.listen(record, on_message):
            action = "schedule" if actor == change.caller else "schedule-others"
            subject = self._subjects.control(team, schedule_id, action, actor, id)
            await publish_with_retry(self._bus, subject, dump(change), encode(envelope))
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    return await self._decided(record, id, told)
        return None

    async def _decided(self, record: str, id: str, told: asyncio.Event) -> Schedule:
        """Wait until the log contains the decision about a command.

        The log is read again after each message to the listener. The message alone does not prove a decision, because
        the broker delivers the message even if its compare-and-set fails.

        Returns:
            The schedule after the decision.

        Raises:
            ScheduleRefusedError: The supervisor refused the command.
        """
        while True:
            told.clear()
            stored = await self._bus.last("log", record)
            schedule = SCHEDULE.parse(stored) if stored else None
            applied = next((each for each in schedule.changes if each.id == id), None) if schedule else None
            if schedule is not None and applied is not None:
                if applied.refusal:
                    raise ScheduleRefusedError(applied.refusal)
                return schedule
            with suppress(TimeoutError):
                async with asyncio.timeout(_RECHECK_INTERVAL_S):
                    await told.wait()
