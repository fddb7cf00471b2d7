"""The OpenAPI document describes every response to requests that are generated from it."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest
from support import factory
from support.crew import planner, synthesizer, team, worker
from support.gateway import served_gateway

from pointsman.gateway import catalog, schedules
from pointsman.gateway.keys import KeyStore
from pointsman.index.callers import CallerLimits
from pointsman.settings import Settings

pytestmark = pytest.mark.timeout(600)

INVALID_TIMES = """
[[operations]]
include-name = "POST /v1/schedules"
checks.positive_data_acceptance.expected-statuses = ["2xx", "401", "403", "404", "409", "422", "429"]

[[operations]]
include-name = "POST /v1/webhooks"
checks.positive_data_acceptance.expected-statuses = ["2xx", "401", "403", "422", "429"]
"""
"""Configuration that accepts refusals of these texts, because JSON Schema cannot define cron expressions and others."""
SECONDS = 300  # a run takes about 25 s, and longer on a busy machine


async def test_schemathesis_finds_nothing(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams of events are excluded, because a stream lasts as long as its workflow."""
    monkeypatch.setattr(catalog, "_RESTART_S", 0.0)  # hundreds of generated requests have a team that does not exist
    monkeypatch.setattr(schedules, "_TIMEOUT_S", 0.1)
    (tmp_path / "schemathesis.toml").write_text(INVALID_TIMES)
    async with factory.team(team, [planner, synthesizer, worker], on=settings) as crew:
        limits = CallerLimits(requests_per_minute=1_000_000, running=1_000_000)
        store = await KeyStore.open(crew.bus, crew.subjects)
        key = (await store.create("tester", operator=True, limits=limits)).text
        async with served_gateway(settings, gateway_require_key=True) as address:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "schemathesis.cli", "run", f"{address}/openapi.json"),
                *("--header", f"Authorization: Bearer {key}", "--checks", "all", "--max-examples", "3"),
                *("--exclude-path-regex", "/events$", "--phases", "examples,coverage,fuzzing", "--seed", "1"),
                *("--generation-database", "none", "--no-color", "--request-timeout", "60"),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                cwd=tmp_path,
            )
            try:
                async with asyncio.timeout(SECONDS):
                    said, _ = await process.communicate()
            finally:
                if process.returncode is None:
                    process.kill()

    text = said.decode()
    assert process.returncode == 0, text[-6000:]
    assert int(re.search(r"(\d+) generated", text)[1]) > 200  # type: ignore[index]
