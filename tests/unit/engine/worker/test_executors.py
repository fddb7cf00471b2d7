"""The event loop for authors' code survives errors and exits of this code."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import uvloop
from structlog.testing import capture_logs
from support import factory
from support.handoffs import SupervisorDouble

from pointsman.authoring.agent import agent
from pointsman.bus.memory.bus import MemoryBus
from pointsman.engine.worker.executors import ThreadExecutor
from pointsman.settings import Settings


def leave() -> None:
    raise SystemExit(3)


def interrupt() -> None:
    raise KeyboardInterrupt


def in_a_task(what: Callable[[], None]) -> None:
    """Call `what` in a task. An author may overlook that an exit in a task ends the event loop."""

    async def task() -> None:
        what()

    stray = asyncio.get_running_loop().create_task(task())
    # Otherwise asyncio reports the error again when the task is collected.
    stray.add_done_callback(lambda task: task.exception())


BREAKS: dict[str, Callable[[], Any]] = {
    "exit": lambda: in_a_task(leave),
    "interrupt": lambda: in_a_task(interrupt),
    "callback": lambda: asyncio.get_running_loop().call_soon(leave),
    "stop": lambda: asyncio.get_running_loop().stop(),
}


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("how", BREAKS)
def test_a_loop_that_authors_code_has_broken_continues(new_loop: Any, how: str) -> None:
    @agent(name="breaking", description="d")
    async def breaking(text: str) -> str:
        if text == "break":
            BREAKS[how]()
            await asyncio.sleep(0)
        return text

    async def outputs() -> list[Any]:
        desk = SupervisorDouble(MemoryBus())
        async with factory.running(
            factory.worker(desk.bus, breaking, settings=Settings(ack_wait=5, shutdown_grace=1), own_loop=True)
        ):
            first = await desk.result(await desk.publish_handoff("breaking", "break"), within=5)
            second = await desk.result(await desk.publish_handoff("breaking", "fine", task="T2"), within=5)
            return [first.output, second.output]

    with capture_logs() as lines, asyncio.Runner(loop_factory=new_loop) as runner:
        found = runner.run(outputs())

    assert found == ["break", "fine"]
    assert "handler_loop_interrupted" in [line["event"] for line in lines]


async def test_exit_during_a_cancel_does_not_keep_others_from_ending() -> None:
    ended, begun = threading.Event(), threading.Event()

    async def exits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise SystemExit(3)

    async def tidy() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            ended.set()

    async with ThreadExecutor() as handlers:
        executions = [handlers.start(exits()), handlers.start(tidy())]
        while not begun.is_set():
            await asyncio.sleep(0.01)

    assert ended.is_set()
    outcomes = await asyncio.gather(*(each.future for each in executions), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [SystemExit, asyncio.CancelledError]


class Strange(BaseException):
    pass


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(2), Strange("odd")], ids=repr)
async def test_no_exception_of_a_handler_ends_its_worker(error: BaseException) -> None:
    desk = SupervisorDouble(MemoryBus())

    @agent(name="raising", description="d")
    async def raising(text: str) -> str:
        if text == "raise":
            raise error
        return text

    async with factory.running(
        factory.worker(desk.bus, raising, settings=Settings(ack_wait=5, shutdown_grace=1), own_loop=True)
    ):
        failed = await desk.result(await desk.publish_handoff("raising", "raise"), within=5)
        after = await desk.result(await desk.publish_handoff("raising", "fine", task="T2"), within=5)

    assert failed.error is not None
    assert (failed.error.kind, after.output) == ("handler_error", "fine")
