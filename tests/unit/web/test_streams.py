"""A page first gets all data, then changes. After a reconnect it gets the missed changes."""

from __future__ import annotations

import pytest
from starlette.requests import Request as HttpRequest
from support.asgi import event_stream
from support.dashboard import letter, publish, until_read, watching
from support.history import TEAM, WORKFLOW, completed, started, store

from pointsman.bus.memory.bus import MemoryBus


async def test_list_is_sent_whole_and_then_by_changes() -> None:
    bus = MemoryBus()
    await store(bus, *completed())
    async with watching(bus) as dashboard, event_stream(dashboard.app, "/api/live/workflows") as page:
        while not (first := await page.until("page")).data["rows"]:
            pass
        await store(bus, started("wf_2", input="the second"), workflow="wf_2")
        second = await page.until("rows")

    (row,) = first.data["rows"]
    assert (row["id"], row["status"], row["done"], row["total"]) == (WORKFLOW, "completed", 2, 2)
    assert [(row["id"], row["status"], row["fits"]) for row in second.data["rows"]] == [("wf_2", "running", True)]
    assert second.data["totals"]["count"] == 2
    assert (first.id, second.id) == (1, 2)


async def test_returning_page_gets_only_what_it_missed() -> None:
    bus = MemoryBus()
    await store(bus, *completed())
    await store(bus, started("wf_2"), workflow="wf_2")
    await store(bus, started("wf_3"), workflow="wf_3")
    async with watching(bus) as dashboard:
        await until_read(dashboard, 3)
        async with event_stream(dashboard.app, "/api/live/workflows", last_event_id="2") as page:
            missed = await page.next()

    assert (missed.name, missed.id) == ("rows", 3)
    assert [row["id"] for row in missed.data["rows"]] == ["wf_3"]


async def test_change_during_a_send_is_in_the_next_message() -> None:
    bus = MemoryBus()
    await store(bus, *completed())
    async with watching(bus) as dashboard:
        await until_read(dashboard, 1)
        streams = dashboard.streams
        rows = streams.workflows(HttpRequest({"type": "http", "headers": [], "query_string": b""}))
        first = await anext(rows)
        await store(bus, started("wf_2"), workflow="wf_2")
        await until_read(dashboard, 2)
        second = await anext(rows)
        await rows.aclose()

    assert first.startswith(b"id: 1\nevent: page")
    assert second.startswith(b"id: 2\nevent: rows")


async def test_position_in_another_log_is_ignored() -> None:
    bus = MemoryBus()
    await store(bus, *completed())
    async with watching(bus) as dashboard:
        await until_read(dashboard, 1)
        async with event_stream(dashboard.app, "/api/live/workflows", last_event_id="900") as page:
            assert (await page.next()).name == "page"


@pytest.mark.parametrize("query", ["?offset=-1", "?offset=x", "?minutes=99999999999999", "?offset=" + "9" * 30])
async def test_an_odd_query_still_gives_a_page(query: str) -> None:
    async with (
        watching(MemoryBus()) as dashboard,
        event_stream(dashboard.app, f"/api/live/workflows{query}", last_event_id="x1") as page,
    ):
        assert (await page.next()).name == "page"


async def test_streams_end_when_the_dashboard_does() -> None:
    bus = MemoryBus()
    async with watching(bus) as dashboard, event_stream(dashboard.app, "/api/live/agents") as page:
        await page.until("agents")
        dashboard.stop()


async def test_status_lists_what_needs_attention() -> None:
    bus = MemoryBus()
    await publish(bus, f"pointsman.dead.{TEAM}.{WORKFLOW}.d1", letter("d1"))
    async with watching(bus) as dashboard, event_stream(dashboard.app, "/api/live/dead-letters") as page:
        live = (await page.until("letters")).data["live"]

    assert live == {
        "namespace": "pointsman", "broker": True, "read": 1.0, "letters": 1, "questions": 0, "stuck": 0,
        "teams": [],
    }  # fmt: skip
