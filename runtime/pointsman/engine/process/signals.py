"""After the first SIGTERM or SIGINT, a process finishes its work. The second signal ends the process at once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import FrameType

from pointsman.telemetry import get_logger
from pointsman.util.process_groups import kill_groups

__all__ = ["run_until_signal"]

_log = get_logger(__name__)

_HAND_BACK_TIMEOUT_S = 0.3  # seconds that `hand_back` may take after a second signal


async def run_until_signal(
    run: Callable[[asyncio.Event], Awaitable[None]], hand_back: Callable[[], Awaitable[None]] | None = None
) -> int:
    """Await `run(stop)`. The first signal sets `stop`.

    A second signal ends the process at once with exit code 130 for SIGINT or 143 for SIGTERM. Before the end,
    `hand_back` has 0.3 s to nak in-flight messages, which the broker then redelivers at once.

    Returns:
        The exit code, 0.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    last: list[asyncio.Future[None]] = []

    def leave(number: int) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        kill_groups()
        os._exit(128 + number)

    def heard(number: int) -> None:
        if stop.is_set():
            threading.Timer(_HAND_BACK_TIMEOUT_S, leave, (number,)).start()
            last.append(asyncio.ensure_future(hand_back() if hand_back is not None else asyncio.sleep(0)))
            last[-1].add_done_callback(lambda _: leave(number))
            return
        _log.info("stopping", signal=signal.Signals(number).name, hint="running work may finish; repeat to end now")
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
