"""Fixtures for tests with a browser, and for tests of a gateway with a team behind it."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright
from support import factory
from support.browser import find_chromium
from support.crew import planner, synthesizer, team, worker
from support.factory import RunningTeam
from support.gateway import http_client, served_gateway

from pointsman.settings import Settings

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="session")
def chromium() -> str:
    """Return the path of the browser. Skip the test if there is no browser."""
    return find_chromium(CHROMIUM)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(chromium: str) -> AsyncIterator[Browser]:
    """Yield the browser of the session. Each test opens its own pages."""
    async with async_playwright() as playwright:
        # Chromium cannot use its sandbox as root.
        launched = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield launched
        await launched.close()


@pytest.fixture
async def crew(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RunningTeam]:
    """Run the team of `support/crew.py`. A test module may override this fixture with another team."""
    monkeypatch.setenv("CREW_JOURNAL", str(tmp_path / "journal"))
    async with factory.team(team, [planner, synthesizer, worker], on=settings) as running:
        yield running


@pytest.fixture
async def client(crew: RunningTeam, settings: Settings) -> AsyncIterator[httpx2.AsyncClient]:
    """Return a client of a gateway for `crew`."""
    async with served_gateway(settings) as address, http_client(address) as client:
        yield client
