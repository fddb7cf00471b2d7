"""Webhooks in a real browser: create and change endpoints, list deliveries and send them again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Browser, expect
from support import factory
from support.asgi import event_stream, request
from support.browser import IN_BROWSER, page_of, served, wait_for_text
from support.dashboard import watching
from support.factory import echo, planner_of, synthesizer
from support.receiver import Reply, receiving

from pointsman.bus.memory.bus import MemoryBus
from pointsman.client.client import Client
from pointsman.clock import SystemClock
from pointsman.ports.bus import Bus
from pointsman.settings import Settings
from pointsman.web.users import User, Users, token_digest
from pointsman.webhooks.endpoint_store import EndpointStore
from pointsman.webhooks.service import WebhookService

pytestmark = IN_BROWSER

MEMBERS = [planner_of(factory.ONE_TASK), echo("a"), synthesizer]


@asynccontextmanager
async def delivering(bus: Bus) -> AsyncIterator[None]:
    """Run a webhook service on a bus, with one quick retry."""
    settings = Settings(webhook_retries="0.05", webhook_private_networks=True)
    stop = asyncio.Event()
    running = asyncio.create_task(WebhookService(bus, settings, SystemClock()).run(stop))
    try:
        yield
    finally:
        stop.set()
        async with asyncio.timeout(20):
            await running


async def test_an_endpoint_is_made_and_changed_and_an_event_is_sent_again(browser: Browser) -> None:
    view = {"width": 390, "height": 844}
    async with (
        receiving(Reply(500), Reply(500)) as receiver,
        factory.team(factory.CREW, MEMBERS) as client,
        served(client, webhook_private_networks=True) as address,
        page_of(browser, address, complains="422", viewport=view, color_scheme="dark") as page,
    ):
        await page.goto("/webhooks")
        await wait_for_text(page, "No endpoints yet.").to_be_visible()
        await page.get_by_text("New endpoint").click()
        form = page.get_by_role("form", name="New endpoint")
        await form.get_by_label("URL").fill("https://user:secret@a.b/")
        await form.get_by_role("button", name="Create").click()
        await expect(page.get_by_role("alert")).to_contain_text("the URL has a login")
        await form.get_by_label("URL").fill(receiver.url)
        await form.get_by_label("Teams").fill("crew, other")
        await form.get_by_label("Question asked").uncheck()
        await form.get_by_role("button", name="Create").click()
        secret = page.get_by_role("button", name="whsec_")
        await expect(secret).to_be_focused()
        first = await secret.inner_text()
        await page.get_by_role("button", name="Close").click()
        await expect(secret).to_have_count(0)
        await wait_for_text(page, "No webhook service runs").to_be_visible()

        async with delivering(client.bus):
            await expect(page.get_by_text("No webhook service runs")).to_be_hidden()
            endpoint = page.get_by_role("list", name="Endpoints").get_by_role("listitem")
            await expect(endpoint).to_contain_text("Workflow ended, Dead letter stored of crew, other")
            workflow = await client.submit("crew", "Is it up?")
            deliveries = page.get_by_role("list", name="Deliveries").get_by_role("listitem")
            await expect(deliveries.locator(".status")).to_have_text("Failed")
            await expect(deliveries).to_contain_text("status: 500")
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            await endpoint.get_by_role("button", name="New secret").click()
            await page.get_by_role("dialog").get_by_role("button", name="New secret").click()
            await expect(secret).to_be_visible()
            second = await secret.inner_text()
            await deliveries.get_by_role("button", name="Send").click()
            await expect(deliveries.locator(".status")).to_have_text("Delivered")
            await expect(endpoint).to_contain_text("1 delivered")
            await page.get_by_label("Status").select_option(label="Failed")
            await wait_for_text(page, "No delivery matches.").to_be_visible()
            await page.get_by_label("Status").select_option(label="Any status")
            await deliveries.get_by_role("link").click()
            await expect(page).to_have_url(f"{address}/workflows/{workflow.id}")
            await page.go_back()
            await endpoint.get_by_role("button", name="Disable").click()
            await expect(endpoint).to_contain_text("disabled by dashboard")
            await endpoint.get_by_role("button", name="Enable").click()
            await expect(endpoint.locator(".status")).to_have_text("Enabled")
            await endpoint.get_by_role("button", name="Delete").click()
            await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
            await expect(endpoint).to_have_count(0)

    assert first != second
    assert receiver.received[0].verify(first)
    assert receiver.received[-1].verify(second)["data"]["workflow_id"] == workflow.id


async def test_only_operators_change_endpoints_and_read_whole_urls() -> None:
    users = Users([User("anna", "operate", token_digest("a" * 20)), User("ben", "approve", token_digest("b" * 20))])
    anna, ben = {"authorization": f"Bearer {'a' * 20}"}, {"authorization": f"Bearer {'b' * 20}"}
    bus = MemoryBus()
    async with watching(bus, users=users) as dashboard:
        url = {"url": "https://example.org/hook/s3cret"}
        refused = await request(dashboard.app, "POST", "/api/webhooks", url, **ben)
        made = await request(dashboard.app, "POST", "/api/webhooks", url, **anna)
        path = f"/api/webhooks/{made.json['id']}"
        others = [
            await request(dashboard.app, "POST", f"{path}/{action}", {}, **ben)
            for action in ("disable", "rotate", "delete", "resend")
        ]
        unfit = [
            await request(dashboard.app, "POST", "/api/webhooks", body, **anna)
            for body in (
                {}, {"url": "http://a.b/"}, {**url, "events": ["x"]}, {**url, "teams": "crew"}, {**url, "teams": ["*"]},
                {**url, "evnts": []},
            )
        ]  # fmt: skip
        odd = [
            await request(dashboard.app, "POST", f"{path}/wake", {}, **anna),
            await request(dashboard.app, "POST", "/api/webhooks/wh_0/enable", {}, **anna),
            await request(dashboard.app, "POST", f"{path}/resend", {"event": "evt_0"}, **anna),
            await request(dashboard.app, "POST", f"{path}/resend", {}, **anna),
        ]
        shown = []
        for headers in (anna, ben):
            async with event_stream(dashboard.app, "/api/live/webhooks", **headers) as page:
                shown.append((await page.until("webhooks")).data["endpoints"][0])
    (kept,) = await (await EndpointStore.open(bus, Client(bus).subjects)).list()

    assert made.json["secret"].startswith("whsec_")
    assert {each.status for each in (refused, *others)} == {403}
    assert {each.status for each in unfit} == {422}
    assert [each.status for each in odd] == [404, 404, 404, 422]
    assert [each["url"] for each in shown] == ["https://example.org/hook/s3cret", "https://example.org/…"]
    assert not any(["secret" in str(each).replace("s3cret", "") for each in shown])
    assert kept.disabled_at is None
