"""A person uses the dashboard in a real Chromium with a real broker. The browser reports no error."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, FilePayload, Route, expect
from support import factory
from support.asgi import event_stream
from support.browser import IN_BROWSER, page_of, served, wait_for_text
from support.cluster import free_ports
from support.factory import planner_of, synthesizer
from support.proxy import Proxy

from pointsman.authoring.agent import Agent, agent
from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.bus.jetstream.bus import connect
from pointsman.client.client import Client
from pointsman.engine.operations.archive import Archive
from pointsman.engine.operations.archive_reader import read_archive
from pointsman.errors import TaskError
from pointsman.settings import Settings
from pointsman.web.dashboard import Dashboard
from pointsman.web.users import User, Users, token_digest
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import AttemptError, DeadLetter
from pointsman_schemas.strict_json import dump
from pointsman_schemas.team import Limits, RetryPolicy, Team

pytestmark = IN_BROWSER

NASTY = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
TEAM = Team(name="crew", limits=Limits(deadline=60), retry=RetryPolicy(attempts=1))
TASKS: list[dict[str, Any]] = [
    {"id": "look", "agent": "looker", "intent": "look at it"},
    {"id": "mend", "agent": "mender", "intent": "mend it", "depends_on": ["look"]},
]


class Crew:
    """Two agents. One waits for a signal, one fails until it is repaired."""

    def __init__(self, *, broken: bool = False) -> None:
        self.go = asyncio.Event()
        self.broken = broken

        @agent(name="looker", description="Looks")
        async def look(request: str) -> str:
            await self.go.wait()
            return NASTY

        @agent(name="mender", description="Mends")
        async def mend(request: str) -> str:
            if self.broken:
                raise TaskError("out of bolts")
            return "mended"

        self.agents: list[Agent] = [planner_of(*TASKS), synthesizer, look, mend]


@asynccontextmanager
async def dashboard(settings: Settings, *, port: int = 0, users: Users | None = None) -> AsyncIterator[str]:
    """Serve the dashboard with its own connection and yield its address."""
    bus = await connect(settings, name="dashboard", wait=5.0)
    await bus.set_up()
    try:
        async with served(Client(bus, namespace=settings.namespace), port=port, users=users) as address:
            yield address
    finally:
        await bus.close()


async def test_a_request_is_submitted_watched_reloaded_in_the_middle_and_read(
    browser: Browser, settings: Settings
) -> None:
    crew = Crew()
    async with (
        factory.team(TEAM, crew.agents, on=settings),
        dashboard(settings) as address,
        page_of(browser, address) as page,
    ):
        await page.goto("/")
        await wait_for_text(page, "No workflows yet.").to_be_visible()
        await page.keyboard.press("n")
        await expect(page.locator("#ask-team")).to_have_value("crew")
        await page.get_by_label("Request", exact=True).fill("Why does it squeak?")
        await page.keyboard.press("Control+Enter")
        await expect(page.get_by_role("heading", name="Why does it squeak?")).to_be_visible()
        await expect(page.locator(".node.running")).to_have_count(1)
        await page.reload()
        await expect(page.locator(".node.running")).to_have_count(1)
        before = await page.locator(".event").count()
        crew.go.set()
        await expect(page.get_by_role("heading", name="Answer")).to_be_visible()
        await expect(page.locator(".title .status")).to_have_text("Completed")

        assert before > 0
        await wait_for_text(page, "joined").to_be_visible()
        names = await page.locator(".node").evaluate_all("nodes => nodes.map(node => node.dataset.task)")
        assert set(names) == {"plan-1", "look", "mend", "synthesis"}
        assert await page.locator(".edges path").count() == 3
        assert await page.locator(".lane.depth-0").count() == 4
        left = [
            await lane.evaluate("lane => parseFloat(lane.querySelector('.part').style.left)")
            for lane in await page.locator(".lane.depth-0").all()
        ]
        assert left == sorted(left)

        await page.get_by_role("button", name="look, looker, done").click()
        await wait_for_text(page, "Task look").to_be_visible()
        await page.locator(".event", has_text="finished look").locator("summary").click()
        await expect(page.locator(".event[open] pre")).to_contain_text("onerror")
        assert "owned" not in await page.title()
        assert await page.locator("main img, main script").count() == 0

        async with page.expect_download() as coming:
            await page.get_by_role("link", name="Export").click()
        archive = read_archive(await asyncio.to_thread(Path(await (await coming.value).path()).read_bytes))
        assert isinstance(archive, Archive)
        assert archive.workflow_id in page.url

        await page.get_by_role("button", name="Ask again").click()
        await expect(page.locator("#ask-team")).to_have_value("crew")
        await expect(page.locator("#ask-text")).to_have_value("Why does it squeak?")
        await page.keyboard.press("Control+Enter")
        await expect(page).not_to_have_url(re.compile(archive.workflow_id))
        await expect(page.get_by_role("heading", name="Answer")).to_be_visible()

        await page.get_by_role("link", name="← Workflows").click()
        rows = page.locator("li.row")
        await expect(rows).to_have_count(2)
        await expect(rows.first).to_contain_text("Completed")
        await expect(rows.first).to_contain_text("2/2")
        course = await page.get_by_role("img", name="Workflows by when they began").get_attribute("aria-label")
        assert course is not None
        assert "2 completed" in course
        await expect(page.locator("#namespace")).to_have_text(settings.namespace)
        await page.get_by_role("link", name="Agents").click()
        await page.get_by_role("link", name="mender").click()
        await expect(page.get_by_role("searchbox")).to_have_value("mender")
        await expect(rows).to_have_count(2)


async def test_slow_request_says_so_and_is_sent_once_however_often_it_is_pressed(
    browser: Browser, settings: Settings
) -> None:
    crew = Crew()
    crew.go.set()
    invoice: FilePayload = {"name": "invoice.pdf", "mimeType": "application/pdf", "buffer": b"%PDF"}
    host, _, port = settings.url.removeprefix("nats://").partition(":")
    async with (
        Proxy(host, int(port)) as proxy,
        factory.team(TEAM, crew.agents, on=settings) as client,
        dashboard(settings.model_copy(update={"url": proxy.url, "request_timeout": 2.0})) as address,
        page_of(browser, address, complains="503") as page,
    ):
        await page.goto("/")
        await wait_for_text(page, "No workflows yet.").to_be_visible()
        await page.get_by_role("button", name="New request").click()
        await page.get_by_label("Request", exact=True).fill("Why does it squeak?")
        await page.locator("dialog input[type=file]").set_input_files(invoice)
        await expect(page.get_by_role("list", name="Attached files")).to_contain_text("invoice.pdf4 bytes")
        send = page.get_by_role("dialog").get_by_role("button", name=re.compile("^Send"))
        posted: list[str] = []
        page.on("request", lambda request: posted.append(request.method) if request.method == "POST" else None)
        pressed = asyncio.Event()

        async def hold(route: Route) -> None:
            await pressed.wait()
            await route.continue_()

        await page.route("**/api/requests", hold, times=1)
        proxy.black_hole(upward=False)  # the broker stores the request, but its answer does not arrive
        await send.press("Enter")
        await expect(send).to_have_text("Sending")
        await page.keyboard.press("Enter")
        await page.get_by_label("Request", exact=True).press("Control+Enter")
        await send.focus()
        pressed.set()
        await expect(page.get_by_role("alert")).to_contain_text("Send again: the request is not duplicated.")
        await expect(send).to_have_text("Send")
        await expect(send).to_be_focused()
        assert posted == ["POST"]

        proxy.heal()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Answer")).to_be_visible()
        await expect(page.get_by_role("link", name="invoice.pdf")).to_be_visible()
        assert len(await client.list()) == 1


async def test_a_request_that_waits_for_its_team_is_seen_found_and_cancelled(
    browser: Browser, settings: Settings
) -> None:
    async with (
        factory.team(TEAM, [], on=settings) as client,
        dashboard(settings) as address,
        page_of(browser, address) as page,
    ):
        await page.goto("/")
        await wait_for_text(page, "No workflows yet.").to_be_visible()
        await client.submit("shpo", "mend the pump")
        await expect(page.locator("li.row")).to_contain_text("team shpo has no supervisor")
        await page.get_by_label("Status").select_option("Completed")
        await wait_for_text(page, "No workflow matches.").to_be_visible()
        await page.get_by_label("Status").select_option("Not admitted")
        await expect(page.locator("li.row .status")).to_have_text("Not admitted")
        await page.get_by_label("Status").select_option("Any status")
        await page.get_by_role("link", name="mend the pump").click()
        await wait_for_text(page, "Waiting for a supervisor of shpo").to_be_visible()
        await expect(page.get_by_role("button", name="Cancel")).to_be_visible()
        await page.get_by_role("link", name="← Workflows").click()
        await page.locator("li.row").get_by_role("button", name="Cancel").click()
        await wait_for_text(page, "The cancellation was requested.").to_be_visible()
        await expect(page.locator("li.row .status")).to_have_text("To be ended")
        await expect(page.locator("li.row").get_by_role("button", name="Cancel")).to_be_hidden()


async def bury(client: Client, count: int) -> None:
    """Store `count` dead letters without a workflow."""
    for number in range(count):
        letter = DeadLetter(
            id=f"d{number}", origin="crew", cause=AttemptError(kind="undecodable", message=f"letter number {number}"),
            attempts=1, subject=client.subjects.request("crew", "ada"), body="e30=", at=datetime.now(UTC),
        )  # fmt: skip
        envelope = Envelope(id=letter.id, type=letter.event_type, source="test", time=letter.at)
        await client.bus.publish(client.subjects.dead_letter("crew", None, letter.id), dump(letter), encode(envelope))


async def test_dead_letters_are_replayed_searched_and_discarded(browser: Browser, settings: Settings) -> None:
    crew = Crew(broken=True)
    other = {"id": "wait", "agent": "looker", "intent": "hold the workflow open"}
    crew.agents[0] = planner_of({**TASKS[1], "depends_on": []}, other)
    async with (
        factory.team(TEAM, crew.agents, on=settings) as client,
        dashboard(settings) as address,
        page_of(browser, address) as page,
    ):
        workflow = await client.submit("crew", "mend it")
        await page.goto("/dead-letters")
        await wait_for_text(page, "out of bolts").to_be_visible()
        await expect(page.locator("#letters")).to_have_text("1")
        await page.get_by_text("Show the event").click()
        await expect(page.locator(".letter pre")).to_contain_text(workflow.id)
        crew.broken = False
        await page.get_by_role("button", name="Replay", exact=False).last.click()
        await wait_for_text(page, "No dead letters.").to_be_visible()
        crew.go.set()
        outcome = await workflow.outcome(timeout=20)

        await bury(client, 101)
        await wait_for_text(page, "1 to 100 of 101").to_be_visible()
        await wait_for_text(page, "letter number 100").to_be_visible()
        await page.get_by_role("button", name="Older").click()
        await expect(page.locator(".letter")).to_have_count(1)
        await expect(page.locator(".cause")).to_have_text("letter number 0")
        await page.get_by_role("searchbox").fill("number 7")
        await expect(page.locator(".letter")).to_have_count(11)
        await page.get_by_role("button", name="Discard all 11").click()
        await page.get_by_role("button", name="Discard", exact=True).click()
        await wait_for_text(page, "Discarded 11 of 11.").to_be_visible()
        await wait_for_text(page, "No dead letter matches.").to_be_visible()
        await expect(page.locator("#letters")).to_have_text("90")

    assert (outcome.status, outcome.gaps) == ("completed", ())


async def test_a_page_finds_back_to_a_dashboard_that_was_restarted(browser: Browser, settings: Settings) -> None:
    crew = Crew()
    crew.go.set()
    [port] = free_ports(1)  # no other process gets the port while no dashboard listens
    async with factory.team(TEAM, crew.agents, on=settings) as client:
        await (await client.submit("crew", "before")).outcome(timeout=20)
        context = await browser.new_context()
        page = await context.new_page()
        async with dashboard(settings, port=port) as address:
            await page.goto(address)
            await expect(page.locator("li.row")).to_have_count(1)
        await expect(page.locator("#link")).to_contain_text("Reconnecting")
        await (await client.submit("crew", "meanwhile")).outcome(timeout=20)
        async with dashboard(settings, port=port):
            await expect(page.locator("li.row")).to_have_count(2)
            await expect(page.locator("#link")).to_contain_text("Live")
        await context.close()


async def test_a_user_who_may_only_look_sees_no_button_that_changes_something(
    browser: Browser, settings: Settings
) -> None:
    crew = Crew()
    users = Users([User("anna", "look", token_digest("token-of-anna"))])
    async with (
        factory.team(TEAM, crew.agents, on=settings) as client,
        dashboard(settings, users=users) as address,
        page_of(browser, address, complains="401") as page,
    ):
        workflow = await client.submit("crew", "a request")
        await page.goto(f"/workflows/{workflow.id}")
        await page.get_by_label("Token").fill("a-wrong-token")
        await page.keyboard.press("Enter")
        await wait_for_text(page, "The token is wrong.").to_be_visible()
        await page.get_by_label("Token").fill("token-of-anna")
        await page.keyboard.press("Enter")
        await expect(page.locator("#log-out")).to_have_text("anna")
        await expect(page.locator("#ask")).to_be_hidden()
        await page.goto(f"/workflows/{workflow.id}")
        await expect(page.locator(".node").first).to_be_visible()
        await expect(page.locator("#log-out")).to_have_text("anna")
        await expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
        await page.locator("#log-out").click()
        await expect(page.get_by_label("Token")).to_be_visible()
        answer = await page.request.get("/api/me")

    assert answer.status == 401


async def test_page_fits_a_phone_and_the_keyboard_reaches_everything(browser: Browser, settings: Settings) -> None:
    crew = Crew()
    crew.go.set()
    async with (
        factory.team(TEAM, crew.agents, on=settings) as client,
        dashboard(settings, users=Users.load("a-token-of-24-letters-xx", None)) as address,
        page_of(browser, address, viewport={"width": 390, "height": 844}, reduced_motion="reduce") as page,
    ):
        workflow = await client.submit("crew", "a request that is longer than a phone is wide, by quite some way")
        await workflow.outcome(timeout=20)
        await page.goto("/agents")
        await page.get_by_label("Token").fill("a-token-of-24-letters-xx")
        await page.keyboard.press("Enter")
        await expect(page.locator("li.row")).to_have_count(1)
        for path in ("/", f"/workflows/{workflow.id}", "/agents", "/questions", "/dead-letters"):
            await page.goto(path)
            await expect(page.locator("#link")).to_contain_text("Live")
            await expect(page.locator("li.row, .node, tbody tr, .empty").first).to_be_visible()
            wide = await page.evaluate("document.documentElement.scrollWidth")
            assert wide <= 390, path
        await page.goto("/")
        await expect(page.locator("li.row")).to_have_count(1)
        await page.keyboard.press("Tab")
        first = await page.evaluate("document.activeElement.textContent")
        await page.locator("li.row a").focus()
        await page.keyboard.press("Enter")
        await expect(page.locator(".node").first).to_be_visible()
        await page.locator(".node[tabindex='0']").focus()
        await page.keyboard.press("ArrowRight")
        await page.keyboard.press("Enter")
        await expect(page.locator(".node.chosen")).to_have_count(1)
        animated = await page.evaluate("document.getAnimations().length")

    assert first == "Skip to the content"
    assert animated == 0


async def test_stream_survives_the_broker_and_reports_the_outage(tmp_path: Path) -> None:
    crew = Crew()
    crew.go.set()
    async with EmbeddedBroker(tmp_path, port=free_ports(1)[0]) as broker:
        settings = Settings(url=broker.url, ack_wait=2.0, shutdown_grace=2.0)
        async with factory.team(TEAM, crew.agents, on=settings) as client:
            bus = await connect(settings, name="dashboard", wait=5.0)
            server = await Dashboard.open(Client(bus), settings)
            folding = asyncio.create_task(server.run_projections())
            async with event_stream(server.app, "/api/live/workflows") as page:
                while not (await page.next()).data["live"]["broker"]:
                    pass
                os.kill(broker.pid or 0, signal.SIGKILL)
                await broker.wait_for_exit()
                while (await page.next()).data["live"]["broker"]:
                    pass
                await broker.restart()
                workflow = await client.submit("crew", "after the storm")
                await workflow.outcome(timeout=30)
                rows: list[Any] = []
                while not any(row["status"] == "completed" for row in rows):
                    rows = (await page.next()).data.get("rows", [])
            folding.cancel()
            await bus.close()
