"""The page of a workflow shows each event once, and shows model text as plain text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from time import monotonic
from unittest.mock import Mock

import pytest
from support.asgi import event_stream, request
from support.dashboard import NASTY, publish, until_read, watching
from support.history import TEAM, WORKFLOW, at, completed, dispatched, ended, failing, started, store, tool

from pointsman.bus.memory.bus import MemoryBus
from pointsman.engine.operations.archive import Archive
from pointsman.engine.operations.archive_reader import read_archive
from pointsman.ports.bus import StoredMessage, StreamKind
from pointsman.web.sse import batches
from pointsman_schemas.card import AgentCard
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.ids import child_id_for
from pointsman_schemas.log import RetryScheduled


async def test_workflow_page_has_each_event_and_the_status() -> None:
    bus = MemoryBus()
    await store(bus, *failing())
    await publish(bus, f"pointsman.event.crew.{WORKFLOW}.fitter.r1", tool("drill", 1, 2))
    async with watching(bus) as dashboard, event_stream(dashboard.app, f"/api/live/workflows/{WORKFLOW}") as page:
        lines, view = await page.until("lines"), await page.until("view")

    said = [(line["stream"], line["actor"], line["detail"], line["tone"]) for line in lines.data]
    assert ("log", "fitter", "is handed t1", "busy") in said
    assert ("log", "helper", "failed t1 after 2 attempts: out of bolts", "bad") in said
    assert ("results", "fitter", "used drill 1.0 s", "plain") in said
    assert lines.id == lines.data[-1]["order"]
    tasks = {task["task_id"]: task for task in view.data["tasks"]}
    assert (tasks["t1"]["status"], tasks["t1"]["attempt"], tasks["t2"]["status"]) == ("failed", 2, "skipped")
    assert tasks["t1"]["children"][0]["children"][0]["name"] == "execute_tool drill"
    assert view.data["needs"] == {"t1": ["plan-1"], "t2": ["t1"]}


async def test_unreadable_request_is_named_so_on_list_and_page() -> None:
    bus = MemoryBus()
    await store(bus, started(input=""), dispatched("t1", "fitter", 1))
    async with watching(bus) as dashboard:
        await until_read(dashboard, 1)
        async with event_stream(dashboard.app, "/api/live/workflows") as page:
            (row,) = (await page.until("page")).data["rows"]
        async with event_stream(dashboard.app, f"/api/live/workflows/{WORKFLOW}") as page:
            view = await page.until("view")

    assert view.data["request"] == row["input"] == "(the request could not be read)"


async def test_reopened_workflow_page_repeats_nothing() -> None:
    bus = MemoryBus()
    await store(bus, *failing())
    async with watching(bus) as dashboard:
        async with event_stream(dashboard.app, f"/api/live/workflows/{WORKFLOW}") as page:
            seen = (await page.until("lines")).id
        await store(bus, ended("partial", 9, gaps=()), number=2)
        async with event_stream(dashboard.app, f"/api/live/workflows/{WORKFLOW}", last_event_id=str(seen)) as page:
            lines, view = await page.until("lines"), await page.until("view")

    assert [line["kind"] for line in lines.data] == ["workflow_ended"]
    assert view.data["outcome"]["answer"] == "mended"
    assert len(view.data["tasks"]) == 3


async def test_page_waits_for_a_request_without_a_supervisor() -> None:
    bus = MemoryBus()
    async with watching(bus) as dashboard, event_stream(dashboard.app, f"/api/live/workflows/{WORKFLOW}") as page:
        absent = await page.next()
        await store(bus, started(), dispatched("t1", "fitter", 1))
        view = await page.until("view")

    assert absent.name == "absent"
    assert view.data["status"] == "running"


async def test_a_log_of_another_release_says_so_and_nothing_more() -> None:
    bus = MemoryBus()
    headers = encode(Envelope(id="e", type="io.pointsman.log.v9", source="test", time=at(0)))
    await bus.publish(f"pointsman.log.{TEAM}.{WORKFLOW}", b"{}", headers)
    async with watching(bus) as dashboard, event_stream(dashboard.app, f"/api/live/workflows/{WORKFLOW}") as page:
        assert "io.pointsman.log.v9" in (await page.until("broken")).data["error"]


async def test_model_text_stays_text_and_forges_no_event() -> None:
    bus = MemoryBus()
    await store(bus, started(input=NASTY), ended("completed", 6, answer=NASTY))
    async with watching(bus) as dashboard:
        await until_read(dashboard, 1)
        async with event_stream(dashboard.app, f"/api/live/workflows/{WORKFLOW}") as page:
            view = await page.until("view")
        async with event_stream(dashboard.app, "/api/live/workflows") as page:
            row = (await page.until("page")).data["rows"][0]
        whole = await request(dashboard.app, "GET", "/api/events/log/1")

    assert view.data["input"] == view.data["outcome"]["answer"] == row["input"] == NASTY
    assert whole.headers["content-type"] == "application/json"
    assert whole.json["body"]["entries"][0]["input"] == NASTY


async def test_queued_request_is_shown_with_its_input() -> None:
    bus = MemoryBus()
    async with watching(bus) as dashboard:
        workflow = await dashboard.client.submit("shpo", "mend the pump")
        async with event_stream(dashboard.app, f"/api/live/workflows/{workflow.id}") as page:
            absent = await page.until("absent")

    assert (absent.data["team"], absent.data["input"]) == ("shpo", "mend the pump")


async def test_task_with_a_dead_agent_waits_until_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pointsman.web.sse.KEEPALIVE_INTERVAL_S", 0.05)
    bus = MemoryBus()
    await store(bus, started(), dispatched("t1", "fitter", 1))
    async with watching(bus) as dashboard, event_stream(dashboard.app, f"/api/live/workflows/{WORKFLOW}") as page:
        (absent,) = (await page.until("view")).data["tasks"]
        await bus.registry.announce(AgentCard(name="fitter", instance="i1", description="fits", version="1"))
        (present,) = (await page.until("view")).data["tasks"]

    assert (absent["status"], absent["detail"]) == (
        "waiting for an agent",
        "waiting for an agent named fitter: none is alive",
    )
    assert (present["status"], present.get("detail")) == ("handed over", None)


async def test_reopened_page_reads_only_after_a_message() -> None:
    async def silent() -> AsyncGenerator[None, None]:
        await asyncio.Event().wait()
        yield

    began = monotonic()
    async with aclosing(batches(silent(), lambda: 0.05, lambda: 0.001)) as grouped:
        looked = [await anext(grouped) for _ in range(4)]

    assert looked == [[]] * 4
    assert monotonic() - began > 0.15


async def test_a_retry_is_handed_over_as_soon_as_its_time_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pointsman.web.sse.KEEPALIVE_INTERVAL_S", 3600)
    clock = Mock(now=Mock(return_value=at(2.95)))
    monkeypatch.setattr("pointsman.web.views.datetime", clock)
    retry = RetryScheduled(at=at(2), task_id="t1", attempt=2, agent="fitter", not_before=at(3), deadline=at(9))
    bus = MemoryBus()
    await bus.registry.announce(AgentCard(name="fitter", instance="i1", description="fits", version="1"))
    await store(bus, started(), dispatched("t1", "fitter", 1), failing()[6], retry)
    async with watching(bus) as dashboard, event_stream(dashboard.app, f"/api/live/workflows/{WORKFLOW}") as page:
        (waits,) = (await page.until("view")).data["tasks"]
        clock.now.return_value = at(3)
        async with asyncio.timeout(10):
            (handed,) = (await page.until("view")).data["tasks"]

    assert (waits["status"], handed["status"]) == ("waiting for a retry", "handed over")


async def test_the_page_of_a_request_that_waits_looks_at_no_other_request(monkeypatch: pytest.MonkeyPatch) -> None:
    bus = MemoryBus()
    looked: list[str] = []
    last = bus.last

    async def noted(stream: StreamKind, subject: str) -> StoredMessage | None:
        looked.append(subject)
        return await last(stream, subject)

    async with watching(bus) as dashboard:
        waiting = [await dashboard.client.submit("shpo", f"mend pump {number}") for number in range(20)]
        monkeypatch.setattr(bus, "last", noted)
        async with event_stream(dashboard.app, f"/api/live/workflows/{waiting[7].id}") as page:
            absent = await page.until("absent")

    assert absent.data["input"] == "mend pump 7"
    assert any(waiting[7].id in subject for subject in looked)
    assert not [subject for subject in looked for each in waiting if each != waiting[7] and each.id in subject]


async def test_workflow_links_to_its_teams_after_a_failed_handoff_too() -> None:
    bus = MemoryBus()
    first = dispatched("t1", "crew-a", 1).model_copy(update={"team": True})
    again = RetryScheduled(
        at=at(2), task_id="t1", attempt=2, agent="crew-b", not_before=at(3), deadline=at(63), team=True
    )
    await store(bus, started(), first, again)
    async with watching(bus) as dashboard, event_stream(dashboard.app, f"/api/live/workflows/{WORKFLOW}") as page:
        view = await page.until("view")

    assert view.data["children"] == [
        {"task_id": "t1", "attempt": 1, "agent": "crew-a", "workflow": child_id_for("crew-a", WORKFLOW, "t1", 1)},
        {"task_id": "t1", "attempt": 2, "agent": "crew-b", "workflow": child_id_for("crew-b", WORKFLOW, "t1", 2)},
    ]


async def test_workflow_download_equals_the_exported_file() -> None:
    bus = MemoryBus()
    await store(bus, *completed())
    async with watching(bus) as dashboard:
        taken = await request(dashboard.app, "GET", f"/api/workflows/{WORKFLOW}/export")
        missing = await request(dashboard.app, "GET", "/api/workflows/wf_nope/export")

    archive = read_archive(taken.body)
    assert isinstance(archive, Archive)
    assert archive.workflow_id == WORKFLOW
    assert taken.headers["content-disposition"] == f'attachment; filename="{WORKFLOW}.json"'
    assert missing.status == 404
