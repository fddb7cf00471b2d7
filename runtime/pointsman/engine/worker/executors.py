"""Executors of agent code, on the worker's loop or on a separate loop in a separate thread.

If a handler blocks a separate loop, only the other handlers wait. The connection to the broker and the extension of ack
deadlines continue. The thread is a daemon, so a handler that swallows cancellation cannot prevent the exit of the
process.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from pointsman.engine.worker.loop_watchdog import LoopWatchdog, attributing_task_factory
from pointsman.telemetry import get_logger

__all__ = ["Execution", "Executor", "InlineExecutor", "ThreadExecutor", "run_on_loop"]

T = TypeVar("T")

_CLOSE_TIMEOUT_S = 1.0  # seconds that cancelled tasks of the loop may take to end

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Execution(Generic[T]):
    """Running coroutine. `future` belongs to the loop on which `start` was called; `cancel` cancels the coroutine."""

    future: asyncio.Future[T]
    cancel: Callable[[], object]


class Executor(Protocol):
    """Runs coroutines."""

    def start(self, work: Coroutine[Any, Any, T]) -> Execution[T]:
        """Start `work` with the caller's context variables."""
        ...

    async def close(self, within: float) -> None:
        """Cancel the remaining coroutines, and wait at most `within` seconds for their end."""
        ...


async def run_on_loop(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Run `work` on `loop`, because code that uses the bus must run on the loop of the bus. Return the result."""
    if asyncio.get_running_loop() is loop:
        return await work
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))


class InlineExecutor:
    """Runs coroutines on the caller's loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()  # keeps the tasks alive, because the loop does not keep them alive

    def start(self, work: Coroutine[Any, Any, T]) -> Execution[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return Execution(task, task.cancel)

    async def close(self, within: float) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # mark the exception as retrieved, even if no caller awaits the task


class ThreadExecutor:
    """Runs coroutines on a separate loop in a daemon thread, while the context is open.

    The separate loop has the same class as the caller's loop.
    """

    def __init__(self, block_threshold: float = 0.0) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._block_threshold = block_threshold

    async def __aenter__(self) -> ThreadExecutor:
        self._owner = asyncio.get_running_loop()
        self._loop: asyncio.AbstractEventLoop = type(self._owner)()
        self._remaining = asyncio.Event()
        self._is_over = self._closing = False
        threading.Thread(target=self._serve, name="pointsman-handlers", daemon=True).start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(2 * _CLOSE_TIMEOUT_S)

    async def close(self, within: float) -> None:
        if self._closing:
            return
        self._closing = True
        self._loop.call_soon_threadsafe(self._end)
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._remaining.wait()

    def start(self, work: Coroutine[Any, Any, T]) -> Execution[T]:
        owner = asyncio.get_running_loop()
        answer: asyncio.Future[T] = owner.create_future()
        context = contextvars.copy_context()
        started: list[asyncio.Task[T]] = []

        def begin() -> None:
            task = self._loop.create_task(work, context=context)
            self._tasks.add(task)
            task.add_done_callback(ended)
            started.append(task)

        def ended(task: asyncio.Task[T]) -> None:
            self._tasks.discard(task)
            with suppress(RuntimeError):  # the loop of the caller is closed, so no caller waits for the outcome
                owner.call_soon_threadsafe(_copy_outcome, task, answer)

        self._loop.call_soon_threadsafe(begin)
        return Execution(answer, lambda: self._loop.call_soon_threadsafe(lambda: started[0].cancel()))

    def _serve(self) -> None:
        """Run the loop until `close`. If an agent calls `exit()` or stops the loop, run the loop again."""
        asyncio.set_event_loop(self._loop)
        watchdog: LoopWatchdog | None = None
        if self._block_threshold:
            self._loop.set_task_factory(attributing_task_factory)
            watchdog = LoopWatchdog(self._loop, threading.get_ident(), self._block_threshold)
        while not self._is_over:
            error: BaseException | None = None
            try:
                self._loop.run_forever()
            except BaseException as left_by:
                error = left_by
            if not self._is_over:
                hint = "code of an agent stopped the loop, or raised this error in an asyncio task; the loop continues"
                _log.error("handler_loop_interrupted", error=error, hint=hint)
        if watchdog is not None:
            watchdog.stop()
        if not self._tasks:
            self._loop.close()
        with suppress(RuntimeError):
            self._owner.call_soon_threadsafe(self._remaining.set)

    def _end(self) -> None:
        self._ending = self._loop.create_task(self._end_all())
        self._ending.add_done_callback(self._ended)

    def _ended(self, _: asyncio.Task[None]) -> None:
        self._is_over = True
        self._loop.stop()

    async def _end_all(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=_CLOSE_TIMEOUT_S)
        await self._loop.shutdown_asyncgens()


def _copy_outcome(task: asyncio.Task[T], answer: asyncio.Future[T]) -> None:
    error = None if task.cancelled() else task.exception()
    if answer.done():
        return
    if task.cancelled():
        answer.cancel()
    elif error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(task.result())
