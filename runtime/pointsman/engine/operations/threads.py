"""List, read and delete threads. A deletion includes the record of the thread and the messages of its turns."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from pointsman.core.threads.turns import delete_thread
from pointsman.engine.log.reader import is_outcome, wait_for_message
from pointsman.engine.log.records import THREAD, Records
from pointsman.engine.operations.forget import forget_workflow
from pointsman.errors import BusyThreadError, ConflictError, ContractError, NotFoundError
from pointsman.ports.bus import Bus
from pointsman.ports.clock import Clock
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import Control
from pointsman_schemas.ids import derive_id
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.threads import Thread, ThreadEntry

__all__ = ["list_threads", "remove_thread"]


async def list_threads(bus: Bus, subjects: Subjects, team: str | None, caller: str | None) -> Sequence[Thread]:
    """Return the threads, the newest change first. Deleted threads are included until they expire."""
    found: list[Thread] = []
    for subject in await bus.subjects("log", subjects.threads(team, caller)):
        with suppress(ContractError):  # another program published the message
            if (thread := (await THREAD.read(bus, subject)).state) is not None:
                found.append(thread)
    return sorted(found, key=lambda each: each.changed_at, reverse=True)


async def remove_thread(
    bus: Bus, subjects: Subjects, clock: Clock, team: str, caller: str, thread: str, *, actor: str, timeout: float
) -> int:
    """Delete a thread: close the thread to new turns, end the running turns, then delete all messages.

    After an interruption, the next call continues the deletion.

    Returns:
        The number of turns whose messages were deleted.

    Raises:
        NotFoundError: The thread does not exist.
        BusyThreadError: A turn did not end in time.
    """
    records = Records(THREAD, bus, clock, subjects.source("client", "python"))
    subject = subjects.thread(team, caller, thread)

    def close(found: Thread | None) -> Sequence[ThreadEntry]:
        if found is None:
            raise NotFoundError(
                f"{caller} has no thread {thread!r} with {team}; `pointsman threads list` shows the threads"
            )
        return delete_thread(found, actor, clock.now(), purged=False)

    closed = (await records.change(subject, close)).state
    assert closed is not None
    workflows = closed.earlier
    try:
        async with asyncio.timeout(timeout):
            for workflow in workflows:
                await _end_workflow(bus, subjects, clock, team, workflow, actor)
    except TimeoutError:
        raise BusyThreadError(
            f"a turn of the thread {thread} did not end within {timeout:g} s; delete the thread again later"
        ) from None
    for workflow in workflows:
        with suppress(NotFoundError):  # an earlier call has deleted the workflow
            await forget_workflow(bus, subjects, workflow, actor=actor, at=clock.now(), reason="its thread is deleted")
    await records.change(subject, lambda found: delete_thread(found, actor, clock.now(), purged=True) if found else ())
    return len(workflows)


async def _end_workflow(bus: Bus, subjects: Subjects, clock: Clock, team: str, workflow: str, actor: str) -> None:
    """Cancel a workflow that runs or waits, and wait for its end."""
    place = subjects.outcome(team, workflow)
    if await bus.last("log", place) is None:
        name = derive_id("delete", workflow)
        control = Control(action="cancel", reason="its thread is deleted")
        source = subjects.source("client", "python")
        envelope = Envelope(id=name, type=Control.event_type, source=source, time=clock.now(), subject=workflow)
        with suppress(ConflictError):  # the control was sent before
            subject = subjects.control(team, workflow, "cancel", actor, name)
            await bus.publish(subject, dump(control), encode(envelope), expect=0)
    await wait_for_message(bus, "log", place, is_outcome)
