"""Batches in a real browser: upload a file of requests, and see its progress, problems and results."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect
from support import factory
from support.asgi import Answer, request
from support.browser import IN_BROWSER, page_of, served, wait_for_text
from support.dashboard import watching
from support.waiting import until

from pointsman.authoring.agent import Agent, agent
from pointsman.authoring.context import Context
from pointsman.bus.memory.bus import MemoryBus
from pointsman.errors import RefusedError
from pointsman_schemas.events import Usage
from pointsman_schemas.plan import Plan
from pointsman_schemas.team import Fixed, Limits, Team

pytestmark = IN_BROWSER

PLAN = Plan.model_validate({"goal": "answer", "tasks": [{"id": "answer", "agent": "clerk", "intent": "answer"}]})
TEAM = Team(name="clerks", strategy=Fixed(plan=PLAN, synthesizer=None), limits=Limits(deadline=60))
BYTES = {"content_type": "application/octet-stream"}


def clerk(asked: list[str], go: asyncio.Event) -> Agent:
    @agent(name="clerk", description="Answers", concurrency=64)
    async def answer(request: str, context: Context) -> str:
        asked.append(request)
        context.record_usage(Usage(calls=1, input_tokens=1_000, output_tokens=200, cost=0.25))
        if request.startswith("bad"):
            raise RefusedError("no such order")
        if request.startswith("slow"):
            await go.wait()
        return f"re {request}"

    return answer


async def choose(page: Page, path: Path) -> None:
    await page.get_by_label("Team").fill("clerks")
    await page.get_by_label("File").set_input_files(path)


async def test_a_file_is_run_paused_resumed_and_its_results_are_taken(browser: Browser, tmp_path: Path) -> None:
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
        await wait_for_text(page, "No batches.").to_be_visible()
        await choose(page, file)
        await page.get_by_label("Columns").fill("quest")
        await page.get_by_role("button", name="Start").click()
        await expect(page.get_by_role("alert")).to_contain_text("orders.csv has no column 'quest'")
        await page.get_by_label("Columns").fill("question")
        await page.get_by_role("button", name="Start").click()

        batch = page.locator(".batch")
        await expect(batch).to_contain_text("3 of 4 rows · 1 not completed · 3,600 tokens · $0.75")
        async with page.expect_download() as coming:  # while the batch runs
            await batch.get_by_role("link", name="Results").click()
        assert len((await asyncio.to_thread(Path(await (await coming.value).path()).read_text)).splitlines()) == 3
        await batch.get_by_text("Rows that did not complete").click()
        await expect(batch.locator(".row-problems")).to_contain_text("Row 2 failed")
        await expect(batch.locator(".row-problems")).to_contain_text("no such order")
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await batch.get_by_role("button", name="Pause").click()
        await expect(batch.locator(".status")).to_have_text("Paused")
        await batch.get_by_role("button", name="Resume").click()
        await expect(batch.locator(".status")).to_have_text("Running")
        go.set()
        await expect(batch.locator(".status")).to_have_text("Ended")
        await expect(batch).to_contain_text("4 of 4 rows · 1 not completed · 4,800 tokens · $1.00")
        async with page.expect_download() as coming:
            await batch.get_by_role("link", name="Results").click()
        lines = (await asyncio.to_thread(Path(await (await coming.value).path()).read_text)).splitlines()
        await choose(page, file)
        await page.get_by_role("button", name="Start").click()
        await expect(page.locator(".batch")).to_have_count(1)  # the same file is the same batch

    found = {one["row"]: one["status"] for one in map(json.loads, lines)}
    assert found == {1: "completed", 2: "failed", 3: "completed", 4: "completed"}
    assert sorted(asked) == ["a", "b", "bad", "slow"]  # no row is repeated


async def test_a_batch_continues_in_another_dashboard_and_repeats_no_row() -> None:
    asked: list[str] = []
    go = asyncio.Event()
    rows = b'"one"\n"slow"\n"bad"\n'
    path = "/api/batches?team=clerks&name=r.jsonl"
    async with factory.team(TEAM, [clerk(asked, go)]) as client:
        bus = client.bus
        assert isinstance(bus, MemoryBus)
        async with watching(bus) as dashboard:
            started = await request(dashboard.app, "POST", path, rows, **BYTES)
            await until(lambda: len(asked) == 3)
        go.set()
        async with watching(bus) as dashboard:
            id = started.json["id"]
            await until(lambda: [record.id for record in dashboard.batches.listed()] == [id])
            await until(lambda: dashboard.batches.listed()[0].ended_at)
            again = await request(dashboard.app, "POST", path, rows, **BYTES)
            answer = await request(dashboard.app, "GET", f"/api/batches/{id}/results")

    results = [json.loads(line) for line in answer.body.splitlines()]
    assert [(one["row"], one["status"]) for one in results] == [(1, "completed"), (2, "completed"), (3, "failed")]
    assert [one["answer"] for one in results[:2]] == ["re one", "re slow"]
    assert (again.json["id"], again.json["status"], again.json["done"]) == (id, "completed", 3)
    assert (again.json["tokens"], again.json["cost"]) == (3_600, 0.75)
    assert [(problem["row"], problem["reason"]) for problem in again.json["problems"]] == [(3, "answer: no such order")]
    assert sorted(asked) == ["bad", "one", "slow"]


@pytest.mark.parametrize(
    ("query", "body", "status", "said"),
    [
        ("team=clerks&name=r.txt", b"x", 422, "'r.txt' is not one of .csv"),
        ("team=clerks&name=r.csv", b"a,a\n1,2\n", 422, "r.csv has two columns with the name 'a'"),
        ("team=clerks&name=r.csv", b"a\n", 422, "the batch has no row"),
        ("team=clerks&name=r.csv", b"a,b\n1,2\n3\n", 422, "row 2 is not a request: the row has 1 values"),
        ("team=clerks&name=r.jsonl", b'"one"\n7\n', 422, "row 2 is not a request: the request is 7"),
        ("team=clerks&name=r.csv", b"a\n1\n2\n3\n4\n", 413, "POINTSMAN_BATCH_ROWS"),
        ("team=clerks&name=r.csv", b"a\n" + 2_000 * b"1", 413, "POINTSMAN_BATCH_BYTES"),
        ("team=clerks&name=r.csv&concurrency=0", b"a\n1\n", 422, "the concurrency is 0;"),
        ("team=clerks&name=r.csv&map=a&map=b", b"a,b\n1,2\n", 422, "--map is either one COLUMN"),
        ("team=*&name=r.csv", b"a\n1\n", 422, "team"),
    ],
)
async def test_a_file_that_is_no_batch_is_refused(query: str, body: bytes, status: int, said: str) -> None:
    async with watching(MemoryBus(), batch_rows=3, batch_bytes=1_024) as dashboard:
        answer = await request(dashboard.app, "POST", f"/api/batches?{query}", body, **BYTES)
        listed = dashboard.batches.listed()

    assert (answer.status, list(listed)) == (status, [])
    assert said in answer.json["error"]
    assert "/tmp" not in answer.json["error"]


async def test_more_batches_than_the_bound_are_refused_until_one_is_cancelled() -> None:
    path = "/api/batches?team=none&name=r.csv"
    async with watching(MemoryBus()) as dashboard:

        async def start(number: int) -> Answer:
            return await request(dashboard.app, "POST", path, f"a\n{number}\n".encode(), **BYTES)

        begun = [await start(number) for number in range(10)]
        await until(lambda: len(dashboard.batches.listed()) == 10)
        refused = await start(10)
        first = begun[0].json["id"]
        cancelled = await request(dashboard.app, "POST", f"/api/batches/{first}/cancel", {})
        ended = await until(lambda: [one for one in dashboard.batches.listed() if one.ended_at])
        late = await request(dashboard.app, "POST", f"/api/batches/{first}/pause", {})
        other = await start(0)
        unknown = await request(dashboard.app, "POST", "/api/batches/none/pause", {})
        odd = await request(dashboard.app, "POST", f"/api/batches/{first}/stop", {})

    assert [answer.status for answer in begun] == [200] * 10
    assert (refused.status, "10 of 10 open batches;" in refused.json["error"]) == (429, True)
    assert (cancelled.json["status"], [one.id for one in ended]) == ("cancelling", [first])
    assert (late.status, unknown.status, odd.status) == (409, 404, 404)
    assert (other.status, other.json["id"] == first) == (200, False)  # a cancelled batch is not continued
