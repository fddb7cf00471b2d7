"""The dashboard without a mouse: Tab and Enter reach every action, and the focus stays while the page changes."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import ANY

import pytest
from playwright.async_api import Browser, Page, Route, expect
from support import factory
from support.browser import IN_BROWSER, page_of, served
from support.dashboard import lasting_broker, letter, publish
from support.factory import planner_of
from support.history import WORKFLOW, completed, dispatched, started, store, succeeded
from support.waiting import until

from pointsman.authoring.agent import agent
from pointsman.authoring.context import Context
from pointsman.bus.memory.bus import MemoryBus
from pointsman.client.client import Client
from pointsman.errors import TaskError
from pointsman.webhooks.endpoint_store import EndpointStore
from pointsman_schemas.card import AgentCard
from pointsman_schemas.team import Limits, PlanAndExecute, RetryPolicy, Team

pytestmark = IN_BROWSER

FOCUSED = """() => {
  const here = document.activeElement, styles = [getComputedStyle(here), getComputedStyle(here, "::after")];
  const seen = here.matches(":focus-visible") && styles.some((style) => style.outlineStyle !== "none");
  const of = here.labels && here.labels[0];
  const label = of ? of.firstChild.textContent || of.textContent : "";
  return [here.getAttribute("aria-label") || label || here.textContent, here.tagName, seen];
}"""


async def focused(page: Page) -> tuple[str, str, bool]:
    """Return the name and the tag of the focused element, and True if it is visible."""
    name, element, seen = await page.evaluate(FOCUSED)
    return name, element, seen


async def tab_to(page: Page, name: str) -> None:
    """Press Tab until the element `name` has the focus. The focus must be visible at each step."""
    for _ in range(30):
        await page.keyboard.press("Tab")
        here, element, seen = await focused(page)
        assert seen, f"the focus on {element} {here!r} cannot be seen"
        if here == name:
            return
    pytest.fail(f"Tab never reaches {name!r}")


async def tab_stops(page: Page) -> list[str]:
    """Press Tab through the content of a page, with a visible focus at each stop. Return the names of the stops."""
    await page.locator("main").focus()
    stops: list[str] = []
    for _ in range(80):
        await page.keyboard.press("Tab")
        here, element, seen = await focused(page)
        if element == "BODY":  # after the last element
            return stops
        if stops[-1:] == [here]:  # a time field has several stops
            continue
        assert seen, f"the focus on {element} {here!r} cannot be seen"
        stops.append(here)
    pytest.fail(f"Tab does not reach the end of the page; last stops: {stops[-3:]}")


async def test_tab_passes_the_newer_pages_in_the_order_of_their_content(browser: Browser) -> None:
    go = asyncio.Event()

    @agent(name="asker", description="Asks")
    async def ask(request: str, context: Context) -> str:
        return await context.ask("Which month?", output=str)

    @agent(name="waiter", description="Waits")
    async def wait(request: str) -> str:
        await go.wait()
        return "done"

    plan = planner_of(*({"id": name, "agent": name, "intent": name} for name in ("asker", "waiter")))
    team = Team(name="crew", strategy=PlanAndExecute(synthesizer=None), limits=Limits(deadline=600))
    async with (
        factory.team(team, [plan, ask, wait]) as client,
        served(client) as address,
        page_of(browser, address) as page,
    ):
        workflow = await client.submit("crew", "Collect invoices", thread="t-1")
        await client.schedules.create("report", "crew", "Is it up?", cron="0 9 1 1 *")
        endpoint = (await (await EndpointStore.open(client.bus, client.subjects)).create("https://a.b/")).endpoint.id
        await until(client.operations.questions)
        (question,) = [each.id for each in await client.operations.questions()]
        found: dict[str, list[str]] = {}
        for path, text in (
            ("/threads", "Collect invoices"),
            (f"/threads/crew/{client.user}/t-1", "Which month?"),
            ("/questions", "Which month?"),
            ("/batches", "No batches."),
            ("/schedules", "0 9 1 1 *"),
            ("/webhooks", endpoint),
        ):
            await page.goto(path)
            await expect(page.get_by_text(text).first).to_be_visible()
            if path.endswith("/t-1"):  # the name of the user and the tasks arrive in answers of their own
                await expect(page.get_by_label("Message to crew")).to_be_focused()
                await expect(page.get_by_text("steps done")).to_be_visible()
            if path in ("/schedules", "/webhooks"):
                await page.locator("summary").first.click()
            found[path] = await tab_stops(page)
        go.set()
        await workflow.cancel()

    asked = [
        "Answer", "Show the request to crew, and the results so far", "Why not", f"Answer {question}",
        f"Decline {question}",
    ]  # fmt: skip
    assert found == {
        "/threads": ["Search request, team or caller", "Team", "New conversation", "Collect invoices"],
        f"/threads/crew/{client.user}/t-1": [
            "← Conversations", "t-1", ANY, "Cancel this turn", ANY, *asked, "Message to crew", "Attach files", "Send",
        ],  # ANY replaces the time and the progress
        "/questions": [workflow.id, *asked],
        "/batches": ["Team", "File", "Columns", "At a time", "Start"],
        "/schedules": [
            "New schedule", "Name", "Team", "Request", "Attach files", "Times", "Time zone", "Or once at",
            "While a run is active", "Missed times", "Create", "Search name, team, caller, request", "Run now report",
            "Pause report", "Delete report",
        ],
        "/webhooks": [
            "New endpoint", "URL", "Teams", "Workflow ended", "Question asked", "Dead letter stored", "Create",
            f"New secret {endpoint}", f"Disable {endpoint}", f"Delete {endpoint}", "Search event, workflow, error",
            "Status", "Endpoint",
        ],
    }  # fmt: skip


async def test_focus_of_a_user_stays_when_the_name_of_the_user_arrives_late(browser: Browser) -> None:
    moved = asyncio.Event()

    async def hold(route: Route) -> None:
        await moved.wait()
        await route.continue_()

    bus = MemoryBus()
    async with served(Client(bus)) as address, page_of(browser, address) as page:
        await page.route("**/api/me", hold)
        await page.goto("/threads/crew/anonymous/t-1")
        await tab_to(page, "← Conversations")
        moved.set()
        await expect(page.get_by_label("Message to crew")).to_be_visible()
        here = await focused(page)

    assert here == ("← Conversations", "A", True)


async def test_focus_moves_to_the_next_dead_letter_after_a_keyboard_action(
    browser: Browser,
) -> None:
    broken, go = [True], asyncio.Event()

    @agent(name="mender", description="Mends")
    async def mend(request: str) -> str:
        if broken[0]:
            raise TaskError("out of bolts")
        return "mended"

    @agent(name="looker", description="Holds the workflow open")
    async def look(request: str) -> str:
        await go.wait()
        return "seen"

    plan = planner_of(
        {"id": "mend", "agent": "mender", "intent": "mend it"}, {"id": "look", "agent": "looker", "intent": "look"}
    )
    team = Team(name="crew", strategy=PlanAndExecute(synthesizer=None), retry=RetryPolicy(attempts=1))
    async with (
        factory.team(team, [plan, mend, look]) as client,
        served(client) as address,
        page_of(browser, address) as page,
    ):
        letters = client.operations
        await publish(client.bus, client.subjects.dead_letter("crew", WORKFLOW, "old"), letter("old", "came long ago"))
        workflow = await client.submit("crew", "mend it")
        await until(lambda: letters.dead_letters(workflow=workflow.id))
        (mine,) = [each.content.id for each in await letters.dead_letters(workflow=workflow.id)]
        await publish(client.bus, client.subjects.dead_letter("crew", WORKFLOW, "new"), letter("new", "came last"))
        shown = page.locator(".letter")

        await page.goto("/dead-letters")
        await expect(shown).to_have_count(3)
        await tab_to(page, f"Replay {mine}")
        await publish(
            client.bus, client.subjects.dead_letter("crew", WORKFLOW, "newer"), letter("newer", "came meanwhile")
        )
        await expect(shown).to_have_count(4)
        assert (await focused(page))[0] == f"Replay {mine}"
        await letters.discard(await letters.dead_letter("new"))
        await letters.discard(await letters.dead_letter("newer"))
        await expect(shown).to_have_count(2)
        assert (await focused(page))[0] == f"Replay {mine}"

        broken[0] = False
        await page.keyboard.press("Enter")
        await expect(shown).to_have_count(1)
        name, _, seen = await focused(page)
        assert "came long ago" in name
        assert seen
        await tab_to(page, "Discard old")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("dialog")).to_be_visible()
        await page.keyboard.press("Escape")
        assert await focused(page) == ("Discard old", "BUTTON", True)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("dialog")).to_be_visible()
        await page.keyboard.press("Tab")
        assert await focused(page) == ("Discard", "BUTTON", True)
        await page.keyboard.press("Enter")
        await expect(shown).to_have_count(0)
        await expect(page.locator("main")).to_be_focused()

        go.set()
        outcome = await workflow.outcome(timeout=20)

    assert (outcome.status, outcome.gaps) == ("completed", ())


async def test_a_button_asks_again_right_after_its_dialog_was_declined(browser: Browser) -> None:
    """The button is pressed again before the browser reports that the dialog has closed."""
    press_twice = """async () => {
        document.querySelector("dialog button").click();
        for (let turn = 0; turn < 20; turn++) await null;
        document.querySelector(".letter button[aria-label='Discard old']").click();
        return document.querySelectorAll("dialog[open]").length;
    }"""
    async with (
        factory.team(Team(name="crew"), [planner_of()]) as client,
        served(client) as address,
        page_of(browser, address) as page,
    ):
        await publish(client.bus, client.subjects.dead_letter("crew", WORKFLOW, "old"), letter("old", "came long ago"))
        await page.goto("/dead-letters")
        await page.get_by_role("button", name="Discard old").click()
        await expect(page.get_by_role("dialog")).to_be_visible()

        opened = await page.evaluate(press_twice)

    assert opened == 1


async def test_an_approval_is_changed_and_given_by_keyboard_while_others_are_answered(browser: Browser) -> None:
    paid: list[Any] = []

    @agent(name="payer", description="Pays", approval="required")
    async def pay(request: dict[str, Any]) -> str:
        paid.append(request["amount"])
        return "paid"

    plan = planner_of(*({"id": f"pay-{number}", "agent": "payer", "intent": f"pay bill {number}"} for number in (1, 2)))
    team = Team(name="bank", strategy=PlanAndExecute(synthesizer=None), limits=Limits(deadline=600))
    async with factory.team(team, [plan, pay]) as client, served(client) as address, page_of(browser, address) as page:
        workflow = await client.submit("bank", {"amount": 900})

        async def both() -> bool:
            return len(await client.operations.questions()) == 2

        await until(both)
        first, second = [each.id for each in await client.operations.questions()]

        await page.goto("/questions")
        await expect(page.locator(".letter")).to_have_count(2)
        await expect(page.locator(".letter").first).to_contain_text("m ")  # the remaining time, in minutes and seconds
        await tab_to(page, f"Approve {first}")
        await tab_to(page, "Input")
        await page.keyboard.press("Control+a")
        await page.keyboard.insert_text('{"amount": 90')
        await client.operations.approve(first)
        await expect(page.locator(".letter")).to_have_count(1)
        await page.keyboard.insert_text("}")  # the field still has its text and the focus
        await tab_to(page, f"Approve {second}")
        await page.keyboard.press("Enter")
        await expect(page.locator(".letter")).to_have_count(0)
        await expect(page.locator("main")).to_be_focused()
        outcome = await workflow.outcome(timeout=20)

    assert outcome.status == "completed"
    assert sorted(paid) == [90, 900]


async def test_the_focus_on_an_agent_stays_while_its_numbers_change(browser: Browser) -> None:
    bus = lasting_broker().connect()
    await store(bus, *completed())
    await bus.registry.announce(AgentCard(name="fitter", description="fits", instance="i1"))
    async with served(Client(bus)) as address, page_of(browser, address) as page:
        await page.goto("/agents")
        await tab_to(page, "fitter")
        tries = page.locator("tr", has_text="fitter").locator("td[data-name='Tokens']")
        await expect(tries).to_have_text("120")
        other = "wf_" + "9" * 24
        await store(
            bus, started(other), dispatched("t9", "fitter", 1), succeeded("t9", "fitter", 1, 2), workflow=other
        )  # fmt: skip
        await expect(tries).to_have_text("240")
        here = await focused(page)

    assert here == ("fitter", "A", True)
