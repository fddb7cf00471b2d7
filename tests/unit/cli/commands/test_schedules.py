"""The commands for schedules with a team in memory: create, list, show, pause, resume, run, delete, submit --at."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support import factory
from support.commands import command, use_client

from pointsman.cli.arguments import parse_start
from pointsman.cli.commands import schedules, submit
from pointsman.client.client import Client
from pointsman.errors import ConfigurationError, ContractError, NotFoundError
from pointsman_schemas.team import Pipeline, Stage, Team

TEAM = Team(name="crew", strategy=Pipeline(stages=(Stage(agent="a"),)))


@asynccontextmanager
async def scheduled(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    """Run a team on the test's event loop. The commands use its client."""
    async with factory.team(TEAM, [factory.echo("a")]) as client:
        use_client(monkeypatch, client)
        yield client


async def test_schedule_is_created_listed_shown_and_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "sales.csv").write_text("a,b")
    times: dict[str, Any] = {"cron": "0 9 * * 1-5", "tz": "Europe/Oslo"}
    async with scheduled(monkeypatch) as client:
        await command(schedules.create, "report", "crew", ["the report"], file=[tmp_path / "sales.csv"], **times)
        made = capsys.readouterr().out
        await command(schedules.run, "report")
        run = capsys.readouterr().out.strip()
        outcome = await (await client.workflow(run, "crew")).outcome(10)
        files = [each.file.name for each in await client.files(run)]
        await command(schedules.pause, "report")
        await command(schedules.list_)
        listed = capsys.readouterr().out
        await command(schedules.resume, "report", json=True)
        resumed = json.loads(capsys.readouterr().out)
        await command(schedules.show, "report", count=2)
        shown = capsys.readouterr().out
        await command(schedules.show, "report", count=3, json=True)
        whole = json.loads(capsys.readouterr().out)
        await command(schedules.delete, "report")
        deleted = capsys.readouterr().out
        with pytest.raises(NotFoundError, match="pointsman schedules list"):
            await command(schedules.show, "report")

    assert "0 9 * * 1-5 Europe/Oslo, for crew" in made
    assert outcome.status == "completed"
    assert files == ["sales.csv"]
    assert "files sales.csv" in shown
    assert "report" in listed
    assert "paused" in listed
    assert resumed["status"] == "active"
    assert run in shown
    following = shown.partition("\nNext\n")[2].partition("\n\n")[0].splitlines()
    assert [each[len("2026-01-31") :] for each in following] == [" 09:00"] * 2
    assert len(whole["next"]) == 3
    assert deleted == "The schedule report is deleted.\n"


async def test_without_schedules_the_list_reports_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with scheduled(monkeypatch):
        await command(schedules.list_)

    assert capsys.readouterr().out == "There are no schedules.\n"


async def test_request_of_a_later_time_is_sent_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "sales.csv").write_text("a,b")
    async with scheduled(monkeypatch) as client:
        await command(submit.submit, "crew", ["hello"], at="0.2s", json=True, file=[tmp_path / "sales.csv"])
        told = json.loads(capsys.readouterr().out)
        outcome = await (await client.workflow(told["workflow_id"], "crew")).outcome(10)
        (shown,) = await client.schedules.list()
        files = [each.file.name for each in await client.files(told["workflow_id"])]

    assert outcome.answer == "a: hello"
    assert files == ["sales.csv"]
    assert (shown.name, shown.status) == (told["schedule"], "ended")


def test_option_that_a_later_request_cannot_have_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="--at takes no --request-id"):
        submit.submit("crew", ["hello"], at="2h", request_id="r-1")


async def test_wrong_times_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scheduled(monkeypatch):
        with pytest.raises(ContractError, match="expected five fields"):
            await command(schedules.create, "report", "crew", ["the report"], cron="0 9 * * * * *")
        with pytest.raises(ContractError, match=r"cron is 'daily'; expected five fields"):
            await command(schedules.create, "report", "crew", ["the report"], cron="daily")
    with pytest.raises(ConfigurationError, match="neither --cron nor --at is given; give one of them"):
        await command(schedules.create, "report", "crew", ["the report"])
    with pytest.raises(ConfigurationError, match="both --cron and --at are given; give one of them"):
        await command(schedules.create, "report", "crew", ["the report"], cron="0 9 * * *", at="2h")


def test_start_is_a_delay_or_a_time() -> None:
    delayed = parse_start("2h")

    assert delayed is not None
    assert timedelta(hours=1.9) < delayed - datetime.now(UTC) < timedelta(hours=2.1)
    assert parse_start("2030-01-31T12:00:00Z") == datetime(2030, 1, 31, 12, tzinfo=UTC)
    with pytest.raises(ConfigurationError, match="the time is 'soon'; give a delay such as 90s, 15m, 2h or 3d, or a"):
        parse_start("soon")
