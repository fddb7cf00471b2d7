"""The memory of a supervisor and its workers does not grow with ended workflows.

Entries of all containers are counted, except the broker's messages and bounded caches."""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from contextlib import suppress
from typing import Any

import pytest
from support import factory
from support.caches import empty_caches
from support.factory import echo, planner_of, synthesizer
from support.waiting import until

from pointsman.bus.memory.bus import MemoryBroker
from pointsman.engine.supervisor import ended_cache
from pointsman.engine.supervisor.stream_integrity import LogWatch
from pointsman.settings import Settings
from pointsman_schemas.ids import token

_TASKS: list[dict[str, Any]] = [
    {"id": "t1", "agent": "a", "intent": "first"},
    {"id": "t2", "agent": "a", "intent": "then", "depends_on": ["t1"]},
]
_SPARE = 10
"""Allowed difference between two counts: entries of a running timer or task."""


_TIMES = 3


def test_the_caches_that_decide_a_figure_are_empty_when_it_is_taken() -> None:
    token("a-name", "a name")
    assert token.cache_info().currsize > 0
    empty_caches()
    assert token.cache_info().currsize == 0


async def test_four_times_as_many_workflows_leave_no_more_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended_cache, "_MAX_ENTRIES", 5)
    monkeypatch.setattr(LogWatch, "run", _forever)  # the watch would report the removal of messages as a loss

    async def end(client: factory.RunningTeam, count: int) -> None:
        for _ in range(count):
            assert (await (await client.submit("crew", "hello")).outcome(10)).status == "completed"
        (engine,) = client.supervisors
        await until(lambda: not engine._heads and not engine._queued)

    agents = [planner_of(*_TASKS), echo("a"), synthesizer]
    async with factory.team(agents=agents, settings=Settings(ack_wait=30)) as client:
        await end(client, 10)
        before = entries_without_messages(client.broker)
        # A leak grows each time. A module that is loaded late, or the stack of a logged stall, grows once.
        for _ in range(_TIMES):
            await end(client, 30)
            after = entries_without_messages(client.broker)
            if await _has_shrunk(client.broker, before + _SPARE):
                return
            before = after
    pytest.fail(f"30 workflows have left entries behind {_TIMES} times")


async def _has_shrunk(broker: MemoryBroker, most: int) -> bool:
    """Wait up to 10 s for at most `most` entries, because objects in use are freed after a moment."""
    with suppress(TimeoutError):
        await until(lambda: entries_without_messages(broker) <= most, seconds=10)
        return True
    return False


async def _forever(self: LogWatch) -> None:
    await asyncio.Event().wait()


def entries_without_messages(broker: MemoryBroker) -> int:
    for kind in ("requests", "controls", "results", "work", "log", "handoffs", "dead"):
        broker.purge(kind, ">")
        broker.stream(kind)._message_ids.clear()
    broker._schedules.clear()
    empty_caches()
    gc.collect()
    timers = getattr(asyncio.get_running_loop(), "_scheduled", ())  # the loop keeps about a hundred cancelled timers
    # `type(each)`, not `isinstance`, because lazy objects of SDKs load a module when their `__class__` is read.
    kept = (each for each in gc.get_objects() if issubclass(type(each), dict | list | set | deque | tuple))
    return sum(len(each) for each in kept if each is not timers)
