"""Run a blocking function in its own thread, with the caller's context variables. The thread does not delay an exit.

The loop's default executor is not used, because a few blocked functions would fill the executor, and the interpreter
joins the executor's threads before the exit. Instead, each call gets a daemon thread, which costs about a tenth of a
millisecond and ends with the call.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import ParamSpec, TypeVar

from pointsman.util.lazy_import import structlog

__all__ = ["collect_running_threads", "run_in_thread"]

_log = structlog.get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_running_threads: contextvars.ContextVar[list[threading.Thread]] = contextvars.ContextVar("threads_left")


def collect_running_threads() -> list[threading.Thread]:
    """Return a list to which `run_in_thread` adds the threads that a cancelled call in this context leaves running."""
    left: list[threading.Thread] = []
    _running_threads.set(left)
    return left


async def run_in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` in a separate thread and return its result. Raise the errors that `function` raises.

    A thread cannot be stopped. When the caller is cancelled, the wait ends at once, and the thread runs to its end.
    Such a thread is logged, and added to the list of `collect_running_threads`.

    Args:
        function: The function to call.
        args: The positional arguments of `function`.
        kwargs: The keyword arguments of `function`.

    Returns:
        The result of `function`.

    Raises:
        CancelledError: The caller was cancelled.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()
    call = partial(contextvars.copy_context().run, partial(function, *args, **kwargs))

    def run() -> None:
        settle: Callable[[], None]
        try:
            settle = partial(_set_result, answer, call())
        except Exception as error:
            settle = partial(_set_exception, answer, error)
        except BaseException as error:  # an error such as SystemExit would end the event loop, so it is converted
            settle = partial(
                _set_exception, answer, RuntimeError(f"{type(error).__name__} raised in a thread: {error}")
            )
        with suppress(RuntimeError):  # the event loop is closed, so no caller waits for the result
            loop.call_soon_threadsafe(settle)

    name = getattr(function, "__name__", "call")
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        return await answer
    except asyncio.CancelledError:
        if not answer.done() or answer.cancelled():
            hint = "a thread cannot be stopped: let the function read `context.cancelled` from time to time"
            _log.warning("thread_orphaned", function=name, hint=hint)
            _running_threads.get([]).append(thread)
        raise


def _set_result(answer: asyncio.Future[T], value: T) -> None:
    if not answer.done():
        answer.set_result(value)


def _set_exception(answer: asyncio.Future[T], error: Exception) -> None:
    if answer.done():
        return
    if isinstance(error, StopIteration):  # converted, because a future does not accept a StopIteration
        error = RuntimeError(f"StopIteration raised in a thread: {error}")
    answer.set_exception(error)
