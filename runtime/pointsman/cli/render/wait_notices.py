"""What is said on standard error to whoever waits for a workflow, while there is no end of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from pointsman.cli.render.output import complain
from pointsman.client.client import Client, Workflow
from pointsman.core.views.trace import build_trace
from pointsman.core.views.trace_status import at_time, tasks_without_agent
from pointsman.errors import BusUnavailable, NotFound
from pointsman.ports.bus import Bus

__all__ = ["PATIENCE", "tell_of_outages", "tell_who_is_awaited", "telling"]

PATIENCE = 3.0  # seconds without a sign of life before the caller is told what may be missing; admission takes ms
_GLANCE = 0.5  # seconds between two looks whether the broker is there: one that is back sooner was not away
_LOOK = 60.0  # seconds at most between two looks at whom it waits for: each reads the whole log


@asynccontextmanager
async def telling(*what: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Tell it until the block ends."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in what]
        yield
        for task in tasks:
            task.cancel()


async def tell_of_outages(bus: Bus) -> None:
    """Say once that the broker is away, and once that it is back."""
    there = True
    while True:
        if bus.connected is not there:
            there = not there
            complain("the broker is back" if there else "the broker is away; waiting")
        await asyncio.sleep(_GLANCE)


async def tell_who_is_awaited(client: Client, workflow: Workflow) -> None:
    """Say it once of each agent that a task waits for while none of its name is alive, and look ever less often."""
    told: set[str] = set()
    patience = PATIENCE
    while True:
        await asyncio.sleep(patience)
        patience = min(2 * patience, _LOOK)
        with suppress(BusUnavailable, NotFound):  # nobody has taken it yet; or the broker is away, which others tell
            root = build_trace(await client.entries(workflow.id))
            for task in tasks_without_agent(at_time(root, datetime.now(UTC), await client.alive())):
                if task.detail not in told:
                    complain(f"{task.task_id} is {task.detail}; `pointsman worker module:name` starts one")
                told.add(task.detail)
