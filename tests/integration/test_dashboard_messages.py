"""In a real browser, the page of a running workflow sends messages to the workflow and shows them."""

from __future__ import annotations

import asyncio

from playwright.async_api import Browser, expect
from support import factory
from support.asgi import request
from support.browser import IN_BROWSER, page_of, served
from support.dashboard import watching

from pointsman.authoring.agent import agent
from pointsman.authoring.context import Context
from pointsman.bus.memory.bus import MemoryBus
from pointsman.web.users import User, Users, token_digest
from pointsman_schemas.team import Pipeline, Stage, Team

pytestmark = IN_BROWSER

TEAM = Team(name="crew", strategy=Pipeline(stages=(Stage(agent="a"),)))


async def test_messages_are_sent_by_keyboard_and_shown_until_the_end(browser: Browser) -> None:
    go = asyncio.Event()

    @agent(name="a", description="Waits for messages")
    async def wait(asked: str, context: Context) -> list[str]:
        await go.wait()
        return [message.text for message in await context.messages()]

    async with (
        factory.team(TEAM, [wait]) as client,
        served(client) as address,
        page_of(browser, address, viewport={"width": 390, "height": 844}, color_scheme="dark") as page,
    ):
        workflow = await client.submit("crew", "work")
        await page.goto(f"/workflows/{workflow.id}")
        text = page.get_by_role("textbox", name="Message to the workflow")
        shown = page.get_by_role("list", name="Messages to the workflow").get_by_role("listitem")
        await text.fill("hurry")
        await text.press("Enter")
        await expect(shown).to_have_count(1)
        await expect(text).to_have_value("")
        await text.press_sequentially("in")
        await text.press("Shift+Enter")
        await text.press_sequentially("French")
        await text.press("Enter")
        await expect(shown).to_have_count(2)
        await expect(shown.nth(1)).to_contain_text(client.user)
        await expect(text).to_be_focused()
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        go.set()
        await expect(page.locator(".title .status")).to_have_text("Completed")
        await expect(text).to_be_hidden()
        await expect(page.locator("main")).to_be_focused()
        await expect(shown.nth(0)).to_contain_text("hurry")
        outcome = await workflow.outcome(timeout=20)

    assert outcome.answer == ["hurry", "in\nFrench"]


async def test_a_message_carries_the_name_of_its_user_and_counts_once() -> None:
    started, go = asyncio.Event(), asyncio.Event()

    @agent(name="a", description="Waits for messages")
    async def wait(asked: str, context: Context) -> list[str]:
        started.set()
        await go.wait()
        return [f"{message.by}: {message.text}" for message in await context.messages()]

    users = Users([User("anna", "operate", token_digest("a" * 20)), User("ben", "approve", token_digest("b" * 20))])
    anna, ben = {"authorization": f"Bearer {'a' * 20}"}, {"authorization": f"Bearer {'b' * 20}"}
    async with factory.team(TEAM, [wait]) as client:
        assert isinstance(client.bus, MemoryBus)
        async with watching(client.bus, users=users) as dashboard:
            workflow = await client.submit("crew", "work")
            await started.wait()
            path = f"/api/workflows/{workflow.id}/messages"
            body = {"text": "hurry", "message_id": "m-1"}
            refused = await request(dashboard.app, "POST", path, body, **ben)
            told = [await request(dashboard.app, "POST", path, body, **anna) for _ in range(2)]
            unfit = [
                await request(dashboard.app, "POST", path, each, **anna)
                for each in ({}, {"text": 7}, {"text": " "}, {"text": "ü" * 4_001}, {"txt": "x"})
            ]
            go.set()
            outcome = await workflow.outcome(timeout=20)
            late = await request(dashboard.app, "POST", path, {"text": "too late"}, **anna)

    assert outcome.answer == ["anna: hurry"]
    assert [each.json["number"] for each in told] == [1, 1]
    assert (refused.status, [each.status for each in unfit], late.status) == (403, [422] * 5, 409)
    assert late.json["kind"] == "message_refused"
