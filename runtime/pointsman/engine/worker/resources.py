"""Resources of a worker: the values of its lifespans. One asyncio task on the agents' loop opens and closes them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from pointsman.authoring.lifespan import Lifespan
from pointsman.engine.worker.executors import Execution, Executor
from pointsman.errors import ConfigurationError, describe_error
from pointsman.telemetry import get_logger

__all__ = ["WorkerResources"]

_log = get_logger(__name__)


class WorkerResources:
    """Open values of lifespans.

    A context manager such as a task group must be closed by the asyncio task that opened it. So one asyncio task opens
    all lifespans, waits, and closes all lifespans.

    Args:
        lifespans: Lifespans in the order in which they are opened.
        executor: Executor of the agents.
    """

    def __init__(self, lifespans: Sequence[Lifespan[Any]], executor: Executor) -> None:
        self.values: tuple[object, ...] = ()
        self._lifespans = lifespans
        self._executor = executor
        self._execution: Execution[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    async def open(self) -> None:
        """Open the lifespans in their order. Return when all lifespans are open.

        Raises:
            ConfigurationError: A lifespan failed. The lifespans before it are closed.
        """
        if not self._lifespans:
            return
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._execution = execution = self._executor.start(self._hold(opened))
        await asyncio.wait({opened, execution.future}, return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            execution.future.result()  # raises the error of the lifespan that failed

    async def close(self, within: float) -> None:
        """Close the lifespans in reverse order.

        Args:
            within: Limit for all lifespans together, in seconds. Lifespans that are open after this time are cancelled.
        """
        execution, self._execution = self._execution, None
        if execution is None:
            return
        if self._loop is None or self._stop is None:
            execution.cancel()  # no lifespan is open yet
        else:
            self._loop.call_soon_threadsafe(self._stop.set)
        await asyncio.wait({execution.future}, timeout=within)
        if not execution.future.done():
            execution.cancel()
            _log.error(
                "lifespan_close_timeout",
                seconds=round(within, 1),
                lifespans=[each.name for each in self._lifespans],
                hint="the code after `yield` did not end in time and was cancelled; its resources may stay open",
            )

    async def _hold(self, opened: asyncio.Future[None]) -> None:
        managers: list[tuple[Lifespan[Any], AbstractAsyncContextManager[Any]]] = []
        values: list[object] = []
        stop = asyncio.Event()
        try:
            for each in self._lifespans:
                manager, value = await _open(each)
                managers.append((each, manager))
                values.extend(_values_of(value))
            self.values = tuple(values)
            self._loop, self._stop = asyncio.get_running_loop(), stop
            opened.get_loop().call_soon_threadsafe(_set_done, opened)
            await stop.wait()
        finally:
            for each, manager in reversed(managers):
                try:
                    await manager.__aexit__(None, None, None)
                except (asyncio.CancelledError, GeneratorExit):
                    raise
                except BaseException as error:
                    _log.warning("lifespan_close_failed", lifespan=each.name, error=error)


async def _open(lifespan: Lifespan[Any]) -> tuple[AbstractAsyncContextManager[Any], object]:
    try:
        manager = lifespan()
        return manager, await manager.__aenter__()
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        raise ConfigurationError(
            f"the lifespan {lifespan.name} ({lifespan.place}) failed at the start of the worker: "
            f"{describe_error(error)}"
        ) from error


def _values_of(value: object) -> Sequence[object]:
    if isinstance(value, tuple | list) and type(value) in (tuple, list):  # a named tuple is one value
        return value
    return () if value is None else (value,)


def _set_done(opened: asyncio.Future[None]) -> None:
    if not opened.done():
        opened.set_result(None)
