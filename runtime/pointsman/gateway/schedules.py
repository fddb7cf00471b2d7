"""Create, list, read and change the schedules of a caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias

from fastapi import APIRouter, Depends, Path, Query, Response
from pydantic import AwareDatetime, BaseModel, Field, JsonValue

from pointsman.client.schedules import Schedules
from pointsman.gateway.callers import Caller
from pointsman.gateway.catalog import unserved_warning
from pointsman.gateway.context import CallerArg, Context, ContextArg, check_metadata
from pointsman.gateway.files.uploads import usable_files
from pointsman.gateway.models import FILE_ID_PATTERN, MAX_FILES, Body, BudgetRequest, Timestamp
from pointsman.gateway.problems import ProblemError, problems
from pointsman_schemas.events import MAX_DEADLINE_S, RequestInput
from pointsman_schemas.ids import TOKEN_PATTERN, TeamName, Token
from pointsman_schemas.schedules import MAX_GRACE_S, Schedule, ScheduleRun

__all__ = ["router"]

router = APIRouter(prefix="/v1/schedules", tags=["schedules"])

_TIMEOUT_S = 10.0  # seconds to wait until a supervisor has carried out a change
_SHOWN_FIRES = 5

TeamPath = Annotated[str, Path(pattern=TOKEN_PATTERN, description="The team.")]
NamePath = Annotated[str, Path(pattern=TOKEN_PATTERN, description="The name of the schedule.")]
OwnerQuery = Annotated[
    str | None,
    Query(pattern=TOKEN_PATTERN, description="The owner of the schedule. Only operators may name another owner."),
]


class ScheduleRequest(Body):
    """The definition of a schedule, with either `cron` or `at`."""

    name: Token = Field(description="The name, unique among your schedules for the team.")
    team: TeamName = Field(description="The team that is to serve the requests.")
    input: RequestInput = Field(
        description="The request that is sent at each time of the schedule. Such a time is called a fire."
    )
    cron: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        default=None,
        description="The times as a cron expression: minute, hour, day of the month, month, day of the week.",
        examples=["0 9 * * 1-5"],
    )
    at: Timestamp | None = Field(default=None, description="A single time, instead of `cron`.")
    timezone: Annotated[str, Field(min_length=1, max_length=64)] = Field(
        default="UTC", description="The IANA time zone of `cron`.", examples=["Europe/Oslo"]
    )
    overlap: Literal["skip", "queue", "allow"] = Field(
        default="skip",
        description="The policy for a fire while an earlier run has not ended: `skip` omits the fire, `queue` lets the "
        "fire wait, and `allow` starts a second run.",
    )
    missed: Literal["skip", "once"] | None = Field(
        default=None,
        description="The policy for missed fires: `skip` omits all, and `once` starts one run for all. Default: `skip` "
        "with `cron`, `once` with `at`.",
    )
    grace: Annotated[float, Field(strict=True, ge=1, le=MAX_GRACE_S)] = Field(
        default=60.0, description="Largest delay of a fire in seconds. With a longer delay, the fire counts as missed."
    )
    deadline: Annotated[float, Field(strict=True, ge=0.001, le=MAX_DEADLINE_S)] | None = Field(
        default=None, description="Seconds from admission to the deadline. Default: the team's deadline."
    )
    budget: BudgetRequest | None = Field(default=None, description="Limits of each workflow.")
    metadata: dict[str, JsonValue] = Field(default={}, description="Data for the agents.")
    files: list[Annotated[str, Field(pattern=FILE_ID_PATTERN)]] = Field(
        default=[],
        max_length=MAX_FILES,
        description="Ids of your uploads for the agents of each run. The schedule has its own copies of the files.",
    )
    thread: Token | None = Field(
        default=None, description="The id of one of your threads. Each run becomes the next turn of the thread."
    )


class RunView(BaseModel):
    """A run of a schedule."""

    workflow_id: str = Field(description="The workflow.")
    due: AwareDatetime = Field(description="The time of the fire; for a run by hand, the time of the command.")
    by: str = Field(description="The caller of a run by hand; empty for a fire.")
    status: Literal["queued", "running", "ended"] = Field(description="The status.")
    outcome: str = Field(description="The status of the outcome; empty before the end.")

    @classmethod
    def of(cls, run: ScheduleRun) -> RunView:
        """Return the view of a run.

        Args:
            run: The run.
        """
        return cls(**run.model_dump(include=set(cls.model_fields)))


class ScheduleFileView(BaseModel):
    """A file of a schedule."""

    name: str = Field(description="The name.")
    media_type: str = Field(description="The media type.")
    size: int = Field(description="The size in bytes.")
    sha256: str = Field(description="The SHA-256 of the content.")


class ScheduleView(BaseModel):
    """A schedule."""

    name: str = Field(description="The name.")
    team: str = Field(description="The team.")
    caller: str = Field(description="The owner.")
    status: str = Field(description="`active`, `paused`, `deleted`, or `ended` if the schedule has no further time.")
    cron: str | None = Field(description="The times as a cron expression.")
    at: AwareDatetime | None = Field(description="A single time, instead of `cron`.")
    timezone: str = Field(description="The time zone of `cron`.")
    overlap: str = Field(description="The policy for a fire while an earlier run has not ended.")
    missed: str = Field(description="The policy for missed fires.")
    input: str | dict[str, JsonValue] = Field(description="The request that is sent at each time of the schedule.")
    files: list[ScheduleFileView] = Field(description="The files of each fire.")
    next: list[AwareDatetime] = Field(description="The next times.")
    runs: list[RunView] = Field(description="The newest runs, in the order of their start.")
    started_runs: int = Field(description="Number of runs that were started.")
    skipped_fires: int = Field(description="Number of fires that were skipped, because an earlier run had not ended.")
    missed_fires: int = Field(description="Number of fires that were missed.")


class SchedulePage(BaseModel):
    """Schedules, sorted by team, caller and name."""

    schedules: list[ScheduleView] = Field(description="The schedules.")


class ScheduleResult(BaseModel):
    """The result of a change."""

    applied: bool = Field(
        description="True if a supervisor has carried out the change; false if the change is stored, but no "
        "supervisor of the team has answered."
    )
    schedule: ScheduleView | None = Field(default=None, description="The schedule after the change.")
    warning: str | None = Field(default=None, description="A warning if the team might not exist.")


_Command: TypeAlias = Callable[..., Awaitable[Schedule | None]]
_Change: TypeAlias = Callable[[_Command], Awaitable[ScheduleResult]]

_STORED: dict[int | str, dict[str, Any]] = {
    202: {
        "model": ScheduleResult,
        "description": "The change is stored, but no supervisor has carried out the change yet.",
    }
}


@router.post("", status_code=201, summary="Create a schedule", responses={**_STORED, **problems(400, 404, 409, 410)})
async def create_schedule(
    body: ScheduleRequest, context: ContextArg, caller: CallerArg, response: Response
) -> ScheduleResult:
    """Create a schedule that you own, and wait up to 10 s until a supervisor of the team has stored the schedule."""
    caller.require_team(body.team)
    check_metadata(body.metadata)
    schedules = _schedules(context, caller)
    made = await schedules.create(
        body.name,
        body.team,
        body.input,
        cron=body.cron,
        at=body.at,
        timezone=body.timezone,
        overlap=body.overlap,
        missed=body.missed,
        grace=body.grace,
        deadline=body.deadline,
        budget=body.budget.as_budget() if body.budget else None,
        metadata=body.metadata,
        files=await usable_files(context.files, caller, body.files),
        thread=body.thread,
        timeout=_TIMEOUT_S,
    )
    result = _result(schedules, made, response)
    if not result.applied:
        result.warning = await unserved_warning(context, caller, body.team)
    return result


@router.get("", summary="List schedules", responses=problems())
async def list_schedules(
    context: ContextArg,
    caller: CallerArg,
    team: Annotated[str | None, Query(pattern=TOKEN_PATTERN, description="The team. Default: all teams.")] = None,
) -> SchedulePage:
    """List your schedules; as an operator, the schedules of all callers."""
    schedules = _schedules(context, caller)
    found = await schedules.list(team, caller=None if caller.operator else caller.name)
    return SchedulePage(schedules=[_view(schedules, each) for each in found if caller.may_use(each.team)])


@router.get("/{team}/{name}", summary="Read a schedule", responses=problems(404))
async def get_schedule(
    team: TeamPath, name: NamePath, context: ContextArg, caller: CallerArg, owner: OwnerQuery = None
) -> ScheduleView:
    """Read a schedule: its definition, its next times and its newest runs."""
    schedules = _schedules(context, caller)
    return _view(schedules, await schedules.get(name, team, caller=_owner(caller, team, owner)))


async def _named_change(
    team: TeamPath,
    name: NamePath,
    context: ContextArg,
    caller: CallerArg,
    response: Response,
    owner: OwnerQuery = None,
) -> _Change:
    """Return a function that carries out a change of the schedule in the path."""
    schedules = _schedules(context, caller)

    async def change(command: _Command) -> ScheduleResult:
        changed = await command(schedules, name, team, caller=_owner(caller, team, owner), timeout=_TIMEOUT_S)
        return _result(schedules, changed, response)

    return change


ChangeArg = Annotated[_Change, Depends(_named_change)]


@router.post("/{team}/{name}/pause", summary="Pause a schedule", responses={**_STORED, **problems(404, 409)})
async def pause_schedule(change: ChangeArg) -> ScheduleResult:
    """Pause a schedule: its times pass without a run."""
    return await change(Schedules.pause)


@router.post("/{team}/{name}/resume", summary="Resume a schedule", responses={**_STORED, **problems(404, 409)})
async def resume_schedule(change: ChangeArg) -> ScheduleResult:
    """Resume a paused schedule. Times during the pause do not count as missed."""
    return await change(Schedules.resume)


@router.post(
    "/{team}/{name}/run",
    summary="Run a schedule now",
    description="Start a run now. The overlap policy also applies: the run may have to wait, and if the policy allows "
    "no further run now, the command is refused. Otherwise the new run is the newest of `runs` in the answer.",
    responses={**_STORED, **problems(404, 409)},
)
async def run_schedule(team: TeamPath, change: ChangeArg, context: ContextArg, caller: CallerArg) -> ScheduleResult:
    """Start a run now, if the overlap policy allows a further run."""
    with context.new_work(caller, team):
        return await change(Schedules.run)


@router.delete("/{team}/{name}", summary="Delete a schedule", responses={**_STORED, **problems(404, 409)})
async def delete_schedule(change: ChangeArg) -> ScheduleResult:
    """Delete a schedule. Runs that have started continue."""
    return await change(Schedules.delete)


def _schedules(context: Context, caller: Caller) -> Schedules:
    """Return a `Schedules` object that makes changes as the caller. The gateway has verified the caller."""
    return context.client.for_user(caller.name).schedules


def _owner(caller: Caller, team: str, owner: str | None) -> str:
    """Return the owner of the requested schedule.

    Raises:
        ProblemError: The caller may not use the team, or the caller names a different owner and is not an operator.
    """
    caller.require_team(team)
    if owner is not None and owner != caller.name:
        caller.require_operator()
    return owner or caller.name


def _result(schedules: Schedules, changed: Schedule | None, response: Response) -> ScheduleResult:
    if changed is None:
        response.status_code = 202
        return ScheduleResult(applied=False)
    return ScheduleResult(applied=True, schedule=_view(schedules, changed))


def _view(schedules: Schedules, schedule: Schedule) -> ScheduleView:
    spec = schedule.spec
    fires: list[datetime] = list(schedules.next_fires(schedule, _SHOWN_FIRES))
    if spec is None:
        raise ProblemError(404, "not_found", f"the schedule {schedule.name!r} was never created")
    return ScheduleView(
        name=schedule.name,
        team=schedule.team,
        caller=schedule.caller,
        status=schedule.status,
        cron=spec.cron,
        at=spec.at,
        timezone=spec.timezone,
        overlap=spec.overlap,
        missed=spec.missed,
        input=spec.request.input,
        files=[ScheduleFileView(**file.model_dump(exclude={"owner"})) for file in spec.request.files],
        next=fires,
        runs=[RunView.of(each) for each in schedule.runs],
        started_runs=schedule.started,
        skipped_fires=schedule.skipped,
        missed_fires=schedule.missed,
    )
