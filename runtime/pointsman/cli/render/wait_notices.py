"""Print notices on standard error while a command waits for a workflow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from pointsman.cli.render.follow import describe_question
from pointsman.cli.render.output import print_error
from pointsman.client.client import Client, Workflow
from pointsman.core.views.timeline import Timeline
from pointsman.core.views.trace import build_trace
from pointsman.core.views.trace_status import at_time, tasks_without_agent
from pointsman.errors import BusUnavailableError, NotFoundError, PermissionDeniedError
from pointsman.ports.bus import Bus
from pointsman_schemas.log import Entry, QuestionAnswered, QuestionAsked

__all__ = ["NOTICE_AFTER_S", "notices", "report_outages", "report_waits"]

NOTICE_AFTER_S = 3.0  # seconds before the first notice; a workflow is normally admitted within milliseconds
_BROKER_CHECK_INTERVAL_S = 0.5  # seconds between two checks of the connection; a shorter outage might be missed
_MAX_CHECK_INTERVAL_S = 60.0  # largest number of seconds between two checks of `report_waits`


@asynccontextmanager
async def notices(*sources: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run sources of notices until the block ends.

    Args:
        *sources: Coroutines that print notices.

    Yields:
        Nothing.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in sources]
        yield
        for task in tasks:
            task.cancel()


async def report_outages(bus: Bus) -> None:
    """Print a line when the connection to the broker is lost, and a line when the connection is back."""
    connected = True
    while True:
        if bus.connected is not connected:
            connected = not connected
            print_error(
                "connected to the broker again"
                if connected
                else "lost the connection to the broker; waiting for the broker"
            )
        await asyncio.sleep(_BROKER_CHECK_INTERVAL_S)


async def report_waits(client: Client, workflow: Workflow, *, questions: bool) -> None:
    """Print a line for each task that waits for an agent that is not live, and for each question without an answer.

    The pauses between two checks grow, because each check reads the whole log.

    Args:
        client: The client.
        workflow: The workflow.
        questions: False if the command prints the questions with the other events of the workflow.
    """
    reported: set[str] = set()
    pause = NOTICE_AFTER_S
    while True:
        await asyncio.sleep(pause)
        pause = min(2 * pause, _MAX_CHECK_INTERVAL_S)
        # Ignore both errors and check again later: the workflow might not be admitted yet, and `report_outages` prints
        # a line about a lost connection.
        with suppress(BusUnavailableError, NotFoundError):
            try:
                with client.bus.optional_requests(""):
                    entries = await client.entries(workflow.id)
                    root = build_trace(entries)
                    alive = await client.operations.live_names()
            except PermissionDeniedError:  # no notices, because this user may not read logs and cards
                return
            for task in tasks_without_agent(at_time(root, datetime.now(UTC), alive)):
                if task.detail not in reported:
                    print_error(f"{task.task_id} is {task.detail}; start an agent with `pointsman worker module:name`")
                reported.add(task.detail)
            for question, text in _open_questions(entries) if questions else ():
                if question not in reported:
                    print_error(f"{workflow.id} waits: {text}")
                reported.add(question)


def _open_questions(entries: Iterable[Entry]) -> Iterator[tuple[str, str]]:
    """Yield the id and the text of each question that has no answer."""
    lines, found = Timeline(), dict[str, str]()
    for entry in entries:
        line = lines.render(entry)
        if isinstance(entry, QuestionAsked):
            found[entry.question] = f"{line.actor} {describe_question(entry, line.detail)}"
        elif isinstance(entry, QuestionAnswered):
            found.pop(entry.question, None)
    yield from found.items()
