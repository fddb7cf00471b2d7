"""If an async agent blocks its worker's event loop, one log line names the agent, its task and its code."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs
from support import factory
from support.handoffs import SupervisorDouble
from support.waiting import until

from pointsman.authoring.agent import Agent, agent
from pointsman.authoring.context import Context
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.authoring.tools import tool
from pointsman.bus.memory.bus import MemoryBus
from pointsman.engine.worker import loop_watchdog
from pointsman.engine.worker.engine import Worker
from pointsman.engine.worker.executors import ThreadExecutor
from pointsman.settings import Settings
from pointsman.telemetry import metrics
from pointsman.testing.models import ScriptedModel, text_reply, tool_reply
from pointsman_schemas.events import Result

THRESHOLD = 0.1
BLOCK = 4 * THRESHOLD
SETTINGS = Settings(ack_wait=5.0, heartbeat=1.0, shutdown_grace=1.0, loop_block_threshold=THRESHOLD)

Lines = list[dict[str, Any]]


looks: list[str | None] = []
"""The results of the watchdog's looks at a blocked loop."""


@pytest.fixture(autouse=True)
def no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    look_at = loop_watchdog.LoopWatchdog._report

    def report(self: loop_watchdog.LoopWatchdog, seconds: float) -> str | None:
        found = look_at(self, seconds)
        looks.append(found)
        return found

    looks.clear()
    monkeypatch.setattr(loop_watchdog.LoopWatchdog, "_report", report)


def block() -> None:
    """Block the loop until the watchdog has looked. On a busy machine, its thread can be late."""
    before = len(looks)
    for _ in range(10):
        time.sleep(BLOCK)
        if len(looks) > before:
            break


def doze() -> None:
    time.sleep(BLOCK)


@agent
async def sleeper(request: str) -> str:
    """Blocks its loop."""
    block()
    return "done"


@agent
async def parent(request: str) -> str:
    """Starts a task that blocks the loop."""

    async def child() -> None:
        block()

    await asyncio.create_task(child(), name="child")
    return "done"


@tool
async def look() -> str:
    """Blocks its loop."""
    block()
    return "seen"


def clerk() -> LLMAgent:
    model = ScriptedModel(tool_reply(("look", {})), text_reply("done"))
    return LLMAgent(name="clerk", description="d", instructions="i", tools=[look], model=model)


@agent
def plain(request: str) -> str:
    """Blocks a thread of its own."""
    doze()
    return "done"


@agent
async def patient(request: str) -> str:
    """Waits."""
    await asyncio.sleep(BLOCK)
    return "done"


async def work(each: Agent, *, times: int = 1, settings: Settings = SETTINGS) -> tuple[list[Result], Lines]:
    desk = SupervisorDouble(MemoryBus())
    with capture_logs() as lines:
        async with factory.running(Worker(desk.bus, [each], settings, own_loop=True)):
            results = [
                await desk.result(await desk.publish_handoff(each.card.name, "go", task=f"T{number}"))
                for number in range(times)
            ]
    return results, [dict(line) for line in lines if line["event"] == "event_loop_blocked"]


@pytest.mark.parametrize(
    ("make", "task"), [(lambda: sleeper, None), (lambda: parent, "child"), (clerk, None)], ids=["agent", "task", "tool"]
)
async def test_blocking_code_is_named_with_its_agent_task_and_stack(
    make: Callable[[], Agent], task: str | None
) -> None:
    blocking = make()

    (result,), (line,) = await work(blocking)

    assert result.output == "done"
    assert line["log_level"] == "warning"
    assert (line["agent"], line["workflow_id"], line["task_id"], line["attempt"]) == (
        blocking.card.name, "wf_1", "T0", 1,
    )  # fmt: skip
    assert task in (None, line["task"])
    assert THRESHOLD <= line["seconds"] < BLOCK + 5
    assert line["stack"][-1].endswith(" block: time.sleep(BLOCK)")
    assert line["where"] in line["stack"][-1]
    assert "asyncio.to_thread" in line["hint"]
    assert not any("asyncio/" in frame or "executors.py" in frame for frame in line["stack"])


@pytest.mark.parametrize("each", [plain, patient], ids=["a thread", "an await"])
async def test_code_that_does_not_block_the_loop_is_not_reported(each: Agent) -> None:
    (result,), lines = await work(each)

    assert (result.output, lines) == ("done", [])


async def test_the_same_code_is_logged_once_and_measured_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, float, Any]] = []
    monkeypatch.setattr(metrics, "observe", lambda name, value, about=None: seen.append((name, value, about)))

    results, lines = await work(sleeper, times=3)

    blocks = [(value, about) for name, value, about in seen if name == "pointsman.event_loop.blocked"]
    assert (len(results), len(lines)) == (3, 1)
    assert [about for _, about in blocks] == [{"gen_ai.agent.name": "sleeper"}] * 3
    assert all(THRESHOLD <= value < BLOCK + 5 for value, _ in blocks)


async def test_code_is_logged_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_watchdog, "_REPEAT_AFTER_S", 0.0)

    _, lines = await work(sleeper, times=2)

    assert [line["task_id"] for line in lines] == ["T0", "T1"]


async def test_the_watch_can_be_turned_off() -> None:
    @agent
    async def dozer(request: str) -> str:
        """Blocks its loop."""
        doze()
        return "done"

    _, lines = await work(dozer, settings=SETTINGS.model_copy(update={"loop_block_threshold": 0.0}))

    assert (lines, looks) == ([], [])


@asynccontextmanager
async def executing() -> AsyncIterator[Callable[[Coroutine[Any, Any, None]], asyncio.Future[None]]]:
    async with ThreadExecutor(THRESHOLD) as executor:
        yield lambda work: executor.start(work).future


async def test_a_blocking_callback_is_named_without_an_agent() -> None:
    async def schedule() -> None:
        asyncio.get_running_loop().call_soon(block)

    with capture_logs() as lines:
        async with executing() as start:
            await start(schedule())
            await until(lambda: any(line["event"] == "event_loop_blocked" for line in lines))

    (line,) = [line for line in lines if line["event"] == "event_loop_blocked"]
    assert (line["agent"], line["task"]) == (None, None)
    assert line["stack"][-1].endswith(" block: time.sleep(BLOCK)")


async def test_a_loop_that_starves_is_not_blamed_on_an_agent() -> None:
    """The loop runs no code and does not answer, as on a machine without free CPU."""
    loop, end = asyncio.new_event_loop(), threading.Event()
    idle = threading.Thread(target=end.wait)
    idle.start()
    with capture_logs() as lines:
        watchdog = loop_watchdog.LoopWatchdog(loop, idle.ident or 0, THRESHOLD)
        await asyncio.sleep(3 * THRESHOLD)
        watchdog.stop()
    end.set()
    idle.join()
    loop.close()

    assert [line for line in lines if line["event"] == "event_loop_blocked"] == []


async def test_tasks_are_attributed_to_the_attempt_that_starts_them() -> None:
    names: list[str | None] = []

    @agent
    async def starter(request: str, context: Context) -> str:
        """Starts a task."""

        async def child() -> None:
            task = asyncio.current_task()
            assert task is not None
            found = loop_watchdog._attributions.get(task)
            names.append(found.agent if found else None)

        await asyncio.gather(child(), asyncio.create_task(child()))
        return "done"

    await work(starter)

    assert names == ["starter", "starter"]
