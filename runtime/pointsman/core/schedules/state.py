"""Fold the entries of a schedule's record.

Folding makes no decision. It refuses only an entry that cannot follow the earlier entries.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import assert_never

from pointsman.errors import InvariantError
from pointsman_schemas.schedules import (
    MAX_RUNS,
    AppliedChange,
    ChangeRefused,
    RunEnded,
    RunGranted,
    RunSkipped,
    RunStarted,
    Schedule,
    ScheduleCreated,
    ScheduleDeleted,
    ScheduleEnded,
    ScheduleEntry,
    SchedulePaused,
    ScheduleResumed,
    ScheduleRun,
    TimerSet,
    TimesPassed,
)

__all__ = ["evolve_schedule", "fold_schedule", "is_live", "needs_file", "open_runs"]

_KEPT_CHANGES = 20


def is_live(schedule: Schedule) -> bool:
    """Return True if the schedule can still fire, now or after a pause."""
    return schedule.status in ("active", "paused")


def open_runs(schedule: Schedule) -> tuple[ScheduleRun, ...]:
    """Return the runs that have not ended, in order."""
    return tuple(each for each in schedule.runs if each.status != "ended")


def needs_file(schedule: Schedule, digest: str) -> bool:
    """Return True if a run that is open or still to come might read the file with `digest`.

    A deleted schedule needs its files until the record expires, because its runs read them. The files of an earlier
    schedule with the same name are needed until the runs of that schedule have ended.

    Args:
        schedule: The schedule.
        digest: The SHA-256 of the file.
    """
    if schedule.spec is not None and any(file.sha256 == digest for file in schedule.spec.request.files):
        return True
    return any(run.started_at is not None and run.started_at < schedule.created_at for run in open_runs(schedule))


def fold_schedule(schedule: Schedule | None, entries: Iterable[ScheduleEntry]) -> Schedule:
    """Return the schedule after `entries`.

    Raises:
        InvariantError: An entry cannot follow the earlier entries.
    """
    for entry in entries:
        schedule = evolve_schedule(schedule, entry)
    if schedule is None:
        raise InvariantError("a schedule begins with schedule_created or change_refused")
    return schedule


def evolve_schedule(schedule: Schedule | None, entry: ScheduleEntry) -> Schedule:
    """Return the schedule after `entry`.

    Raises:
        InvariantError: The entry cannot follow the earlier entries.
    """
    if isinstance(entry, ScheduleCreated):
        return _created(schedule, entry)
    if isinstance(entry, ChangeRefused):
        refused = AppliedChange(id=entry.change, refusal=entry.reason)
        if schedule is None:
            return Schedule(
                team=entry.team,
                caller=entry.caller,
                name=entry.name,
                status="refused",
                created_at=entry.at,
                changed_at=entry.at,
                through=entry.at,
                changes=(refused,),
            )
        return _with(schedule, entry.at, changes=_with_change(schedule, refused))
    if schedule is None:
        raise InvariantError(f"{entry.kind} comes before schedule_created")
    match entry:
        case SchedulePaused():
            return _commanded(schedule, entry, status="paused")
        case ScheduleResumed():
            through = max(entry.at, schedule.through) if schedule.status == "active" else entry.at
            return _commanded(schedule, entry, status="active", through=through)
        case ScheduleDeleted():
            left = tuple(each for each in schedule.runs if each.status != "queued")
            return _commanded(schedule, entry, status="deleted", runs=left, wake=None)
        case ScheduleEnded():
            return _with(schedule, entry.at, status="ended", wake=None)
        case RunStarted():
            return _run_started(schedule, entry)
        case RunGranted():
            return _with_run(schedule, entry.workflow_id, entry.at, status="running", started_at=entry.at)
        case RunSkipped():
            return _with(schedule, entry.at, skipped=schedule.skipped + 1)
        case TimesPassed():
            return _with(schedule, entry.at, through=entry.through, missed=schedule.missed + entry.missed)
        case RunEnded():
            return _with_run(
                schedule, entry.workflow_id, entry.at, status="ended", outcome=entry.outcome, ended_at=entry.at
            )
        case TimerSet():
            return _with(schedule, entry.at, wake=entry.due, timer=schedule.timer + 1)
        case _:
            assert_never(entry)


def _created(before: Schedule | None, entry: ScheduleCreated) -> Schedule:
    """Return a new schedule.

    The runs of a deleted schedule with the same name continue, so the new schedule takes them over. It also continues
    the numbers of the timers, so no timer of the deleted schedule has the number of a new timer.
    """
    through = entry.at
    if entry.spec.at is not None:  # the only time may have passed before the command arrived, but must still fire
        through = min(entry.at, entry.spec.at - timedelta(microseconds=1))
    return Schedule(
        team=entry.team,
        caller=entry.caller,
        name=entry.name,
        status="active",
        spec=entry.spec,
        created_at=entry.at,
        changed_at=entry.at,
        through=through,
        timer=before.timer if before else 0,
        runs=before.runs if before else (),
        changes=(AppliedChange(id=entry.change),),
        changed_by=entry.caller,
    )


def _commanded(
    schedule: Schedule, entry: SchedulePaused | ScheduleResumed | ScheduleDeleted, **changes: object
) -> Schedule:
    applied = _with_change(schedule, AppliedChange(id=entry.change))
    return _with(schedule, entry.at, changes=applied, changed_by=entry.by, **changes)


def _run_started(schedule: Schedule, entry: RunStarted) -> Schedule:
    run = ScheduleRun(
        request_id=entry.request_id,
        workflow_id=entry.workflow_id,
        due=entry.due,
        by=entry.by,
        status="queued" if entry.queued else "running",
        started_at=None if entry.queued else entry.at,
    )
    changes: dict[str, object] = {"runs": _bounded((*schedule.runs, run)), "started": schedule.started + 1}
    if entry.change:
        changes |= {"changes": _with_change(schedule, AppliedChange(id=entry.change)), "changed_by": entry.by}
    return _with(schedule, entry.at, **changes)


def _with_run(schedule: Schedule, workflow: str, at: datetime, **changes: object) -> Schedule:
    if not any(each.workflow_id == workflow for each in schedule.runs):
        raise InvariantError(f"{workflow} is not a run of the schedule {schedule.name}")
    runs = [each.model_copy(update=changes) if each.workflow_id == workflow else each for each in schedule.runs]
    return _with(schedule, at, runs=_bounded(runs))


def _bounded(runs: Iterable[ScheduleRun]) -> tuple[ScheduleRun, ...]:
    """Return all open runs and the newest ended runs."""
    kept = list(runs)
    ended = [each for each in kept if each.status == "ended"]
    for each in ended[: max(0, len(ended) - MAX_RUNS)]:
        kept.remove(each)
    return tuple(kept)


def _with_change(schedule: Schedule, applied: AppliedChange) -> tuple[AppliedChange, ...]:
    return (*schedule.changes, applied)[-_KEPT_CHANGES:]


def _with(schedule: Schedule, at: datetime, **changes: object) -> Schedule:
    return schedule.model_copy(update={"changed_at": at, **changes})
