"""Simulate a whole system in one event loop. Time jumps, processes die, and a run can be repeated exactly.

`simulate` runs a coroutine on a loop without a real clock. Whenever no task can run, time jumps to the next timer, so a
minute of waiting costs nothing. All timeouts of asyncio follow this time. The simulated code must not use threads or
sockets, so that a run depends only on its inputs and on the seed of its random numbers.

A `SimulatedProcess` collects its main task and all tasks that this task starts, at any depth. `kill` ends these tasks
together, like SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextvars
import selectors
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from typing import Any, TypeVar

from pointsman.ports.clock import Clock

__all__ = ["EndlessSimulationError", "SimulatedClock", "SimulatedProcess", "SimulationLoop", "simulate"]

T = TypeVar("T")

_START_TIME = datetime(2030, 1, 1, tzinfo=UTC)
_MAX_STEPS = 1_000_000
"""Number of turns of the loop after which a run counts as endless. A workflow usually needs a few thousand turns."""

_RECANCEL_DELAY_S = 1.0  # pause before a task that ignored its cancellation is cancelled again


class EndlessSimulationError(AssertionError):
    """The simulation exceeded the maximum number of steps, or all tasks wait and no timer is set."""


class SimulationLoop(asyncio.SelectorEventLoop):
    """An event loop whose time begins at 0 and moves only if no task can run. `steps` is the number of turns."""

    def __init__(self, steps: int = _MAX_STEPS) -> None:
        self._time = 0.0
        self._max_steps = steps
        self.steps = 0
        super().__init__(_JumpSelector(self._jump))
        self.set_task_factory(_adopted)
        self._numbers = count()

    def create_future(self) -> asyncio.Future[Any]:
        return _NumberedFuture(loop=self)

    def next_number(self) -> int:
        """Return the number of the next task or future, counted from 0."""
        return next(self._numbers)

    def time(self) -> float:
        return self._time

    def _jump(self, timeout: float | None) -> None:
        self.steps += 1
        if self.steps > self._max_steps:
            self._max_steps += _MAX_STEPS  # a higher limit, because the cleanup after the error needs steps
            raise EndlessSimulationError(
                f"the run took more than {self.steps - 1} steps, at {self._time:.3f} s: something runs without end"
            )
        if timeout is None:
            raise EndlessSimulationError(f"at {self._time:.3f} s everything waits and no timer is set")
        self._time += timeout


class _NumberedFuture(asyncio.Future[T]):
    """A future whose hash is its number, so that the order of a set of futures does not depend on memory addresses."""

    def __init__(self, *, loop: SimulationLoop) -> None:
        self._number = loop.next_number()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class _NumberedTask(asyncio.Task[T]):
    """A task whose hash is its number, because a `TaskGroup` cancels its tasks in the order of a set."""

    def __init__(
        self, work: Coroutine[Any, Any, T] | Generator[Any, None, T], *, loop: SimulationLoop, **more: Any
    ) -> None:
        self._number = loop.next_number()
        super().__init__(work, loop=loop, **more)

    def __hash__(self) -> int:
        return self._number


class _JumpSelector(selectors.SelectSelector):
    """A selector without files. `select` moves the time by `timeout` and does not wait."""

    def __init__(self, jump: Callable[[float | None], None]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._jump(timeout)
        return []


def simulate(main: Callable[[], Coroutine[Any, Any, T]], *, steps: int = _MAX_STEPS) -> T:
    """Run `main()` on a `SimulationLoop`.

    Args:
        main: Function that returns the coroutine to run.
        steps: Maximum number of turns of the loop. Default: 1,000,000.

    Returns:
        The result of the coroutine.

    Raises:
        EndlessSimulationError: The run needed more than `steps` turns of the loop, or all tasks wait without a timer.
    """
    with asyncio.Runner(loop_factory=partial(SimulationLoop, steps)) as runner:
        return runner.run(main())


class SimulatedClock(Clock):
    """The simulation's time as a `Clock`. Outside of the loop, the time does not move.

    Args:
        start: The first `now`. Default: the beginning of 2030, UTC.
        skew: Error of this clock in seconds. Default: 0.
    """

    def __init__(self, start: datetime = _START_TIME, skew: float = 0.0) -> None:
        self._start = start + timedelta(seconds=skew)
        self._elapsed = 0.0

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        with suppress(RuntimeError):
            self._elapsed = asyncio.get_running_loop().time()
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


_owner: contextvars.ContextVar[SimulatedProcess | None] = contextvars.ContextVar("pointsman_process", default=None)


class SimulatedProcess:
    """A group of tasks that can be killed together: the task of `start`, the tasks that it starts, and so on.

    Args:
        name: The name of the process, for messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self._main: asyncio.Task[Any] | None = None
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def start(self, main: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `main` as the main task of this process, on a `SimulationLoop`.

        Args:
            main: The coroutine.

        Returns:
            The task of the coroutine.
        """
        context = contextvars.copy_context()
        context.run(_owner.set, self)
        task = asyncio.get_running_loop().create_task(main, context=context)
        self._main = task
        return task

    def kill(self) -> None:
        """Kill the process now. No task runs past its next `await`, even if the task catches the cancellation."""
        self.alive = False
        for task in tuple(self._tasks):
            task.cancel()

    async def wait(self) -> None:
        """Return when all tasks have ended. When the main task ends, the other tasks are killed."""
        if self._main is not None:
            await asyncio.wait({self._main})
        while self._tasks:
            self.kill()
            await asyncio.wait(tuple(self._tasks), timeout=_RECANCEL_DELAY_S)

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Add a task to the process.

        Args:
            task: The task.
        """
        self._tasks[task] = None
        task.add_done_callback(self._remove, context=contextvars.Context())
        if not self.alive:
            task.cancel()

    def _remove(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]


def _adopted(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T] | Generator[Any, None, T], **more: Any
) -> asyncio.Task[T]:
    assert isinstance(loop, SimulationLoop)
    context: contextvars.Context | None = more.get("context")
    task = _NumberedTask(work, loop=loop, **more)
    owner = _owner.get() if context is None else context.get(_owner)
    if owner is not None:
        owner.adopt(task)
    return task
