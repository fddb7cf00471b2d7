"""A page of the dashboard in a real browser."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from pointsman.client.client import Client
from pointsman.settings import Settings
from pointsman.web.server import serve
from pointsman.web.users import Users

__all__ = ["IN_BROWSER", "find_chromium", "page_of", "served", "wait_for_text"]

IN_BROWSER = [
    pytest.mark.asyncio(loop_scope="session"),  # the tests share one browser, so they must share its event loop
    pytest.mark.timeout(120),  # a browser is slow on a busy machine; alone, a test takes three seconds
]
ELEMENT_TIMEOUT_MS = 20_000  # milliseconds until an element must appear
expect.set_options(timeout=ELEMENT_TIMEOUT_MS)


@asynccontextmanager
async def served(client: Client, *, port: int = 0, users: Users | None = None, **settings: Any) -> AsyncIterator[str]:
    stop: asyncio.Event = asyncio.Event()
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve(
            client,
            Settings(dashboard_port=port, **settings),
            users=users or Users(()),
            hosts=(),
            stop=stop,
            ready=address.set_result,
        )
    )
    try:
        async with asyncio.timeout(20):
            started_at = await address
        yield started_at
    finally:
        stop.set()
        async with asyncio.timeout(20):
            await serving


@asynccontextmanager
async def page_of(browser: Browser, address: str, *, complains: str = "", **options: Any) -> AsyncIterator[Page]:
    """Yield a new page. Fail if its console has an error or a warning that does not contain `complains`."""
    context = await browser.new_context(base_url=address, **options)
    context.set_default_timeout(ELEMENT_TIMEOUT_MS)
    page = await context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    try:
        yield page
    finally:
        await context.close()
    left = [said for said in complaints if not complains or complains not in said]
    assert left == [], left


def find_chromium(chromium: str | None) -> str:
    """Return the path. Without a browser, skip the test, or fail if `POINTSMAN_NEEDS_CHROMIUM` is set."""
    if chromium is None:
        reason = "there is no chromium here (apt-get install chromium)"
        if os.environ.get("POINTSMAN_NEEDS_CHROMIUM"):
            pytest.fail(reason)
        pytest.skip(reason)
    return chromium


def wait_for_text(page: Page, text: str) -> Any:
    return expect(page.get_by_text(text).first)
