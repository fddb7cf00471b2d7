"""The index filters the rows of the list. The rows include requests that wait for admission."""

from __future__ import annotations

import pytest
from support.asgi import event_stream, request
from support.dashboard import until_read, watching
from support.history import WORKFLOW, at, completed, ended, started, store

from pointsman.bus.memory.bus import MemoryBus
from pointsman.client.client import Client
from pointsman_schemas.log import TimerArmed


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", ["wf_3", "wf_2", WORKFLOW]),
        ("?status=running", ["wf_3", "wf_2"]),
        ("?team=other", ["wf_3"]),
        ("?text=PUMP", ["wf_2"]),
        ("?text=wf_3", ["wf_3"]),
        ("?text=Fitter", [WORKFLOW]),
        ("?minutes=5", []),
        ("?offset=2", [WORKFLOW]),
        ("?team=absent", []),
    ],
)
async def test_filters_are_applied_where_the_rows_are(query: str, found: list[str]) -> None:
    bus = MemoryBus()
    await store(bus, *completed())
    await store(bus, started("wf_2", input="mend the pump"), workflow="wf_2")
    await store(bus, started("wf_3", team="other"), workflow="wf_3", team="other")
    async with watching(bus) as dashboard:
        await until_read(dashboard, 3)
        async with event_stream(dashboard.app, f"/api/live/workflows{query}") as page:
            rows = (await page.next()).data["rows"]

    assert [row["id"] for row in rows] == found


async def test_a_row_that_no_longer_fits_reports_it() -> None:
    bus = MemoryBus()
    await store(bus, started())
    async with watching(bus) as dashboard, event_stream(dashboard.app, "/api/live/workflows?status=running") as page:
        while not (await page.until("page")).data["rows"]:
            pass
        await store(bus, ended("completed", 6), number=2)
        (row,) = (await page.until("rows")).data["rows"]

    assert (row["status"], row["fits"]) == ("completed", False)


async def test_queued_request_is_listed_with_the_reason_until_taken() -> None:
    bus = MemoryBus()
    client = Client(bus)
    first = await client.submit("shpo", "mend the pump")
    async with watching(bus) as dashboard, event_stream(dashboard.app, "/api/live/workflows") as page:
        while not (waiting := (await page.next()).data.get("waiting")):
            pass
        await store(bus, started(first.id, team="shpo"), workflow=first.id, team="shpo")
        while (after := await page.until("rows")).data.get("waiting") != []:
            pass

    (row,) = waiting
    assert (row["id"], row["team"], row["input"], row["status"], row["reason"]) == (
        first.id, "shpo", "mend the pump", "waiting for admission", "team shpo has no supervisor",
    )  # fmt: skip
    assert (after.data["totals"]["waiting"], after.data["totals"]["count"]) == (0, 1)


@pytest.mark.parametrize(
    ("query", "fits"),
    [
        ("", True), ("?status=waiting+for+admission", True), ("?status=running", False), ("?team=shpo", True),
        ("?team=crew", False), ("?text=PUMP", True), ("?text=hose", False), ("?minutes=5", True),
    ],
)  # fmt: skip
async def test_queued_requests_match_filters(query: str, fits: bool) -> None:
    bus = MemoryBus()
    await Client(bus).submit("shpo", "mend the pump")
    async with watching(bus) as dashboard, event_stream(dashboard.app, "/api/live/workflows") as whole:
        while not (await whole.next()).data.get("waiting"):
            pass
        async with event_stream(dashboard.app, f"/api/live/workflows{query}") as page:
            first = (await page.next()).data

    assert (len(first["waiting"]), first["totals"]["waiting"]) == ((1, 1) if fits else (0, 0))


async def test_cancelled_queued_request_is_shown_so_at_once() -> None:
    bus = MemoryBus()
    waits = await Client(bus).submit("shpo", "mend the pump")
    async with watching(bus) as dashboard, event_stream(dashboard.app, "/api/live/workflows") as page:
        while not (await page.next()).data.get("waiting"):
            pass
        answer = await request(dashboard.app, "POST", f"/api/workflows/{waits.id}/cancel", {"reason": "a typo"})
        while [row["status"] for row in (await page.next()).data.get("waiting", ())] != ["asked to end"]:
            pass
        async with event_stream(dashboard.app, f"/api/live/workflows/{waits.id}") as own:
            absent = await own.until("absent")

    assert (answer.status, absent.data["team"]) == (200, "shpo")


async def test_row_names_the_agents_a_workflow_waits_for() -> None:
    bus = MemoryBus()
    waiting = TimerArmed(at=at(0), name="wake-1", due=at(1), reason="no agent is alive that could take the request")
    await store(bus, started(), waiting)
    async with watching(bus) as dashboard, event_stream(dashboard.app, "/api/live/workflows") as page:
        while not (rows := (await page.next()).data.get("rows")):
            pass
        await store(bus, TimerArmed(at=at(1), name="wake-2", due=at(9)), number=2)
        (begun,) = (await page.until("rows")).data["rows"]

    assert (rows[0]["status"], rows[0]["reason"], begun["reason"]) == ("running", waiting.reason, "")


async def test_the_list_says_how_long_workflows_take_and_when_they_began() -> None:
    bus = MemoryBus()
    for number, seconds in enumerate((2, 4, 60)):
        name = f"wf_{number}"
        await store(bus, started(name), ended("completed", seconds, workflow=name), workflow=name)
    await store(bus, started("wf_9"), workflow="wf_9")
    async with watching(bus) as dashboard, event_stream(dashboard.app, "/api/live/workflows") as page:
        while len((first := await page.until("page")).data["rows"]) < 4:
            pass

    totals = first.data["totals"]
    assert (totals["median_seconds"], totals["p95_seconds"]) == (4, 60)
    assert [sum(part) for part in zip(*totals["activity"]["columns"], strict=True)] == [3, 0, 0, 1]
