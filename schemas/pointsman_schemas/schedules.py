"""Define schedules. A supervisor sends the request of a schedule at the times of a cron expression, or at one time.

A fire is one of these times. A run is the workflow that a fire, or a command of a person, starts.

A caller publishes a `ScheduleChange`, and a supervisor of the team decides on this change. Each schedule has one
record, on `{ns}.cron.{team}.{caller}.{schedule}`. Each message of the record contains the entries of one change and the
schedule after the change. The messages are published by compare-and-set, so the newest message is the whole schedule.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import AwareDatetime, Field, StringConstraints, model_validator

from pointsman_schemas.base import Frozen
from pointsman_schemas.events import Event, Part, Request
from pointsman_schemas.ids import TeamName, Token, WorkflowId

__all__ = [
    "MAX_OPEN_RUNS",
    "MAX_QUEUED_RUNS",
    "MAX_REQUEST_BYTES",
    "MAX_RUNS",
    "SCHEDULE_ACTIONS",
    "AppliedChange",
    "ChangeRefused",
    "RunEnded",
    "RunGranted",
    "RunSkipped",
    "RunStarted",
    "Schedule",
    "ScheduleChange",
    "ScheduleCreated",
    "ScheduleDeleted",
    "ScheduleEnded",
    "ScheduleEntry",
    "SchedulePaused",
    "ScheduleRecord",
    "ScheduleResumed",
    "ScheduleRun",
    "ScheduleSpec",
    "ScheduleStatus",
    "ScheduleTimer",
    "TimerSet",
    "TimesPassed",
]

MAX_RUNS = 20
"""Largest number of ended runs that stay in the record of a schedule."""
MAX_OPEN_RUNS = 50
"""Largest number of runs at the same time, for one schedule with the overlap `allow`."""
MAX_QUEUED_RUNS = 10
"""Largest number of waiting runs, for one schedule with the overlap `queue`."""
MAX_REQUEST_BYTES = 65_536
"""Largest request of a schedule, in bytes. The size is limited, because each change of the record contains the
request."""
MAX_GRACE_S = 86_400.0

ScheduleStatus: TypeAlias = Literal["active", "paused", "ended", "deleted", "refused"]


SCHEDULE_ACTIONS = ("schedule", "schedule-others")
"""The action token in the subject of a command: `schedule` for the actor's own schedule, `schedule-others` for another
caller's schedule."""


class ScheduleSpec(Frozen):
    """The definition of a schedule: the times, the policies and the request."""

    cron: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = Field(
        default=None,
        description="The times as a cron expression of five fields: minute, hour, day of the month, month, day of the "
        "week.",
    )
    at: AwareDatetime | None = Field(default=None, description="A single time, instead of a cron expression.")
    timezone: Annotated[str, StringConstraints(min_length=1, max_length=64)] = Field(
        default="UTC", description="The IANA time zone of the cron expression."
    )
    overlap: Literal["skip", "queue", "allow"] = Field(
        default="skip",
        description="The policy for a fire during an earlier run of the schedule. `skip` skips the fire, "
        "`queue` lets the new run wait for the end of the earlier run, and `allow` starts both runs in "
        "parallel.",
    )
    missed: Literal["skip", "once"] = Field(
        default="skip",
        description="The policy for fires that are later than `grace`, because no supervisor or no broker "
        "was running. `skip` skips all of them, and `once` starts one run for the newest.",
    )
    grace: float = Field(
        default=60.0, strict=True, ge=1, le=MAX_GRACE_S, description="Largest accepted delay of a fire, in seconds."
    )
    request: Request = Field(
        description="The request that each fire sends to the team. The files of the request must have the id of the "
        "schedule as their owner."
    )

    @model_validator(mode="after")
    def _has_times(self) -> ScheduleSpec:
        if (self.cron is None) == (self.at is None):
            raise ValueError("expected either a cron expression or a time")
        if self.request.reply_to:
            raise ValueError("the request of a schedule must not have a reply_to; leave it out")
        return self


class ScheduleChange(Event):
    """A command about a schedule, on `{ns}.control.{team}.{schedule id}.{action}.{actor}.{id}`.

    The action token in the subject (not the field `action`) is `schedule` for a schedule of the actor, and
    `schedule-others` for the schedule of another caller. A created schedule belongs to the actor of `create`.
    """

    event_type: ClassVar[str] = "io.pointsman.schedule-change.v1"

    action: Literal["create", "pause", "resume", "run", "delete"] = Field(description="The command.")
    caller: Token = Field(description="The caller to whom the schedule belongs.")
    schedule: Token = Field(description="The name of the schedule, unique for its team and caller.")
    spec: ScheduleSpec | None = Field(default=None, description="With `create`: the definition.")


class ScheduleTimer(Event):
    """The timer of a schedule that fired. A supervisor then checks which times have passed."""

    event_type: ClassVar[str] = "io.pointsman.schedule-timer.v1"

    caller: Token = Field(description="The caller to whom the schedule belongs.")
    schedule: Token = Field(description="The name of the schedule.")
    number: int = Field(ge=1, description="The number of the timer.")
    due: AwareDatetime = Field(description="Time at which the timer was due.")


class ScheduleRun(Part):
    """One run of a schedule: the workflow that a fire or a command started."""

    request_id: str = Field(description="The id of the request, which is computed from the fire.")
    workflow_id: WorkflowId = Field(description="The workflow, whose id is computed from the request.")
    due: AwareDatetime = Field(description="The time of the fire, or of the command that started the run.")
    by: str = Field(default="", description="The actor of the command that started the run; empty for a fire.")
    status: Literal["queued", "running", "ended"] = Field(description="The status of the run.")
    started_at: AwareDatetime | None = Field(default=None, description="Time at which the request was sent.")
    ended_at: AwareDatetime | None = Field(default=None, description="The end of the workflow.")
    outcome: str = Field(default="", description="The status of the outcome; empty before the end of the run.")


class AppliedChange(Part):
    """A command that a supervisor has accepted or refused."""

    id: str = Field(description="The id of the command.")
    refusal: str = Field(default="", description="The reason of a refusal; empty for an accepted command.")


class Schedule(Part):
    """The state of a schedule."""

    team: TeamName = Field(description="The team.")
    caller: Token = Field(description="The caller to whom the schedule belongs.")
    name: Token = Field(description="The name of the schedule, unique for its team and caller.")
    status: ScheduleStatus = Field(
        description="The status. `ended` means that the schedule has no further fire, and `refused` means that the "
        "schedule was never created."
    )
    spec: ScheduleSpec | None = Field(default=None, description="The definition; null if the definition was refused.")
    created_at: AwareDatetime = Field(description="Time of the creation.")
    changed_at: AwareDatetime = Field(description="Time of the last change.")
    through: AwareDatetime = Field(description="Time up to which each fire has started a run or was skipped.")
    wake: AwareDatetime | None = Field(default=None, description="Time at which the armed timer is due.")
    timer: int = Field(default=0, ge=0, description="Number of the armed timer.")
    runs: tuple[ScheduleRun, ...] = Field(default=(), description="The newest runs, in order.")
    started: int = Field(default=0, ge=0, description="Number of started runs.")
    skipped: int = Field(
        default=0, ge=0, description="Number of fires that were skipped, because an earlier run had not ended."
    )
    missed: int = Field(default=0, ge=0, description="Number of fires that were skipped, because they were too late.")
    changes: tuple[AppliedChange, ...] = Field(default=(), description="The newest commands.")
    changed_by: str = Field(default="", description="The actor of the last command.")


class ScheduleCreated(Part):
    """The schedule was created."""

    kind: Literal["schedule_created"] = Field(default="schedule_created", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    team: TeamName = Field(description="The team.")
    caller: Token = Field(description="The caller to whom the schedule belongs.")
    name: Token = Field(description="The name of the schedule.")
    spec: ScheduleSpec = Field(description="The definition.")
    change: str = Field(description="The id of the command.")


class ChangeRefused(Part):
    """A command was refused. A refused creation also begins a record, so the caller can read the reason."""

    kind: Literal["change_refused"] = Field(default="change_refused", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    team: TeamName = Field(description="The team.")
    caller: Token = Field(description="The caller to whom the schedule belongs.")
    name: Token = Field(description="The name of the schedule.")
    change: str = Field(description="The id of the command.")
    reason: str = Field(description="The reason.")


class SchedulePaused(Part):
    """The schedule was paused. Until it is resumed, its times start no runs."""

    kind: Literal["schedule_paused"] = Field(default="schedule_paused", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    by: str = Field(description="The actor.")
    change: str = Field(description="The id of the command.")


class ScheduleResumed(Part):
    """The schedule continues. The times during the pause do not count as missed."""

    kind: Literal["schedule_resumed"] = Field(default="schedule_resumed", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    by: str = Field(description="The actor.")
    change: str = Field(description="The id of the command.")


class ScheduleDeleted(Part):
    """The schedule was deleted. Its started runs continue."""

    kind: Literal["schedule_deleted"] = Field(default="schedule_deleted", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    by: str = Field(description="The actor.")
    change: str = Field(description="The id of the command.")


class ScheduleEnded(Part):
    """The schedule has no further fire."""

    kind: Literal["schedule_ended"] = Field(default="schedule_ended", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")


class RunStarted(Part):
    """A fire or a command started a run. The request of the run is sent, or waits for the end of an earlier run."""

    kind: Literal["run_started"] = Field(default="run_started", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    request_id: str = Field(description="The id of the request.")
    workflow_id: WorkflowId = Field(description="The workflow.")
    due: AwareDatetime = Field(description="The time of the fire, or of the command.")
    queued: bool = Field(default=False, description="True if the run waits for the end of an earlier run.")
    by: str = Field(default="", description="The actor of the command that started the run; empty for a fire.")
    change: str = Field(default="", description="The id of the command that started the run; empty for a fire.")


class RunGranted(Part):
    """A waiting run was allowed to start, so its request is sent."""

    kind: Literal["run_granted"] = Field(default="run_granted", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    workflow_id: WorkflowId = Field(description="The workflow.")


class RunSkipped(Part):
    """A fire was skipped, because an earlier run had not ended."""

    kind: Literal["run_skipped"] = Field(default="run_skipped", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    due: AwareDatetime = Field(description="The time of the fire.")


class TimesPassed(Part):
    """Each fire up to a time has started a run or was skipped. `missed` of these fires were skipped as too late."""

    kind: Literal["times_passed"] = Field(default="times_passed", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    through: AwareDatetime = Field(description="Time up to which each fire has started a run or was skipped.")
    missed: int = Field(default=0, ge=0, description="Number of fires that were too late.")


class RunEnded(Part):
    """The workflow of a run ended."""

    kind: Literal["run_ended"] = Field(default="run_ended", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    workflow_id: WorkflowId = Field(description="The workflow.")
    outcome: str = Field(description="The status of the outcome.")


class TimerSet(Part):
    """The next timer was armed."""

    kind: Literal["timer_set"] = Field(default="timer_set", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    due: AwareDatetime = Field(description="Time at which the timer is due.")


ScheduleEntry: TypeAlias = Annotated[
    ScheduleCreated
    | ChangeRefused
    | SchedulePaused
    | ScheduleResumed
    | ScheduleDeleted
    | ScheduleEnded
    | RunStarted
    | RunGranted
    | RunSkipped
    | TimesPassed
    | RunEnded
    | TimerSet,
    Field(discriminator="kind"),
]


class ScheduleRecord(Event):
    """One change of a schedule, with the schedule after the change."""

    event_type: ClassVar[str] = "io.pointsman.schedule.v1"

    number: int = Field(ge=1, description="The number of the change, from 1.")
    entries: tuple[ScheduleEntry, ...] = Field(description="The entries of the change, in order.")
    state: Schedule = Field(description="The schedule after the change.")
