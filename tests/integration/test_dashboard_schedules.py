"""Schedules in a real browser: create one with a form, run it, pause it, delete it, and see its runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect
from support import factory
from support.asgi import request
from support.browser import IN_BROWSER, page_of, served, wait_for_text
from support.dashboard import watching
from support.factory import echo, planner_of, synthesizer

from pointsman.bus.memory.bus import MemoryBus
from pointsman.web.users import User, Users, token_digest

pytestmark = IN_BROWSER

MEMBERS = [planner_of(factory.ONE_TASK), echo("a"), synthesizer]
FILE = {"name": "a.txt", "size": 1, "media_type": "text/plain", "sha256": "0" * 64, "owner": "wf_1"}
VALID = {"name": "report", "team": "crew", "input": "Is it up?", "cron": "0 9 * * 1-5"}


async def test_a_schedule_is_created_run_paused_resumed_and_deleted(browser: Browser, tmp_path: Path) -> None:
    view = {"width": 390, "height": 844}
    async with (
        factory.team(factory.CREW, MEMBERS) as client,
        served(client) as address,
        page_of(browser, address, complains="422", viewport=view, timezone_id="Europe/Oslo") as page,
    ):
        page.on("filechooser", lambda chooser: None)  # the test gets only choosers that open after this call
        await page.goto("/schedules")
        await wait_for_text(page, "No schedules yet.").to_be_visible()
        await page.get_by_text("New schedule").click()
        form = page.get_by_role("form", name="New schedule")
        times = form.get_by_role("textbox", name="Times")
        await form.get_by_label("Name").fill("report")
        await expect(form.get_by_label("Team")).to_have_value("crew")
        await form.get_by_label("Request").fill("Is it up?")
        await page.get_by_role("button", name="Create").click()
        await expect(page.get_by_role("alert")).to_contain_text("Give either the times")
        await times.fill("0 25 * * *")
        await page.get_by_role("button", name="Create").click()
        await expect(page.get_by_role("alert")).to_contain_text("bad hour")
        await form.get_by_label("Team").fill("desk")  # after a change of the team, the files are uploaded again
        await attach(page, tmp_path / "rates.csv", tmp_path / "notes.txt")
        attached = form.get_by_role("list", name="Attached files")
        await expect(attached.get_by_role("listitem")).to_have_count(2)
        await page.get_by_role("button", name="Remove notes.txt").focus()
        await page.keyboard.press("Enter")
        await expect(form.get_by_role("button", name="Attach files")).to_be_focused()
        await expect(attached.get_by_role("listitem")).to_have_count(1)
        await expect(attached).to_contain_text("rates.csv8 bytes")
        await form.get_by_label("Team").fill("crew")
        await times.fill("0 9 1 1 *")  # once a year, so that it does not fire during the test
        await page.get_by_role("button", name="Create").click()

        schedule = page.locator(".letter")
        await expect(schedule).to_contain_text("files rates.csv")
        await expect(attached.get_by_role("listitem")).to_have_count(0)
        await expect(schedule).to_contain_text("0 9 1 1 *, Europe/Oslo")
        await expect(schedule).to_contain_text("Next: ")
        await schedule.get_by_role("button", name="Run now").click()
        await schedule.get_by_text("Last run").click()
        run = schedule.locator(".runs li")
        await expect(run.locator(".status")).to_have_text("Completed")
        await expect(run).to_contain_text(f"by {client.user}")
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await schedule.get_by_role("button", name="Pause").click()
        await expect(schedule.locator(".status").first).to_have_text("Paused")
        await expect(schedule.get_by_text("Next: ")).to_be_hidden()
        await schedule.get_by_role("button", name="Resume").click()
        await expect(schedule.locator(".status").first).to_have_text("Active")
        await run.get_by_role("link").click()
        await expect(page.get_by_role("heading", name="Is it up?")).to_be_visible()
        await expect(page.get_by_role("link", name="rates.csv")).to_be_visible()
        await page.go_back()
        await page.get_by_role("button", name="Delete").click()
        await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        await expect(schedule).to_have_count(0)
        await expect(page.locator("main")).to_be_focused()
        left = await client.schedules.list()

    assert left == []


async def attach(page: Page, *paths: Path) -> None:
    """Attach files with the keyboard."""
    for path in paths:
        path.write_text("a,b\n1,2\n")
    await page.get_by_role("button", name="Attach files").focus()
    async with page.expect_file_chooser() as opened:
        await page.keyboard.press("Enter")
    await (await opened.value).set_files(paths)


async def test_schedules_belong_to_their_user_and_only_operators_change_them() -> None:
    users = Users([User("anna", "operate", token_digest("a" * 20)), User("ben", "approve", token_digest("b" * 20))])
    anna, ben = {"authorization": f"Bearer {'a' * 20}"}, {"authorization": f"Bearer {'b' * 20}"}
    async with factory.team(factory.CREW, MEMBERS) as client:
        assert isinstance(client.bus, MemoryBus)
        async with watching(client.bus, users=users) as dashboard:
            refused = await request(dashboard.app, "POST", "/api/schedules", VALID, **ben)
            made = await request(dashboard.app, "POST", "/api/schedules", VALID, **anna)
            again = await request(dashboard.app, "POST", "/api/schedules", VALID, **anna)
            path = "/api/schedules/crew/anna/report"
            not_his = await request(dashboard.app, "POST", f"{path}/pause", {}, **ben)
            paused = await request(dashboard.app, "POST", f"{path}/pause", {}, **anna)
            odd = await request(dashboard.app, "POST", f"{path}/wake", {}, **anna)
            unknown = await request(dashboard.app, "POST", "/api/schedules/crew/anna/other/run", {}, **anna)
        (schedule,) = await client.schedules.list()

    assert (schedule.caller, schedule.status, schedule.changed_by) == ("anna", "paused", "anna")
    assert (made.json, paused.json) == ({"state": "active"}, {"state": "paused"})
    assert (refused.status, not_his.status, again.status) == (403, 403, 409)
    assert (odd.status, unknown.status) == (404, 404)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cron": "never"}, "cron"),
        ({"at": "tomorrow", "cron": None}, "the time is not valid"),
        ({"timezone": "Mars/Base"}, "Mars/Base"),
        ({"overlap": "maybe"}, "overlap"),
        ({"input": ""}, "input"),
        ({"team": "*"}, "team"),
        ({"every": 5}, "has no 'every'"),
        ({"files": [FILE]}, "there are files but no request_id"),
        ({"files": [FILE], "request_id": "r1"}, "uploaded for another request"),
    ],
)
async def test_a_schedule_that_does_not_fit_is_refused(change: dict[str, object], said: str) -> None:
    bus = MemoryBus()
    async with watching(bus) as dashboard:
        answer = await request(dashboard.app, "POST", "/api/schedules", {**VALID, **change})

    assert answer.status == 422
    assert re.search(said, answer.json["error"])
    assert await bus.last("controls", "pointsman.control.>") is None
