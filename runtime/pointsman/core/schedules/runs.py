"""Decide on a schedule and its runs. All decisions are pure functions of the schedule.

Each fire has one request id, and the workflow id is computed from the request id. So a fire starts only one workflow,
even if the fire is decided twice or its request is sent twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import assert_never

from pointsman.core.schedules.state import fold_schedule, is_live, open_runs
from pointsman.core.schedules.times import check_times, fires_between, upcoming
from pointsman.errors import ContractError, InvariantError
from pointsman_schemas.files import find_file_fault
from pointsman_schemas.ids import schedule_id_for, workflow_id_for
from pointsman_schemas.schedules import (
    MAX_OPEN_RUNS,
    MAX_QUEUED_RUNS,
    MAX_REQUEST_BYTES,
    ChangeRefused,
    RunEnded,
    RunGranted,
    RunSkipped,
    RunStarted,
    Schedule,
    ScheduleChange,
    ScheduleCreated,
    ScheduleDeleted,
    ScheduleEnded,
    ScheduleEntry,
    SchedulePaused,
    ScheduleResumed,
    ScheduleSpec,
    TimerSet,
    TimesPassed,
)
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.team import Limits

__all__ = [
    "ChangeAsked",
    "change_schedule",
    "check_schedule",
    "check_spec",
    "end_runs",
    "fire_id",
    "next_fires",
    "schedule_of_request",
    "workflow_of_run",
]

MAX_WAKE = timedelta(days=1)
"""Longest time until the next timer. When the timer fires, the record of the schedule is written again, so the record
is never much older than a day. An old record would be a problem: retention deletes the oldest messages of the log, but
stops at the record of a live schedule, so all messages after an old record would stay."""
_PREFIX = "schedule"
_CLOCK_SKEW = timedelta(seconds=5)
"""Largest step back of the clock that is ignored. After a larger step, the fires of the repeated time are decided
again."""


@dataclass(frozen=True, slots=True)
class ChangeAsked:
    """A command about a schedule.

    Attributes:
        id: The id of the command.
        actor: The actor, from the subject.
        team: The team.
        change: The command.
        full: The reason for which the team accepts no further schedule; empty if the team accepts one.
        for_others: True if the actor is allowed to change the schedules of other callers.
        limits: The limits of the team for the files of the request; None to skip the check of these limits.
    """

    id: str
    actor: str
    team: str
    change: ScheduleChange
    full: str = ""
    for_others: bool = False
    limits: Limits | None = None


def check_spec(spec: ScheduleSpec, now: datetime) -> None:
    """Refuse a definition that can start no runs.

    Args:
        spec: The definition.
        now: The time.

    Raises:
        ContractError: The times are not valid, or the request is too large.
    """
    check_times(spec, now)
    if (size := len(dump(spec.request))) > MAX_REQUEST_BYTES:
        raise ContractError(
            f"the request of the schedule has {size} bytes; expected at most {MAX_REQUEST_BYTES}; put large data into "
            "a place that the agents can read"
        )


def change_schedule(
    schedule: Schedule | None, asked: ChangeAsked, subjects: Subjects, now: datetime
) -> tuple[ScheduleEntry, ...]:
    """Decide on a command. A command that is already in the record leads to no entries.

    Args:
        schedule: The schedule; None if there is no record.
        asked: The command.
        subjects: The subjects of the namespace.
        now: The time.

    Returns:
        The entries.
    """
    if schedule is not None and any(each.id == asked.id for each in schedule.changes):
        return ()
    change = asked.change
    try:
        return (_decide_change(schedule, asked, subjects, now),)
    except ContractError as error:
        return (
            ChangeRefused(
                at=now, team=asked.team, caller=change.caller, name=change.schedule, change=asked.id, reason=str(error)
            ),
        )


def _decide_change(schedule: Schedule | None, asked: ChangeAsked, subjects: Subjects, now: datetime) -> ScheduleEntry:
    change = asked.change
    if change.action == "create":
        return _create(schedule, asked, now)
    if schedule is None or not is_live(schedule):
        raise ContractError(f"{change.caller} has no schedule {change.schedule!r} with {asked.team}")
    if asked.actor != schedule.caller and not asked.for_others:
        raise ContractError(f"the schedule {schedule.name!r} belongs to {schedule.caller}, and not to {asked.actor}")
    match change.action:
        case "pause":
            return SchedulePaused(at=now, by=asked.actor, change=asked.id)
        case "resume":
            return ScheduleResumed(at=now, by=asked.actor, change=asked.id)
        case "delete":
            return ScheduleDeleted(at=now, by=asked.actor, change=asked.id)
        case "run":
            return _run_by_hand(schedule, asked, subjects, now)
        case _:
            assert_never(change.action)


def _create(schedule: Schedule | None, asked: ChangeAsked, now: datetime) -> ScheduleCreated:
    change = asked.change
    if asked.actor != change.caller:
        raise ContractError(
            f"a schedule belongs to the user who creates it; {asked.actor} cannot create one for {change.caller}"
        )
    if schedule is not None and is_live(schedule):
        raise ContractError(
            f"{change.caller} has a schedule {change.schedule!r} with {asked.team}; delete it first, or choose another "
            "name"
        )
    if asked.full:
        raise ContractError(asked.full)
    if change.spec is None:
        raise ContractError("the command has no definition; expected `spec`")
    check_spec(change.spec, now)
    _check_files(change.spec, asked)
    return ScheduleCreated(
        at=now, team=asked.team, caller=change.caller, name=change.schedule, spec=change.spec, change=asked.id
    )


def _check_files(spec: ScheduleSpec, asked: ChangeAsked) -> None:
    """Refuse a file with another owner, because it may be deleted with that owner.

    Also refuse files that do not fit the limits of the team, because each run would fail.

    Raises:
        ContractError: A file is refused.
    """
    files, limits = spec.request.files, asked.limits
    id = schedule_id_for(asked.team, asked.change.caller, asked.change.schedule)
    if other := next((file for file in files if file.owner != id), None):
        raise ContractError(
            f"the file {other.name!r} belongs to {other.owner}; expected {id}, the id of the schedule; store the file "
            "again for the schedule"
        )
    if limits and (fault := find_file_fault(files, limits.files, limits.file_bytes, limits.file_types)):
        raise ContractError(f"the files do not fit the limits of the team {asked.team}: {fault}; give other files")


def _run_by_hand(schedule: Schedule, asked: ChangeAsked, subjects: Subjects, now: datetime) -> RunStarted:
    queued = _place(schedule)
    if queued is None:
        raise ContractError(f"a run of the schedule {schedule.name!r} has not ended, and no further run may start")
    return _start(schedule, f"{_PREFIX}/{schedule.name}/{asked.id}", now, subjects, now, queued, asked.actor, asked.id)


def check_schedule(
    schedule: Schedule, subjects: Subjects, now: datetime, *, fired: int | None = None
) -> tuple[ScheduleEntry, ...]:
    """Decide on the fires that are due, the runs that wait, and the next timer.

    Args:
        schedule: The schedule.
        subjects: The subjects of the namespace.
        now: The time.
        fired: The number of the timer that has fired and must be replaced. Default: no timer has fired.

    Returns:
        The entries; no entries if nothing has changed.
    """
    entries: list[ScheduleEntry] = []

    def add(more: Iterable[ScheduleEntry]) -> None:
        nonlocal schedule
        added = tuple(more)
        entries.extend(added)
        schedule = fold_schedule(schedule, added)

    add(_grant(schedule, now))
    if schedule.status == "active":
        add(_fire(schedule, subjects, now))
        if not next_fires(schedule, now, 1):
            add((ScheduleEnded(at=now),))
    if is_live(schedule):
        add(_set_timer(schedule, now, fired))
    return tuple(entries)


def _fire(schedule: Schedule, subjects: Subjects, now: datetime) -> tuple[ScheduleEntry, ...]:
    """Decide on the fires since the last decision. Only the newest fire may start a run; the others count as missed."""
    spec = _spec(schedule)
    # If the clock was set back, the same times pass again. A time that has a run starts no second run.
    set_back = schedule.through - now > _CLOCK_SKEW
    newest, count = fires_between(spec, schedule.through, now)
    if newest is None:
        return (TimesPassed(at=now, through=now),) if set_back else ()
    if any(each.due == newest and not each.by for each in schedule.runs):
        return (TimesPassed(at=now, through=now),)
    if now - newest > timedelta(seconds=spec.grace) and spec.missed == "skip":
        return (TimesPassed(at=now, through=now, missed=count),)
    passed = TimesPassed(at=now, through=now, missed=count - 1)
    if (queued := _place(schedule)) is None:
        return passed, RunSkipped(at=now, due=newest)
    return passed, _start(schedule, fire_id(schedule.name, newest), newest, subjects, now, queued)


def _place(schedule: Schedule) -> bool | None:
    """Return False if a run can start now, True if a run must wait, and None if no run can be added."""
    waiting = sum(each.status == "queued" for each in schedule.runs)
    match _spec(schedule).overlap:
        case "allow":
            return False if len(open_runs(schedule)) < MAX_OPEN_RUNS else None
        case "queue" if open_runs(schedule):
            return True if waiting < MAX_QUEUED_RUNS else None
        case _:
            return None if open_runs(schedule) else False


def workflow_of_run(subjects: Subjects, team: str, caller: str, name: str, request_id: str) -> str:
    """Return the workflow of a run.

    Args:
        subjects: The subjects of the namespace.
        team: The team.
        caller: The caller to whom the schedule belongs.
        name: The name of the schedule.
        request_id: The id of the request.

    Returns:
        The id of the workflow.
    """
    return workflow_id_for(subjects.request(team, caller), request_id, subjects.source(_PREFIX, name))


def _start(
    schedule: Schedule,
    request_id: str,
    due: datetime,
    subjects: Subjects,
    now: datetime,
    queued: bool,
    by: str = "",
    change: str = "",
) -> RunStarted:
    return RunStarted(
        at=now,
        request_id=request_id,
        workflow_id=workflow_of_run(subjects, schedule.team, schedule.caller, schedule.name, request_id),
        due=due,
        queued=queued,
        by=by,
        change=change,
    )


def _grant(schedule: Schedule, now: datetime) -> tuple[ScheduleEntry, ...]:
    """Start the first waiting run, if all earlier runs have ended."""
    first = next(iter(open_runs(schedule)), None)
    if first is None or first.status != "queued":
        return ()
    return (RunGranted(at=now, workflow_id=first.workflow_id),)


def _set_timer(schedule: Schedule, now: datetime, fired: int | None) -> tuple[ScheduleEntry, ...]:
    fires = next_fires(schedule, now, 1)
    wanted = min([now + MAX_WAKE, *fires])
    # A timer that is armed for an earlier time stays armed, because the next timer is armed when that timer fires.
    armed = schedule.wake is not None and now < schedule.wake <= wanted and fired != schedule.timer
    return () if armed else (TimerSet(at=now, due=wanted),)


def end_runs(schedule: Schedule, ended: Mapping[str, str], now: datetime) -> tuple[ScheduleEntry, ...]:
    """Record the end of runs, each once.

    Args:
        schedule: The schedule.
        ended: The statuses of the outcomes, by the id of the workflow.
        now: The time.

    Returns:
        The entries.
    """
    return tuple(
        RunEnded(at=now, workflow_id=each.workflow_id, outcome=ended[each.workflow_id])
        for each in schedule.runs
        if each.status == "running" and each.workflow_id in ended
    )


def next_fires(schedule: Schedule, now: datetime, count: int) -> list[datetime]:
    """Return the next fires of a schedule.

    Args:
        schedule: The schedule.
        now: The time.
        count: The largest number of fires.

    Returns:
        The fires, in order. A schedule that is not active has none.
    """
    if schedule.status != "active" or schedule.spec is None:
        return []
    done = {each.due for each in schedule.runs if not each.by}
    after = now if schedule.spec.at is None else min(schedule.through, now)
    found = [fire for fire in upcoming(schedule.spec, after, count + len(done)) if fire not in done]
    return found[:count]


def fire_id(name: str, due: datetime) -> str:
    """Return the request id of a fire.

    Args:
        name: The name of the schedule.
        due: The time of the fire.

    Returns:
        The id.
    """
    return f"{_PREFIX}/{name}/{due.astimezone(UTC):%Y%m%dT%H%M%SZ}"


def schedule_of_request(request_id: str) -> str | None:
    """Return the name of the schedule in the id of a request; None if the id has a different form.

    A caller can choose an id of this form. So check in the record of the schedule that the workflow is a run.
    """
    match request_id.split("/"):
        case [kind, name, _] if kind == _PREFIX:
            return name
    return None


def _spec(schedule: Schedule) -> ScheduleSpec:
    if schedule.spec is None:
        raise InvariantError(f"the schedule {schedule.name} has no definition")
    return schedule.spec
