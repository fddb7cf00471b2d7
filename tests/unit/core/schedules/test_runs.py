"""Decisions about schedules: overlap, missed fires, clock jumps, commands, and the order of runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pointsman.core.schedules.runs import (
    ChangeAsked,
    change_schedule,
    check_schedule,
    end_runs,
    fire_id,
    next_fires,
    schedule_of_request,
)
from pointsman.core.schedules.state import fold_schedule, needs_file, open_runs
from pointsman_schemas.events import Request
from pointsman_schemas.files import File
from pointsman_schemas.ids import schedule_id_for, workflow_id_for
from pointsman_schemas.schedules import (
    MAX_QUEUED_RUNS,
    MAX_REQUEST_BYTES,
    MAX_RUNS,
    Schedule,
    ScheduleChange,
    ScheduleEntry,
    ScheduleSpec,
)
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.team import Limits

SUBJECTS = Subjects("acme")
START = datetime(2026, 1, 5, 8, 30, tzinfo=UTC)
NINE = datetime(2026, 1, 5, 9, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


class Desk:
    """A schedule that applies its decisions at once."""

    def __init__(self, **spec: Any) -> None:
        chosen: dict[str, Any] = {"cron": "0 * * * *", **spec}
        self.state: Schedule | None = None
        self.entries: list[ScheduleEntry] = []
        self._changes = 0
        self.command("create", START, spec=ScheduleSpec(request=Request(input="go"), **chosen))
        self.check(START)

    @property
    def schedule(self) -> Schedule:
        assert self.state is not None
        return self.state

    def command(
        self,
        action: Any,
        now: datetime,
        *,
        actor: str = "ada",
        id: str = "",
        for_others: bool = False,
        **fields: Any,
    ) -> str:
        self._changes += 1
        change = ScheduleChange(action=action, caller="ada", schedule="report", **fields)
        asked = ChangeAsked(id or f"c{self._changes}", actor, "crew", change, for_others=for_others)
        self._store(change_schedule(self.state, asked, SUBJECTS, now))
        return next((each.refusal for each in self.schedule.changes if each.id == asked.id), "")

    def check(self, now: datetime, *, fired: int | None = None) -> list[str]:
        return self._store(check_schedule(self.schedule, SUBJECTS, now, fired=fired))

    def end(self, workflow: str, now: datetime) -> None:
        self._store(end_runs(self.schedule, {workflow: "completed"}, now))

    def runs(self) -> list[tuple[str, str]]:
        return [(f"{each.due:%H:%M}", each.status) for each in self.schedule.runs]

    def _store(self, entries: Sequence[ScheduleEntry]) -> list[str]:
        if entries:
            self.state = fold_schedule(self.state, entries)
        self.entries += entries
        return [each.kind for each in entries]


def test_fire_is_one_run_with_the_id_of_its_request() -> None:
    desk = Desk()

    desk.check(NINE + timedelta(seconds=1))
    again = desk.check(NINE + timedelta(seconds=2))

    (run,) = desk.schedule.runs
    request = "schedule/report/20260105T090000Z"
    assert (run.due, run.status, run.request_id) == (NINE, "running", request)
    assert run.workflow_id == workflow_id_for(SUBJECTS.request("crew", "ada"), request, "/acme/schedule/report")
    assert fire_id("report", NINE) == request
    assert schedule_of_request(request) == "report"
    assert again == []


def test_nothing_fires_before_its_time() -> None:
    desk = Desk()

    assert desk.check(NINE - timedelta(seconds=1)) == []
    assert desk.schedule.wake == NINE


def test_timer_that_fires_early_is_armed_again() -> None:
    desk = Desk()
    first = desk.schedule.timer

    assert desk.check(NINE - timedelta(seconds=1), fired=first) == ["timer_set"]
    assert (desk.schedule.wake, desk.schedule.timer) == (NINE, first + 1)


def test_timer_is_armed_a_day_ahead_at_most() -> None:
    desk = Desk(cron="0 9 1 1 *")

    assert desk.schedule.wake == START + DAY


@pytest.mark.parametrize(
    ("overlap", "kinds", "statuses"),
    [
        ("skip", ["times_passed", "run_skipped", "timer_set"], ["running"]),
        ("queue", ["times_passed", "run_started", "timer_set"], ["running", "queued"]),
        ("allow", ["times_passed", "run_started", "timer_set"], ["running", "running"]),
    ],
)
def test_fire_during_a_run_follows_the_overlap_policy(overlap: str, kinds: list[str], statuses: list[str]) -> None:
    desk = Desk(overlap=overlap)
    desk.check(NINE)

    assert desk.check(NINE + HOUR) == kinds
    assert [each.status for each in desk.schedule.runs] == statuses
    assert desk.schedule.skipped == (overlap == "skip")


def test_queued_runs_start_in_their_order_and_are_bounded() -> None:
    desk = Desk(overlap="queue")
    for hour in range(MAX_QUEUED_RUNS + 3):
        desk.check(NINE + hour * HOUR)
    first, second = desk.schedule.runs[:2]

    desk.end(first.workflow_id, NINE + DAY)
    desk.check(NINE + DAY)

    assert desk.schedule.skipped == 2
    assert [each.workflow_id for each in open_runs(desk.schedule) if each.status == "running"] == [second.workflow_id]


def test_late_fire_within_the_grace_runs() -> None:
    desk = Desk(grace=60.0)

    desk.check(NINE + timedelta(seconds=60))

    assert desk.runs() == [("09:00", "running")]


@pytest.mark.parametrize(("missed", "runs"), [("skip", []), ("once", [("12:00", "running")])])
def test_missed_fires_follow_the_policy(missed: str, runs: list[tuple[str, str]]) -> None:
    desk = Desk(missed=missed)

    desk.check(NINE + 3 * HOUR + timedelta(minutes=10))

    assert desk.runs() == runs
    assert desk.schedule.missed + desk.schedule.started == 4
    assert desk.schedule.wake == NINE + 4 * HOUR


def test_newest_fire_runs_on_time_although_earlier_ones_were_missed() -> None:
    desk = Desk(missed="skip")

    desk.check(NINE + 3 * HOUR)

    assert desk.runs() == [("12:00", "running")]
    assert desk.schedule.missed == 3


def test_clock_that_is_set_back_fires_no_time_twice() -> None:
    desk = Desk(overlap="allow")
    for hour in range(3):
        desk.check(NINE + hour * HOUR)

    for minutes in range(0, 240, 10):
        desk.check(NINE - HOUR + timedelta(minutes=minutes))

    assert [due for due, _ in desk.runs()] == ["09:00", "10:00", "11:00"]
    assert len({each.workflow_id for each in desk.schedule.runs}) == 3


def test_fires_after_a_wrong_jump_forward_are_made_up_when_the_clock_is_corrected() -> None:
    desk = Desk(overlap="allow", missed="skip")
    desk.check(NINE + 30 * DAY + timedelta(minutes=5))  # a wrong clock: all fires of a month count as missed
    assert desk.runs() == []

    desk.check(NINE - timedelta(minutes=10))  # the clock is correct again
    for hour in range(3):
        desk.check(NINE + hour * HOUR + timedelta(seconds=1))

    assert [due for due, _ in desk.runs()] == ["09:00", "10:00", "11:00"]
    assert desk.schedule.wake == NINE + 3 * HOUR


def test_clock_that_steps_back_by_a_second_decides_nothing_again() -> None:
    desk = Desk(overlap="skip")
    desk.command("run", NINE - HOUR)
    desk.check(NINE)
    assert desk.schedule.skipped == 1

    desk.end(desk.schedule.runs[0].workflow_id, NINE)
    desk.check(NINE - timedelta(seconds=1))
    desk.check(NINE + timedelta(seconds=1))

    assert len(desk.schedule.runs) == 1


def test_pause_drops_its_times_and_resume_continues() -> None:
    desk = Desk(missed="once")
    desk.command("pause", START)
    desk.check(NINE + HOUR)
    assert desk.runs() == []
    assert next_fires(desk.schedule, NINE, 3) == []

    desk.command("resume", NINE + HOUR + timedelta(minutes=30))
    desk.check(NINE + HOUR + timedelta(minutes=30))

    assert desk.runs() == []
    assert desk.schedule.wake == NINE + 2 * HOUR


def test_run_by_hand_is_a_run_of_its_own() -> None:
    desk = Desk(overlap="allow")

    for _ in range(2):  # the second is a redelivery
        assert desk.command("run", START, actor="bob", id="now", for_others=True) == ""

    (run,) = desk.schedule.runs
    assert (run.by, run.request_id) == ("bob", "schedule/report/now")


def test_run_by_hand_is_refused_while_a_run_has_not_ended() -> None:
    desk = Desk(overlap="skip")
    desk.check(NINE)

    assert "has not ended" in desk.command("run", NINE + timedelta(minutes=1))
    assert len(desk.schedule.runs) == 1


@pytest.mark.parametrize("action", ["pause", "resume", "run", "delete"])
def test_schedule_of_another_caller_needs_the_right_to_change_it(action: str) -> None:
    desk = Desk()

    assert "belongs to ada" in desk.command(action, START, actor="eve")
    assert desk.command(action, START, actor="eve", for_others=True) == ""


def test_deleted_schedule_fires_no_more_and_drops_its_queue() -> None:
    desk = Desk(overlap="queue")
    desk.check(NINE)
    desk.check(NINE + HOUR)

    desk.command("delete", NINE + HOUR)

    assert desk.check(NINE + 2 * HOUR) == []
    assert desk.runs() == [("09:00", "running")]
    assert "has no schedule" in desk.command("pause", NINE + 2 * HOUR)


def test_name_is_free_after_the_deletion() -> None:
    desk = Desk()
    spec = desk.schedule.spec

    assert "delete it first" in desk.command("create", START, spec=spec)
    desk.command("delete", START)
    timer = desk.schedule.timer
    assert desk.command("create", START, spec=spec) == ""
    desk.check(START)

    assert (desk.schedule.status, desk.schedule.wake) == ("active", NINE)
    assert desk.schedule.timer > timer  # another number than the old schedule's timer, which may still fire


def test_schedule_of_another_user_cannot_be_created() -> None:
    change = ScheduleChange(
        action="create",
        caller="ada",
        schedule="report",
        spec=ScheduleSpec(cron="0 9 * * *", request=Request(input="go")),
    )

    (entry,) = change_schedule(None, ChangeAsked("c1", "eve", "crew", change), SUBJECTS, START)

    assert entry.kind == "change_refused"
    assert fold_schedule(None, [entry]).status == "refused"


def with_file(owner: str, *, media_type: str = "application/pdf") -> ScheduleSpec:
    file = File(name="report.pdf", media_type=media_type, size=7, sha256="a" * 64, owner=owner)
    return ScheduleSpec(cron="0 9 * * *", request=Request(input="go", files=(file,)))


@pytest.mark.parametrize(
    ("spec", "limits", "reason"),
    [
        (with_file("wf_0123"), None, "expected sc_"),
        (with_file("shared"), None, "expected sc_"),
        (with_file(schedule_id_for("crew", "ada", "report")), Limits(file_types=("image/*",)), "expected one of image"),
        (with_file(schedule_id_for("crew", "ada", "report")), Limits(file_bytes=6), "at most 6"),
        (with_file(schedule_id_for("crew", "ada", "report")), Limits(), ""),
    ],
)
def test_files_belong_to_the_schedule_and_fit_the_team(spec: ScheduleSpec, limits: Limits | None, reason: str) -> None:
    change = ScheduleChange(action="create", caller="ada", schedule="report", spec=spec)

    (entry,) = change_schedule(None, ChangeAsked("c1", "ada", "crew", change, limits=limits), SUBJECTS, START)

    assert reason in getattr(entry, "reason", "")
    assert entry.kind == ("change_refused" if reason else "schedule_created")


def test_files_are_needed_by_the_schedule_and_by_runs_of_its_predecessor() -> None:
    spec, digest = with_file(schedule_id_for("crew", "ada", "report")), "a" * 64
    desk = Desk()
    desk.command("delete", START)
    desk.command("create", START, spec=spec)
    desk.check(NINE)
    (run,) = desk.schedule.runs
    live = needs_file(desk.schedule, digest), needs_file(desk.schedule, "b" * 64)
    desk.command("delete", NINE)
    deleted = needs_file(desk.schedule, digest)

    desk.command("create", NINE + HOUR, spec=ScheduleSpec(cron="0 9 * * *", request=Request(input="other")))
    replaced = needs_file(desk.schedule, digest)
    desk.end(run.workflow_id, NINE + HOUR)

    assert live == (True, False)
    assert (deleted, replaced, needs_file(desk.schedule, digest)) == (True, True, False)


def test_definition_that_is_too_large_is_refused() -> None:
    spec = ScheduleSpec(cron="0 9 * * *", request=Request(input="x" * MAX_REQUEST_BYTES))
    change = ScheduleChange(action="create", caller="ada", schedule="report", spec=spec)

    (entry,) = change_schedule(None, ChangeAsked("c1", "ada", "crew", change), SUBJECTS, START)

    assert entry.kind == "change_refused"
    assert "bytes" in entry.reason


@pytest.mark.parametrize(
    ("late", "missed", "runs"), [(0, "skip", 1), (50, "skip", 1), (3600, "skip", 0), (3600, "once", 1)]
)
def test_single_time_fires_once_and_the_schedule_ends(late: int, missed: str, runs: int) -> None:
    desk = Desk(cron=None, at=NINE, missed=missed)

    desk.check(NINE + timedelta(seconds=late))
    desk.check(NINE + DAY)

    assert len(desk.schedule.runs) == runs
    assert desk.schedule.status == "ended"


def test_record_keeps_the_newest_runs() -> None:
    desk = Desk()
    for hour in range(MAX_RUNS + 5):
        desk.check(NINE + hour * HOUR)
        desk.end(desk.schedule.runs[-1].workflow_id, NINE + hour * HOUR)

    assert len(desk.schedule.runs) == MAX_RUNS
    assert desk.schedule.started == MAX_RUNS + 5
