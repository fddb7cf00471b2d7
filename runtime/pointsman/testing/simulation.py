"""Time that jumps and processes that die: what a whole system needs to run in one loop, the same way every time.

`simulate` runs a coroutine on a loop without a real clock. Whenever nothing is left to do, time jumps to the next
moment at which something is due, so a minute of waiting costs nothing; every timeout of asyncio's obeys. Nothing in it
may use threads or sockets. What runs is then a function of its inputs and of the chance it draws from.

`SimulatedProcess` gathers the tasks that begin in it, however deep, and kills them all at once, as SIGKILL would.
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

__all__ = ["EndlessSimulationError", "SimulatedClock", "SimulatedProcess", "SimulationLoop", "simulate"]

T = TypeVar("T")

_START_TIME = datetime(2030, 1, 1, tzinfo=UTC)
_MAX_STEPS = 1_000_000
"""Turns of the loop before a run counts as endless; a few thousand are usual for a workflow."""

_RECANCEL_DELAY_S = 1.0  # seconds until a task that took no notice of being cancelled is cancelled again


class EndlessSimulationError(AssertionError):
    """The simulation took more steps than it may, or waits for something that no moment will bring."""


class SimulationLoop(asyncio.SelectorEventLoop):
    """An event loop whose time begins at 0 and passes only when nothing can run. `steps` counts its turns."""

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
            self._max_steps += _MAX_STEPS  # for what has to be cleared away
            raise EndlessSimulationError(
                f"more than {self.steps - 1} steps, at {self._time:.3f} s: something runs without end"
            )
        if timeout is None:
            raise EndlessSimulationError(f"at {self._time:.3f} s everything waits and nothing is due")
        self._time += timeout


class _NumberedFuture(asyncio.Future[T]):
    """A future whose hash is its number, so that the order of a set of futures does not depend on addresses."""

    def __init__(self, *, loop: SimulationLoop) -> None:
        self._number = loop.next_number()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class _NumberedTask(asyncio.Task[T]):
    """A task whose hash is its number. A `TaskGroup` cancels its tasks in the order of a set."""

    def __init__(
        self, work: Coroutine[Any, Any, T] | Generator[Any, None, T], *, loop: SimulationLoop, **more: Any
    ) -> None:
        self._number = loop.next_number()
        super().__init__(work, loop=loop, **more)

    def __hash__(self) -> int:
        return self._number


class _JumpSelector(selectors.SelectSelector):
    """Looks at no file: instead of waiting for the time given, it lets it pass."""

    def __init__(self, jump: Callable[[float | None], None]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._jump(timeout)
        return []


def simulate(main: Callable[[], Coroutine[Any, Any, T]], *, steps: int = _MAX_STEPS) -> T:
    """What `main()` returns, run on a `SimulationLoop`.

    Raises:
        EndlessSimulationError: it took more than `steps` turns of the loop, or came to wait for nothing.
    """
    with asyncio.Runner(loop_factory=partial(SimulationLoop, steps)) as runner:
        return runner.run(main())


class SimulatedClock:
    """The simulation's time as a `Clock`; outside of the loop it stands still.

    `start` is `now` at its beginning; `skew`, in seconds, sets this clock off.
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
    """Tasks that live and die together: the one that `start` makes and all that begin in it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self._main: asyncio.Task[Any] | None = None
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def start(self, main: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `main` as this process, on a `SimulationLoop`."""
        context = contextvars.copy_context()
        context.run(_owner.set, self)
        task = asyncio.get_running_loop().create_task(main, context=context)
        self._main = task
        return task

    def kill(self) -> None:
        """End it here and now. No task of it gets further than its next `await`, whatever it does about it."""
        self.alive = False
        for task in tuple(self._tasks):
            task.cancel()

    async def wait(self) -> None:
        """Return when `main` is through, and no task of it is left: with `main` a process ends."""
        if self._main is not None:
            await asyncio.wait({self._main})
        while self._tasks:
            self.kill()
            await asyncio.wait(tuple(self._tasks), timeout=_RECANCEL_DELAY_S)

    def adopt(self, task: asyncio.Task[Any]) -> None:
        self._tasks[task] = None
        task.add_done_callback(self._let_go, context=contextvars.Context())
        if not self.alive:
            task.cancel()

    def _let_go(self, task: asyncio.Task[Any]) -> None:
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
