"""Keep the schedules of a namespace in memory, read from the records of the schedules."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice

from pointsman.core.schedules.runs import next_fires
from pointsman.core.views.formatting import request_text
from pointsman.engine.log.records import SCHEDULE
from pointsman.errors import BusUnavailableError, ContractError
from pointsman.index.projection import Projection
from pointsman.ports.bus import Bus, StoredMessage
from pointsman_schemas.schedules import Schedule
from pointsman_schemas.subjects import Subjects

__all__ = ["ScheduleIndex"]

_MAX_ROWS = 2_000  # number of schedules in memory: those with the newest changes; each has about 10 kB with its runs
_MAX_HISTORY = 100_000  # number of messages of the log that are read at the start
_MAX_REQUEST_CHARS = 1_000
_MAX_FIRES = 3  # number of future times that each schedule shows
_SWEEP_INTERVAL_S = 60.0  # seconds between two checks for expired schedules; the broker does not report expiry


class ScheduleIndex(Projection):
    """The schedules of one namespace, without deleted and refused schedules."""

    def __init__(self, bus: Bus, subjects: Subjects, *, kept: int = _MAX_ROWS) -> None:
        super().__init__(bus, "log", subjects.crons(), history=_MAX_HISTORY)
        self._limit = kept
        self._schedules: dict[str, Schedule] = {}  # by subject, in the order of the last change

    def page(self, text: str, *, offset: int, limit: int) -> tuple[Sequence[Mapping[str, object]], int]:
        """Return one page of the schedules that match `text`, and the number of all matching schedules.

        The schedules are sorted by team, caller and name. The page begins after `offset` schedules, and has at most
        `limit` schedules.
        """
        fitting = [each for each in self._schedules.values() if text in _searched(each)]
        fitting.sort(key=lambda each: (each.team, each.caller, each.name))
        now = datetime.now(UTC)
        return [_row(each, now) for each in islice(fitting, offset, offset + limit)], len(fitting)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(super().run())
            group.create_task(self._sweep())

    async def apply(self, stored: StoredMessage) -> None:
        self._schedules.pop(stored.subject, None)
        try:
            schedule = SCHEDULE.parse(stored)
        except ContractError:  # another program published the message
            return
        if schedule.status not in ("deleted", "refused"):
            self._schedules[stored.subject] = schedule
        while len(self._schedules) > self._limit:
            del self._schedules[next(iter(self._schedules))]

    def reset(self) -> None:
        self._schedules.clear()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_INTERVAL_S)
            with suppress(BusUnavailableError):
                if gone := await self.missing(list(self._schedules)):
                    for subject in gone:
                        self._schedules.pop(subject, None)
                    self.notify()


def _searched(schedule: Schedule) -> str:
    request = request_text(schedule.spec.request.input) if schedule.spec else ""
    return f"{schedule.name} {schedule.team} {schedule.caller} {request}".casefold()


def _row(schedule: Schedule, now: datetime) -> Mapping[str, object]:
    spec = schedule.spec
    return {
        "name": schedule.name,
        "team": schedule.team,
        "caller": schedule.caller,
        "status": schedule.status,
        "request": request_text(spec.request.input)[:_MAX_REQUEST_CHARS] if spec else "",
        "files": [file.name for file in spec.request.files] if spec else [],
        "cron": spec.cron if spec else None,
        "at": spec.at if spec else None,
        "timezone": spec.timezone if spec else "UTC",
        "overlap": spec.overlap if spec else "",
        "missed_policy": spec.missed if spec else "",
        "started": schedule.started,
        "skipped": schedule.skipped,
        "missed": schedule.missed,
        "next": next_fires(schedule, now, _MAX_FIRES),
        "runs": [
            {"workflow": run.workflow_id, "due": run.due, "by": run.by, "status": run.outcome or run.status}
            for run in reversed(schedule.runs)
        ],
    }
