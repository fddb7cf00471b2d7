"""The cost of a page does not grow with the log. The tests count messages, bytes and entries, not seconds."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from support.asgi import Event, event_stream
from support.dashboard import watching
from support.history import WORKFLOW, dispatched, ended, planned, started, store, succeeded
from support.waiting import until

from pointsman.bus.memory.bus import MemoryBus
from pointsman.engine.log.reader import read_commit
from pointsman.index import workflows as index
from pointsman.ports.bus import StoredMessage
from pointsman_schemas.log import Commit
from pointsman_schemas.plan import PlannedTask

pytestmark = pytest.mark.timeout(120)  # the test first writes 10,000 workflows


def size(event: Event) -> int:
    """Return the approximate size of an event on the wire in bytes."""
    return len(json.dumps(event.data))


@dataclass(frozen=True, slots=True)
class ListCost:
    rows: int
    page: int
    change: int
    folded: int


async def cost_of_list(workflows: int, monkeypatch: pytest.MonkeyPatch) -> ListCost:
    """Open two pages with a log of this many workflows, and end one workflow."""
    bus = MemoryBus()
    for number in range(workflows):
        name = f"wf_{number:024}"
        await store(bus, started(name), ended("completed", 3, workflow=name), workflow=name)
    last = await store(bus, started("wf_last"), workflow="wf_last")
    folded: list[int] = []

    def reading(stored: StoredMessage) -> Commit:
        folded.append(stored.sequence)
        return read_commit(stored)

    async with watching(bus) as dashboard:
        await until(lambda: dashboard.index.sequence >= last, seconds=60)
        monkeypatch.setattr(index, "read_commit", reading)
        async with (
            event_stream(dashboard.app, "/api/live/workflows") as one,
            event_stream(dashboard.app, "/api/live/workflows"),
        ):
            page = await one.until("page")
            await store(bus, ended("completed", 3, workflow="wf_last"), workflow="wf_last", number=2)
            change = await one.until("rows")
    monkeypatch.undo()
    assert [row["status"] for row in change.data["rows"]] == ["completed"]
    return ListCost(len(page.data["rows"]), size(page), size(change), len(folded))


async def test_list_of_10_000_workflows_costs_the_same_as_of_200(monkeypatch: pytest.MonkeyPatch) -> None:
    few = await cost_of_list(200, monkeypatch)
    many = await cost_of_list(10_000, monkeypatch)

    assert (few.rows, many.rows) == (100, 100)
    assert many.page < 1.05 * few.page
    assert many.change < 1.2 * few.change
    assert (few.folded, many.folded) == (1, 1)  # arrived events are folded once for both pages


async def views_of_plan(tasks: int) -> tuple[int, list[int], int]:
    """Open a page with a plan of `tasks` tasks, and end all at once. Return the bytes of each view, and the lines."""
    bus = MemoryBus()
    names = [f"t{number}" for number in range(tasks)]
    plan = [PlannedTask(id=name, agent="fitter", intent="fit") for name in names]
    await store(bus, started(), *planned(*plan), *(dispatched(name, "fitter", 1) for name in names))
    sizes: list[int] = []
    lines = 0
    async with watching(bus) as dashboard, event_stream(dashboard.app, f"/api/live/workflows/{WORKFLOW}") as page:
        first = await page.until("view")
        seen, last, whole = 0, 0, False
        for number, name in enumerate(names):
            last = await store(bus, succeeded(name, "fitter", 1, 2), number=number + 2)
        while not whole:
            event = await page.next()
            if event.name == "lines":
                lines, seen = lines + len(event.data), event.id or 0
            elif event.name == "view":  # a view arrives after the lines of the same batch
                sizes.append(size(event))
                whole = seen >= last
    return size(first), sizes, lines


async def test_plan_of_500_tasks_is_sent_in_few_bounded_updates() -> None:
    few, _, _ = await views_of_plan(50)
    many, sizes, lines = await views_of_plan(500)

    assert many < 10.5 * few
    assert max(many, *sizes) < 500 * 1_000  # 1,000 bytes for each task
    assert lines == 500
    assert len(sizes) < 20  # less than one view for each of 500 ends
