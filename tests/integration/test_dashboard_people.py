"""Pages for people: resume, agents with their teams, a mistyped team, a wrong address, and a small screen."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from playwright.async_api import Browser, Page, expect
from support import factory
from support.asgi import event_stream, request
from support.browser import IN_BROWSER, page_of, served, wait_for_text
from support.dashboard import lasting_broker, watching
from support.factory import planner_of, synthesizer
from support.history import START, at, completed, dispatched, ended, planned, started, store

from pointsman.authoring.agent import agent
from pointsman.bus.memory.bus import MemoryBus
from pointsman.client.client import Client
from pointsman.engine.process.heartbeat import team_card
from pointsman.errors import TaskError
from pointsman_schemas.card import AgentCard
from pointsman_schemas.log import TaskAbandoned
from pointsman_schemas.plan import PlannedTask
from pointsman_schemas.team import RetryPolicy, Team

pytestmark = IN_BROWSER

LONG_WORD = "Donaudampfschifffahrtsgesellschaftskapitaen" * 8


async def test_failed_workflow_is_resumed_by_its_button(browser: Browser) -> None:
    broken = True

    @agent(name="a", description="Breaks at first")
    async def breaking(request: str) -> str:
        if broken:
            raise TaskError("out of bolts")
        return "mended"

    team = Team(name="crew", retry=RetryPolicy(attempts=1))
    members = [planner_of(factory.ONE_TASK), breaking, synthesizer]
    async with factory.team(team, members) as client, served(client) as address, page_of(browser, address) as page:
        workflow = await client.submit("crew", "hello")
        await workflow.outcome(20)
        await page.goto(f"/workflows/{workflow.id}")
        resume = page.get_by_role("button", name="Resume")
        await expect(resume).to_be_visible()
        broken = False

        await resume.click()

        await expect(page.locator(".title .status")).to_have_text("Completed")
        await expect(resume).to_be_hidden()
        await wait_for_text(page, "joined").to_be_visible()
        await wait_for_text(page, "resumed the workflow, to do again:").to_be_visible()


async def test_agents_page_shows_teams_versions_and_owners(browser: Browser) -> None:
    bus, long_ago = lasting_broker().connect(), datetime.now(UTC) - timedelta(hours=1)
    await store(bus, *completed())  # this log has a tester that no longer runs
    for number, digest in enumerate(("1" * 16, "2" * 16)):
        card = AgentCard(
            name="shop--fitter", owner="shop", description="fits", instance=f"i{number}", digest=digest,
            started_at=long_ago, problems=("no API key is set for the worker",),
        )  # fmt: skip
        await bus.registry.announce(card)
        await bus.registry.announce(team_card(Team(name="shop", approve_plan=bool(number)), long_ago, f"s{number}"))
    async with served(Client(bus)) as address, page_of(browser, address) as page:
        await page.goto("/agents")

        await wait_for_text(page, "several versions share one queue").to_be_visible()
        await wait_for_text(page, "no API key is set for the worker").to_be_visible()
        await wait_for_text(page, "of shop").to_be_visible()
        teams = page.get_by_role("region", name="Teams")
        await expect(teams.get_by_text("2 different definitions")).to_be_visible()
        await expect(page.get_by_text("tester")).to_have_count(0)


async def test_mistyped_team_is_refused_with_the_one_that_is_meant(browser: Browser) -> None:
    bus = lasting_broker().connect()
    await bus.registry.announce(team_card(Team(name="billing"), START, "s1"))
    # The browser logs the refusal as an error.
    async with served(Client(bus)) as address, page_of(browser, address, complains="422") as page:
        await page.goto("/")
        await wait_for_text(page, "No workflows yet.").to_be_visible()
        await page.keyboard.press("n")
        await page.locator("#ask-team").fill("biling")
        await page.get_by_label("Request", exact=True).fill("Why?")
        await page.keyboard.press("Control+Enter")

        await expect(page.get_by_role("alert")).to_contain_text("did you mean billing?")
        assert await bus.last("requests", "pointsman.request.>") is None


async def test_wrong_address_has_a_page_with_a_way_back(browser: Browser) -> None:
    async with served(Client(MemoryBus())) as address, page_of(browser, address, complains="404") as page:
        answer = await page.goto("/nosuch")
        assert answer is not None
        assert answer.status == 404
        await page.get_by_role("link", name="Open the workflows").click()
        await wait_for_text(page, "No workflows yet.").to_be_visible()


async def test_unknown_path_of_the_interface_is_an_error_for_a_program() -> None:
    async with watching(MemoryBus()) as dashboard:
        answer = await request(dashboard.app, "GET", "/api/nosuch")

    assert (answer.status, answer.json["kind"]) == (404, "not_found")


async def test_event_streams_are_not_buffered_by_a_proxy() -> None:
    async with watching(MemoryBus()) as dashboard, event_stream(dashboard.app, "/api/live/agents") as page:
        await page.until("agents")
        assert page.headers["x-accel-buffering"] == "no"


async def overflow(page: Page) -> int:
    """Return the number of pixels by which the page is wider than the screen."""
    wide: int = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return wide


@pytest.mark.parametrize("width", [360, 1280])
async def test_long_words_fit_and_a_wide_plan_says_that_it_scrolls(browser: Browser, width: int) -> None:
    tasks = [
        PlannedTask(id=f"t{number}", agent="fitter", intent="fit", depends_on=(f"t{number - 1}",) if number else ())
        for number in range(14)
    ]
    bus = MemoryBus()
    await store(bus, started(input=LONG_WORD), *planned(*tasks))
    workflow = started().workflow_id
    view = {"width": width, "height": 800}
    async with served(Client(bus)) as address, page_of(browser, address, viewport=view) as page:
        await page.goto(f"/workflows/{workflow}")
        await expect(page.locator(".node").first).to_be_visible()

        await wait_for_text(page, "The plan is wider than the screen: scroll sideways.").to_be_visible()
        heading = page.locator("h1")
        assert await heading.evaluate("one => one.getBoundingClientRect().right <= innerWidth")
        assert await overflow(page) == 0


async def test_cancelled_workflow_has_no_red_bar(browser: Browser) -> None:
    bus = MemoryBus()
    task = PlannedTask(id="t1", agent="fitter", intent="fit")
    gone = TaskAbandoned(at=at(3), task_id="t1", cause="cancelled", reason="cancelled")
    await store(bus, started(), *planned(task), dispatched("t1", "fitter", 1), gone, ended("cancelled", 3))
    async with served(Client(bus)) as address, page_of(browser, address) as page:
        await page.goto("/")
        bar = page.locator(".workflow-row", has_text="Cancelled").locator(".bar b")
        await expect(bar).to_have_count(1)
        red = await page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--bad')")
        painted = await bar.evaluate("one => getComputedStyle(one).backgroundColor")
        assert painted != await page.evaluate(
            "color => { const probe = document.createElement('i'); probe.style.background = color;"
            " document.body.append(probe); return getComputedStyle(probe).backgroundColor; }",
            red,
        )


async def test_time_of_a_running_task_continues_in_the_plan(browser: Browser) -> None:
    done = asyncio.Event()

    @agent(name="a", description="Waits")
    async def waiting(request: str) -> str:
        await done.wait()
        return "done"

    members = [planner_of(factory.ONE_TASK), waiting, synthesizer]
    async with (
        factory.team(factory.CREW, members) as client,
        served(client) as address,
        page_of(browser, address) as page,
    ):
        workflow = await client.submit("crew", "hello")
        await page.goto(f"/workflows/{workflow.id}")
        running = page.locator(".node.running[data-task=t1]")  # the planner's task also runs for some time
        await expect(running).to_have_count(1)
        shown = running.locator(".more")
        first = await shown.text_content()

        await expect(shown).not_to_have_text(first or "")  # although no event arrives

        assert first is not None
        assert first.startswith("t1 · ")
        done.set()
        await workflow.outcome(20)
