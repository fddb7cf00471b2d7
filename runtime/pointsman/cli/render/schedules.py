"""Render schedules for a terminal. The functions do no I/O."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime, tzinfo
from zoneinfo import ZoneInfo

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pointsman.cli.render.output import escape_control, one_line
from pointsman_schemas.schedules import Schedule, ScheduleSpec

__all__ = ["schedule_table", "schedule_view", "times_of"]


def schedule_table(schedules: Sequence[tuple[Schedule, datetime | None]]) -> Table:
    """Render the table of `schedules list`.

    Args:
        schedules: Each schedule with its next time, or with None if there is no further time.

    Returns:
        The table.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("schedule", "team", "caller", "status", "times", "next", "last run"):
        table.add_column(column, no_wrap=column != "last run")
    for each, following in schedules:
        last = each.runs[-1] if each.runs else None
        said = f"{_in_zone(last.due, each.spec)} {last.outcome or last.status}" if last else ""
        next_time = _in_zone(following, each.spec) if following else ""
        table.add_row(each.name, each.team, each.caller, each.status, times_of(each.spec), next_time, said)
    return table


def schedule_view(schedule: Schedule, fires: Sequence[datetime]) -> RenderableType:
    """Render a schedule with its next times and its last runs, newest run first.

    Args:
        schedule: The schedule.
        fires: The next times.

    Returns:
        The view.
    """
    return Group(*_lines(schedule, fires))


def times_of(spec: ScheduleSpec | None) -> str:
    """Return the times of a schedule as text: the cron expression with its time zone, or the single time."""
    if spec is None:
        return ""
    return f"{spec.cron} {spec.timezone}" if spec.cron else f"at {_in_zone(spec.at, spec)}"


def _lines(schedule: Schedule, fires: Sequence[datetime]) -> Iterator[RenderableType]:
    spec = schedule.spec
    yield Text(f"{schedule.name}  {schedule.status}", "bold")
    yield Text(f"{times_of(spec)}, for {schedule.team}, by {schedule.caller}")
    if spec is not None:
        given = spec.request.input
        yield Text(f"> {one_line(given if isinstance(given, str) else json.dumps(given), limit=200)}")
        if spec.request.files:
            yield Text(f"files {', '.join(file.name for file in spec.request.files)}", "dim")
        yield Text(f"overlap {spec.overlap}, missed {spec.missed}, grace {spec.grace:g} s", "dim")
    yield Text(f"{schedule.started} started, {schedule.skipped} skipped, {schedule.missed} missed", "dim")
    if fires:
        yield Text("\nNext", "bold")
        yield from (Text(_in_zone(fire, spec)) for fire in fires)
    if schedule.runs:
        yield Text("\nLast runs", "bold")
        table = Table(box=None, pad_edge=False, show_header=False)
        for run in reversed(schedule.runs):
            by = f"by {escape_control(run.by)}" if run.by else ""
            table.add_row(_in_zone(run.due, spec), run.workflow_id, run.outcome or run.status, by)
        yield table


def _in_zone(at: datetime | None, spec: ScheduleSpec | None) -> str:
    if at is None:
        return ""
    zone: tzinfo | None = ZoneInfo(spec.timezone) if spec and spec.cron and spec.timezone != "UTC" else None
    return f"{at.astimezone(zone):%Y-%m-%d %H:%M}" if zone else f"{at:%Y-%m-%d %H:%MZ}"
