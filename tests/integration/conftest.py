"""What tests with a browser ask for."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, async_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture
def chromium() -> str:
    """Where it is. Without one there is nothing to test here, which is a failure where one is said to be."""
    if CHROMIUM is None:
        reason = "there is no chromium here (apt-get install chromium)"
        if os.environ.get("POINTSMAN_NEEDS_CHROMIUM"):
            pytest.fail(reason)
        pytest.skip(reason)
    return CHROMIUM


@pytest.fixture
async def browser(chromium: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        # As root there is no sandbox to be had.
        launched = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield launched
        await launched.close()
