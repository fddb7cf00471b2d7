"""A conversation with a team in a real browser shows its tasks, text, questions and files."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, Route, expect
from support import factory
from support.asgi import request
from support.browser import IN_BROWSER, page_of, served, wait_for_text
from support.dashboard import watching
from support.factory import echo, planner_of, synthesizer

from pointsman.authoring.agent import Agent, agent
from pointsman.authoring.context import Context
from pointsman.bus.jetstream.bus import connect
from pointsman.bus.memory.bus import MemoryBus
from pointsman.client.client import Client
from pointsman.ports.bus import Bus
from pointsman.settings import Settings
from pointsman.web.users import User, Users, token_digest
from pointsman_schemas.card import Role
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import Delta
from pointsman_schemas.role_io import Synthesis, SynthesizerInput
from pointsman_schemas.strict_json import dump
from pointsman_schemas.team import Limits, PlanAndExecute, Team

pytestmark = IN_BROWSER

DESK = Team(name="desk", limits=Limits(deadline=60))


@asynccontextmanager
async def bus_of(settings: Settings) -> AsyncIterator[Bus]:
    bus = await connect(settings, name="test", wait=5.0)
    await bus.set_up()
    try:
        yield bus
    finally:
        await bus.close()


async def write(bus: Bus, client: Client, context: Context, agent: str, text: str) -> None:
    """Stream a piece of text while the attempt runs, as a model does."""
    delta = Delta(
        workflow_id=context.workflow_id, task_id=context.task_id, attempt=context.attempt, agent=agent, text=text
    )
    envelope = Envelope(id="delta", type=Delta.event_type, source="test", time=datetime.now(UTC))
    subject = client.subjects.delta("desk", context.workflow_id, agent)
    await bus.broadcast(subject, dump(delta), encode(envelope))


async def say(page: Page, text: str) -> None:
    await page.get_by_label("Message to desk").fill(text)
    await page.keyboard.press("Enter")


async def test_a_turn_shows_tools_and_text_while_they_come_and_keeps_files(
    browser: Browser, settings: Settings, tmp_path: Path
) -> None:
    found, first, second, third = (asyncio.Event() for _ in range(4))
    histories: list[list[str]] = []

    async with bus_of(settings) as bus:
        client = Client(bus, namespace=settings.namespace, user="anna")

        @agent(name="finder", description="Finds charges")
        async def find(request: str, context: Context) -> str:
            histories.append([turn.request for turn in context.history.turns] if context.history else [])
            context.progress("reading the statements")
            await found.wait()
            async with context.tool("find_charges"):
                await asyncio.sleep(0)
            for name in context.files:
                await context.files.add(f"report-{name}", b"two charges")
            return "two charges"

        @agent(name="synthesizer", description="Writes", role=Role.SYNTHESIZE)
        async def writer(asked: SynthesizerInput, context: Context) -> Synthesis:
            await first.wait()
            await write(bus, client, context, "synthesizer", "You were ")
            await second.wait()
            await write(bus, client, context, "finder", "not by the synthesizer, ")
            await write(bus, client, context, "synthesizer", "charged twice")
            await third.wait()
            return Synthesis(answer="You were charged twice.")

        members = [planner_of({"id": "find", "agent": "finder", "intent": "find the charges"}), find, writer]
        async with (
            factory.team(DESK, members, on=settings),
            served(client) as address,
            page_of(browser, address) as page,
        ):
            await page.goto("/threads")
            await wait_for_text(page, "No conversations yet.").to_be_visible()
            await page.get_by_label("Team", exact=True).fill("desk")
            await page.keyboard.press("Enter")
            await wait_for_text(page, "Nothing has been said yet.").to_be_visible()
            invoice = tmp_path / "invoice.pdf"
            invoice.write_bytes(b"%PDF " * 60_000)
            await page.locator("input[type=file]").set_input_files(invoice)
            await expect(page.locator(".chips")).to_contain_text("293 kB")
            await say(page, "I was charged twice")

            turn = page.locator(".turn").first
            await expect(turn.locator(".work")).to_contain_text("reading the statements")
            await expect(turn.get_by_role("link", name="invoice.pdf")).to_be_visible()
            found.set()
            await expect(turn.locator(".calls:not([hidden])")).to_contain_text(re.compile(r"find_charges \d"))
            await expect(turn.locator(".status").first).to_have_text("Running")
            first.set()
            answer = turn.get_by_label("Answer").locator(".text")
            await expect(answer).to_have_text("You were ")
            second.set()
            await expect(answer).to_have_text("You were charged twice")
            third.set()
            await expect(answer).to_have_text("You were charged twice.")
            await expect(turn.locator(".status").first).to_have_text("Completed")
            await expect(page.get_by_role("status").filter(has_text="Completed. You were")).to_have_count(1)

            await say(page, "And now?")
            await expect(page.locator(".turn")).to_have_count(2)
            await expect(page.locator(".turn").nth(1).locator(".status").first).to_have_text("Completed")
            await page.reload()
            await expect(page.locator(".turn")).to_have_count(2)
            async with page.expect_download() as coming:
                await page.locator(".turn").first.get_by_role("link", name="report-invoice.pdf").click()
            downloaded = Path(await (await coming.value).path())
            assert await asyncio.to_thread(downloaded.read_bytes) == b"two charges"
            await page.get_by_role("link", name="Conversations", exact=True).click()
            await expect(page.locator(".thread-row").nth(1)).to_contain_text("I was charged twice")
            thread = await factory.ended_thread(client, 2)

    assert histories == [[], ["I was charged twice"]]
    assert (thread.caller, [turn.outcome for turn in thread.turns]) == ("anna", ["completed", "completed"])


async def test_a_question_is_answered_in_the_chat_and_a_turn_is_cancelled(browser: Browser) -> None:
    hold = asyncio.Event()

    @agent(name="payer", description="Pays")
    async def pay(request: str, context: Context) -> str:
        if request == "wait":
            await hold.wait()
        return f"paid from {await context.ask('Which account?', choices=['savings', 'current'])}"

    team = Team(name="desk", strategy=PlanAndExecute(synthesizer=None), limits=Limits(deadline=60))
    members: list[Agent] = [planner_of({"id": "pay", "agent": "payer", "intent": "pay"}), pay]
    async with factory.team(team, members) as client, served(client) as address, page_of(browser, address) as page:
        await page.goto(f"/threads/desk/{client.user}/t1")
        await say(page, "Pay the bill")
        turn = page.locator(".turn").first
        await expect(turn).to_contain_text("Which account?")
        await expect(page.get_by_role("status").filter(has_text="A question waits for you.")).to_have_count(1)
        await turn.get_by_label("Answer", exact=True).locator("select").select_option(label="current")
        await turn.get_by_role("button", name="Answer").click()
        await expect(turn.get_by_label("Answer", exact=True).locator(".text")).to_have_text("paid from current")
        await expect(turn.locator(".letter")).to_have_count(0)

        await say(page, "wait")
        later = page.locator(".turn").nth(1)
        await expect(later.locator(".step").last).to_contain_text("Running")
        await later.get_by_role("button", name="Cancel this turn").click()
        await expect(later.locator(".status").first).to_have_text("Cancelled")
        thread = await factory.ended_thread(client, 2)
        hold.set()

    assert [turn.outcome for turn in thread.turns] == ["completed", "cancelled"]


async def test_a_conversation_of_another_caller_is_read_only(browser: Browser) -> None:
    members = [planner_of(factory.ONE_TASK), echo("a"), synthesizer]
    view = {"width": 360, "height": 740}
    async with (
        factory.team(Team(name="desk", limits=Limits(deadline=60)), members) as client,
        served(client) as address,
        page_of(browser, address, viewport=view, color_scheme="dark") as page,
    ):
        await client.for_user("ben").thread("desk", "t9").ask("Is it " + "very" * 60 + " long?", timeout=20)
        await page.goto("/threads")
        await page.get_by_role("link", name="Is it").click()

        await expect(page.locator(".turn").get_by_label("Answer").locator(".text")).to_have_text("joined")
        await wait_for_text(page, "The conversation belongs to ben.").to_be_visible()
        await expect(page.get_by_label("Message to desk")).to_be_hidden()
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_a_turn_that_no_supervisor_has_taken_is_shown_and_survives_a_reload(browser: Browser) -> None:
    bus = MemoryBus()
    async with served(Client(bus, user="anna")) as address, page_of(browser, address) as page:
        await page.goto("/threads/desk/anna/t1")
        await say(page, "Is anybody there?")
        await expect(page.locator(".turn .status")).to_have_text("Not admitted")
        await expect(page.get_by_label("Message to desk")).to_have_value("")
        await page.reload()
        await expect(page.locator(".turn")).to_contain_text("Is anybody there?")
        await page.get_by_role("button", name="Cancel this turn").click()
        await wait_for_text(page, "The cancellation was requested.").to_be_visible()


async def test_a_late_answer_to_a_sent_turn_changes_neither_its_status_nor_the_next_text(browser: Browser) -> None:
    """The event for the turn arrives before the response to its POST."""
    hold, told = asyncio.Event(), asyncio.Event()

    @agent(name="a", description="Holds")
    async def holding(request: str, context: Context) -> str:
        await hold.wait()
        return "held"

    async def answer_late(route: Route) -> None:
        answer = await route.fetch()
        await told.wait()
        await route.fulfill(response=answer)

    members = [planner_of(factory.ONE_TASK), holding, synthesizer]
    async with factory.team(DESK, members) as client, served(client) as address, page_of(browser, address) as page:
        await page.route("**/api/requests", answer_late)
        await page.goto(f"/threads/desk/{client.user}/t1")
        await say(page, "Hold")
        status = page.locator(".turn .status").first
        await expect(status).to_have_text("Running")
        await page.get_by_label("Message to desk").fill("And then?")
        told.set()
        await expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()

        await expect(page.locator(".turn")).to_have_count(1)
        assert await status.text_content() == "Running"
        await expect(page.get_by_label("Message to desk")).to_have_value("And then?")
        hold.set()
        await expect(status).to_have_text("Completed")


async def test_users_write_in_their_own_name_and_only_operators_do() -> None:
    users = Users([User("anna", "operate", token_digest("a" * 20)), User("ben", "approve", token_digest("b" * 20))])
    bus = MemoryBus()
    asked = {"team": "desk", "input": "hello", "thread": "t1"}
    async with watching(bus, users=users) as dashboard:
        sent = await request(dashboard.app, "POST", "/api/requests", asked, authorization=f"Bearer {'a' * 20}")
        refused = await request(dashboard.app, "POST", "/api/requests", asked, authorization=f"Bearer {'b' * 20}")
        upload = "/api/files?team=desk&request_id=r1&name=a.txt"
        kept_out = await request(dashboard.app, "POST", upload, b"x", authorization=f"Bearer {'b' * 20}")
        queued = await Client(bus).queued_request(sent.json["id"])

    assert queued is not None
    assert (queued.caller, queued.thread) == ("anna", "t1")
    assert (refused.status, kept_out.status) == (403, 403)


@pytest.mark.parametrize(
    ("query", "headers", "status", "said"),
    [
        (
            "team=desk&request_id=r1&name=a.txt",
            {"origin": "https://evil.example"},
            403,
            "is not the origin of this page",
        ),
        ("team=desk&request_id=r1&name=a.txt", {"content_type": "text/plain"}, 422, "application/octet-stream"),
        ("team=desk&request_id=r1&name=..%2Fa", {}, 422, "a file name without slashes"),
        ("team=a b&request_id=r1&name=a.txt", {}, 422, "team"),
        ("team=desk&request_id=&name=a.txt", {}, 422, "request id"),
    ],
)
async def test_an_upload_that_does_not_fit_is_refused(
    query: str, headers: dict[str, str], status: int, said: str
) -> None:
    bytes_of = {"content_type": "application/octet-stream", **headers}
    async with watching(MemoryBus()) as dashboard:
        answer = await request(dashboard.app, "POST", f"/api/files?{query}", b"x", **bytes_of)

    assert answer.status == status
    assert said in answer.json["error"]


async def test_files_of_another_request_are_refused() -> None:
    bytes_of = {"content_type": "application/octet-stream"}
    bus = MemoryBus()
    async with watching(bus) as dashboard:
        kept = await request(dashboard.app, "POST", "/api/files?team=desk&request_id=r1&name=a.txt", b"x", **bytes_of)
        asked = {"team": "desk", "input": "hello", "files": [kept.json]}
        without = await request(dashboard.app, "POST", "/api/requests", asked)
        other = await request(dashboard.app, "POST", "/api/requests", {**asked, "request_id": "r2"})
        sent = await request(dashboard.app, "POST", "/api/requests", {**asked, "request_id": "r1"})

    assert (kept.json["owner"], kept.json["media_type"]) == (sent.json["id"], "text/plain")
    assert (without.status, other.status, sent.status) == (422, 422, 200)
    assert "uploaded for another request" in other.json["error"]
