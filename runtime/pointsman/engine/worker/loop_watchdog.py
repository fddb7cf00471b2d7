"""Watchdog of the agents' event loop: logs the agent, the task and the code that block the loop.

An async function that blocks, for example in `time.sleep`, stops all agents of its worker. The thread of the watchdog
requests an answer from the loop several times a second. If the loop does not answer within the threshold, the thread
logs the running code.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import selectors
import sys
import threading
import time
from collections.abc import Coroutine, Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from traceback import FrameSummary, StackSummary, walk_stack
from types import FrameType
from typing import Any, Final, TypeVar, cast
from weakref import WeakKeyDictionary

from pointsman.telemetry import get_logger, metrics, semconv
from pointsman_schemas.events import Handoff

__all__ = ["LoopWatchdog", "attribute_current_task", "attributing_task_factory"]

T = TypeVar("T")

_CHECKS_PER_THRESHOLD: Final = 4
_MIN_THRESHOLD_S: Final = 0.05  # a shorter threshold would make the watch expensive
_MAX_FRAMES: Final = 20  # number of innermost frames in the log
_REPEAT_AFTER_S: Final = 60.0  # the same code is logged once in this time, but the metric counts each block
_OWN_PATHS: Final = (
    f"{Path(asyncio.__file__).parent}{os.sep}",
    f"{Path(__file__).parents[2]}{os.sep}",
    selectors.__file__,
    threading.__file__,
)
"""Files of the loop and of this package. A frame of any other file means that an author's code runs."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Attribution:
    """Attempt to which an asyncio task of the loop belongs."""

    agent: str
    workflow_id: str
    task_id: str
    attempt: int


_current: contextvars.ContextVar[_Attribution | None] = contextvars.ContextVar("pointsman_attribution", default=None)
_attributions: WeakKeyDictionary[asyncio.Task[Any], _Attribution] = WeakKeyDictionary()
"""The attempt of each asyncio task. The watchdog's thread reads the attempt here, because before Python 3.12 a thread
cannot read the context of another thread's asyncio task."""


def attribute_current_task(agent: str, handoff: Handoff) -> None:
    """Attribute the current asyncio task to an attempt, and also all asyncio tasks that the current task starts.

    Args:
        agent: Name of the agent.
        handoff: Handoff of the attempt.
    """
    attribution = _Attribution(agent, handoff.workflow_id, handoff.task_id, handoff.attempt)
    _current.set(attribution)
    if (task := asyncio.current_task()) is not None:
        _attributions[task] = attribution


def attributing_task_factory(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T] | Generator[Any, None, T], /, **more: Any
) -> asyncio.Future[T]:
    """Return a new asyncio task of `loop`, attributed to the attempt of the caller.

    Args:
        loop: Loop of the task.
        work: Coroutine of the task.
        **more: Further arguments of `asyncio.Task`.

    Returns:
        The task.
    """
    task = asyncio.Task(cast("Coroutine[Any, Any, T]", work), loop=loop, **more)
    if (attribution := _current.get()) is not None:
        _attributions[task] = attribution
    return task


class LoopWatchdog:
    """Thread that watches the loop of another thread until `stop` is called.

    Args:
        loop: Loop to watch.
        thread_id: Identifier of the thread that runs the loop.
        threshold: Seconds without an answer after which the loop counts as blocked.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, thread_id: int, threshold: float) -> None:
        self._loop = loop
        self._thread_id = thread_id
        self._threshold = max(threshold, _MIN_THRESHOLD_S)
        self._stopped = threading.Event()
        self._answered = threading.Event()
        self._logged_at: dict[tuple[str, str], float] = {}
        threading.Thread(target=self._watch, name="pointsman-loop-watchdog", daemon=True).start()

    def stop(self) -> None:
        """End the watch."""
        self._stopped.set()
        self._answered.set()

    def _watch(self) -> None:
        interval = self._threshold / _CHECKS_PER_THRESHOLD
        while not self._stopped.wait(interval):
            self._answered.clear()
            asked = time.monotonic()
            try:
                self._loop.call_soon_threadsafe(self._answered.set)
            except RuntimeError:  # the loop is closed
                return
            if self._wait_for_answer(interval):
                continue
            culprit = self._report(time.monotonic() - asked)
            self._answered.wait()
            if culprit is not None and not self._stopped.is_set():
                metrics.observe(
                    semconv.EVENT_LOOP_BLOCKED, time.monotonic() - asked, {semconv.AGENT_NAME: culprit or None}
                )

    def _wait_for_answer(self, interval: float) -> bool:
        """Return True if the loop answers within the threshold.

        If the wait takes far longer than requested, the whole process was stopped or got no CPU, for example because
        the laptop slept. The time of such a wait does not count.
        """
        left = self._threshold
        while left > 0:
            before = time.monotonic()
            if self._answered.wait(min(interval, left)):
                return True
            waited = time.monotonic() - before
            left -= waited if waited < 2 * interval else 0.0
        return False

    def _report(self, seconds: float) -> str | None:
        """Log the code that blocks the loop. Return the agent; empty if unknown, None if the loop is not blocked."""
        task = _running_task(self._loop)
        frame = sys._current_frames().get(self._thread_id)
        if frame is None or self._answered.is_set():
            return None
        stack = _stack_of(frame)
        if task is None and not _is_code_of_authors(stack):
            return None  # the loop is idle, or other threads or processes use the CPU
        attribution = _attributions.get(task) if task is not None else None
        where = f"{stack[-1].filename}:{stack[-1].lineno}"
        agent = attribution.agent if attribution else ""
        now = time.monotonic()
        if now - self._logged_at.get((agent, where), -_REPEAT_AFTER_S) >= _REPEAT_AFTER_S:
            self._logged_at = {key: at for key, at in self._logged_at.items() if now - at < _REPEAT_AFTER_S}
            self._logged_at[agent, where] = now
            _log.warning(
                "event_loop_blocked",
                agent=agent or None,
                workflow_id=attribution.workflow_id if attribution else None,
                task_id=attribution.task_id if attribution else None,
                attempt=attribution.attempt if attribution else None,
                task=task.get_name() if task is not None else None,
                seconds=round(seconds, 2),
                where=where,
                stack=[f"{each.filename}:{each.lineno} {each.name}: {each.line}" for each in stack],
                hint="this code blocks all agents of this worker; write a blocking function as a plain `def`, or run "
                "the blocking call with `await asyncio.to_thread(...)`",
            )
        return agent


def _running_task(loop: asyncio.AbstractEventLoop) -> asyncio.Task[Any] | None:
    with suppress(RuntimeError):
        return asyncio.current_task(loop)
    return None


def _stack_of(frame: FrameType) -> list[FrameSummary]:
    """Return the innermost `_MAX_FRAMES` frames, without the frames of the loop. The outermost of them comes first."""
    frames = StackSummary.extract(walk_stack(frame))
    frames.reverse()
    first = next((place for place, each in enumerate(frames) if not each.filename.startswith(_OWN_PATHS)), 0)
    return list(frames[first:])[-_MAX_FRAMES:]


def _is_code_of_authors(stack: list[FrameSummary]) -> bool:
    return any(not each.filename.startswith(_OWN_PATHS) for each in stack)
