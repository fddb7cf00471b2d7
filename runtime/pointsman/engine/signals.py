"""The first SIGTERM or SIGINT asks a process to finish what it has; the second one ends it at once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import FrameType

from pointsman.subprocesses import kill_groups
from pointsman.telemetry import get_logger

__all__ = ["run_until_signal"]

_log = get_logger(__name__)


async def run_until_signal(run: Callable[[asyncio.Event], Awaitable[None]]) -> int:
    """Await `run(stop)`, where the first signal sets `stop`, and return exit code 0.

    A second signal leaves the process at once with 128 and the signal's number: 130 for SIGINT, 143 for SIGTERM.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def heard(number: int) -> None:
        if stop.is_set():
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            kill_groups()
            os._exit(128 + number)
        _log.info("stopping", signal=signal.Signals(number).name, hint="running work may finish; once more ends it now")
        stop.set()

    def heard_anywhere(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(heard, number)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        try:
            loop.add_signal_handler(number, heard, number)
        except NotImplementedError:  # Windows
            signal.signal(number, heard_anywhere)
    try:
        await run(stop)
    finally:
        for number, handler in before.items():
            with suppress(NotImplementedError):
                loop.remove_signal_handler(number)
            signal.signal(number, handler)
    return 0
