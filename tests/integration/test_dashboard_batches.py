"""Batches in a real browser: a file of requests, its progress, its problems, its results."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect
from support import factory
from support.asgi import request
from support.browser import page_of, served, wait_for_text
from support.dashboard import watching

from pointsman.authoring.agent import Agent, agent
from pointsman.bus.memory.bus import MemoryBus
from pointsman.errors import RefusedError
from pointsman_schemas.plan import Plan
from pointsman_schemas.team import Fixed, Limits, Team

pytestmark = pytest.mark.timeout(120)  # a browser on a busy machine; alone, each takes two or three seconds

PLAN = Plan.model_validate({"goal": "answer", "tasks": [{"id": "answer", "agent": "clerk", "intent": "answer"}]})
TEAM = Team(name="clerks", strategy=Fixed(plan=PLAN, synthesizer=None), limits=Limits(deadline=60))
BYTES = {"content_type": "application/octet-stream"}


def clerk(asked: list[str], go: asyncio.Event) -> Agent:
    @agent(name="clerk", description="Answers", concurrency=64)
    async def answer(request: str) -> str:
        asked.append(request)
        if request.startswith("bad"):
            raise RefusedError("no such order")
        if request.startswith("slow"):
            await go.wait()
        return f"re {request}"

    return answer


async def choose(page: Page, path: Path) -> None:
    await page.get_by_label("Team").fill("clerks")
    await page.get_by_label("File").set_input_files(path)


async def test_a_file_is_run_stopped_continued_and_its_results_are_taken(browser: Browser, tmp_path: Path) -> None:
    asked: list[str] = []
    go = asyncio.Event()
    file = tmp_path / "orders.csv"
    file.write_text("id,question\n" + "".join(f"{row},{text}\n" for row, text in enumerate(["a", "bad", "slow", "b"])))
    view = {"width": 360, "height": 740}
    async with (
        factory.team(TEAM, [clerk(asked, go)]) as client,
        served(client) as address,
        page_of(browser, address, complains="422", viewport=view) as page,
    ):
        await page.goto("/batches")
        await wait_for_text(page, "No batches in this dashboard.").to_be_visible()
        await choose(page, file)
        await page.get_by_label("Columns").fill("quest")
        await page.get_by_role("button", name="Start").click()
        await expect(page.get_by_role("alert")).to_contain_text("orders.csv has no column 'quest'")
        await page.get_by_label("Columns").fill("question")
        await page.get_by_role("button", name="Start").click()

        batch = page.locator(".batch")
        await expect(batch).to_contain_text("3 of 4 rows · 1 not completed")
        async with page.expect_download() as coming:  # while the batch runs
            await batch.get_by_role("link", name="Results").click()
        assert len((await asyncio.to_thread(Path(await (await coming.value).path()).read_text)).splitlines()) == 3
        await batch.get_by_text("Rows that did not complete").click()
        await expect(batch.locator(".row-problems")).to_contain_text("Row 2 failed")
        await expect(batch.locator(".row-problems")).to_contain_text("no such order")
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await batch.get_by_role("button", name="Stop").click()
        await expect(batch.locator(".status")).to_have_text("Stopped")
        await batch.get_by_role("button", name="Go on").click()
        await expect(batch.locator(".status")).to_have_text("Running")
        go.set()
        await expect(batch.locator(".status")).to_have_text("Ended")
        async with page.expect_download() as coming:
            await batch.get_by_role("link", name="Results").click()
        lines = (await asyncio.to_thread(Path(await (await coming.value).path()).read_text)).splitlines()
        await choose(page, file)
        await page.get_by_role("button", name="Start").click()
        await expect(page.locator(".batch")).to_have_count(1)  # it is the same batch

    found = {one["row"]: one["status"] for one in map(json.loads, lines)}
    assert found == {1: "completed", 2: "failed", 3: "completed", 4: "completed"}
    assert sorted(asked) == ["a", "b", "bad", "slow"]  # no row twice


async def test_another_dashboard_does_no_row_of_a_batch_twice() -> None:
    asked: list[str] = []
    rows = b'"one"\n"two"\n7\n'
    results: list[Any] = []
    async with factory.team(TEAM, [clerk(asked, asyncio.Event())]) as client:
        bus = client.bus
        assert isinstance(bus, MemoryBus)
        for _ in range(2):
            async with watching(bus) as dashboard:
                path = "/api/batches?team=clerks&name=r.jsonl"
                started = await request(dashboard.app, "POST", path, rows, **BYTES)
                batch = dashboard.batches.find(started.json["id"])
                if batch.task is not None:
                    await batch.task
                answer = await request(dashboard.app, "GET", f"/api/batches/{batch.id}/results")
                lines = [json.loads(line) for line in answer.body.splitlines()]
                results.append(sorted(lines, key=lambda one: one["row"]))
            assert not batch.folder.exists()

    assert [one["status"] for one in results[0]] == ["completed", "completed", "not_sent"]
    assert results[0] == results[1]
    assert sorted(asked) == ["one", "two"]


@pytest.mark.parametrize(
    ("query", "body", "status", "said"),
    [
        ("team=clerks&name=r.txt", b"x", 422, "'r.txt' is not one of .csv"),
        ("team=clerks&name=r.csv", b"a,a\n1,2\n", 422, "r.csv has a column twice"),
        ("team=clerks&name=r.csv", b"a\n", 422, "r.csv has 0 rows; 1 to 3"),
        ("team=clerks&name=r.csv", b"a\n1\n2\n3\n4\n", 422, "POINTSMAN_DASHBOARD_BATCH_ROWS"),
        ("team=clerks&name=r.csv&concurrency=0", b"a\n1\n", 422, "0 workflows at a time"),
        ("team=clerks&name=r.csv&map=a&map=b", b"a,b\n1,2\n", 422, "--map is either one COLUMN"),
        ("team=*&name=r.csv", b"a\n1\n", 422, "team"),
    ],
)
async def test_a_file_that_is_no_batch_is_refused(query: str, body: bytes, status: int, said: str) -> None:
    async with watching(MemoryBus(), batch_rows=3) as dashboard:
        answer = await request(dashboard.app, "POST", f"/api/batches?{query}", body, **BYTES)
        listed = dashboard.batches.as_json()

    assert (answer.status, listed) == (status, [])
    assert said in answer.json["error"]
    assert "/tmp" not in answer.json["error"]


async def test_more_batches_than_the_bound_wait_for_a_place() -> None:
    async with watching(MemoryBus()) as dashboard:
        answers = [
            await request(
                dashboard.app, "POST", "/api/batches?team=none&name=r.csv", f"a\n{number}\n".encode(), **BYTES
            )
            for number in range(5)
        ]
        stopped = await request(dashboard.app, "POST", f"/api/batches/{answers[0].json['id']}/stop", {})
        unknown = await request(dashboard.app, "POST", "/api/batches/none/stop", {})

    assert [answer.status for answer in answers] == [200] * 4 + [503]
    assert "the most that it may" in answers[4].json["error"]
    assert (stopped.json["status"], unknown.status) == ("stopped", 404)
