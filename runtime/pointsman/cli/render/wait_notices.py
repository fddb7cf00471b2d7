"""What is said on standard error to whoever waits for a workflow, while there is no end of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from pointsman.cli.render.output import print_error
from pointsman.client.client import Client, Workflow
from pointsman.core.views.trace import build_trace
from pointsman.core.views.trace_status import at_time, tasks_without_agent
from pointsman.errors import BusUnavailableError, NotFoundError
from pointsman.ports.bus import Bus

__all__ = ["NOTICE_AFTER_S", "notices", "report_missing_agents", "report_outages"]

NOTICE_AFTER_S = 3.0  # seconds without a sign of life before the caller is told what may be missing; admission takes ms
_BROKER_CHECK_INTERVAL_S = (
    0.5  # seconds between two looks whether the broker is there: one that is back sooner was not away
)
_MAX_CHECK_INTERVAL_S = 60.0  # seconds at most between two looks at whom it waits for: each reads the whole log


@asynccontextmanager
async def notices(*what: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Tell it until the block ends."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in what]
        yield
        for task in tasks:
            task.cancel()


async def report_outages(bus: Bus) -> None:
    """Say once that the broker is away, and once that it is back."""
    there = True
    while True:
        if bus.connected is not there:
            there = not there
            print_error("the broker is back" if there else "the broker is away; waiting")
        await asyncio.sleep(_BROKER_CHECK_INTERVAL_S)


async def report_missing_agents(client: Client, workflow: Workflow) -> None:
    """Say it once of each agent that a task waits for while none of its name is alive, and look ever less often."""
    told: set[str] = set()
    patience = NOTICE_AFTER_S
    while True:
        await asyncio.sleep(patience)
        patience = min(2 * patience, _MAX_CHECK_INTERVAL_S)
        with suppress(
            BusUnavailableError, NotFoundError
        ):  # nobody has taken it yet; or the broker is away, which others tell
            root = build_trace(await client.entries(workflow.id))
            for task in tasks_without_agent(at_time(root, datetime.now(UTC), await client.operations.live_names())):
                if task.detail not in told:
                    print_error(f"{task.task_id} is {task.detail}; `pointsman worker module:name` starts one")
                told.add(task.detail)
