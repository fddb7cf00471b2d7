"""A command that runs as a process group of its own, and is gone, children and all, when nobody waits for it any more.

SIGTERM asks the group to end, SIGKILL ends it. What leaves its group on purpose (a daemon) is not followed.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CompletedProcess", "kill_groups", "run_process", "wait_until_ended"]

_TERMINATE_TIMEOUT_S = (
    0.75  # seconds between SIGTERM and SIGKILL: within the second that a worker waits for a handler it cancelled
)
_POLL_INTERVAL_S = 0.02  # seconds between two looks whether a group is gone; nobody is told of a grandchild's end

_groups: set[int] = set()
_ending_tasks: set[asyncio.Task[None]] = set()


@dataclass(frozen=True, slots=True)
class CompletedProcess:
    """What a command left: its exit code, minus the signal's number when a signal ended it, and what it wrote."""

    code: int
    output: bytes
    errors: bytes


async def run_process(
    *command: str, input: bytes = b"", cwd: Path | str | None = None, env: Mapping[str, str] | None = None
) -> CompletedProcess:
    """Run `command` to its end. Cancelling ends it and all that it started, within a second.

    Raises:
        OSError: it cannot be started.
    """
    # Both ends in tasks of their own. Whoever is cancelled while it starts would never know its group, and whoever is
    # cancelled twice must not leave a process behind.
    starting = asyncio.ensure_future(_start(command, cwd, env))
    try:
        process = await asyncio.shield(starting)
        output, errors = await process.communicate(input)
    finally:
        ending = asyncio.ensure_future(_end_group(starting))
        _ending_tasks.add(ending)
        ending.add_done_callback(_ending_tasks.discard)
        await asyncio.shield(ending)
    return CompletedProcess(process.returncode or 0, output, errors)


def kill_groups() -> None:
    """End everything that runs now, at once: for a process that leaves without waiting."""
    for group in tuple(_groups):
        _signal_group(group, signal.SIGKILL)


async def wait_until_ended() -> None:
    """Return when nothing is left of the commands that were ended: for a loop that is about to close."""
    while _ending_tasks:
        await asyncio.wait(tuple(_ending_tasks))


async def _start(
    command: tuple[str, ...], cwd: Path | str | None, env: Mapping[str, str] | None
) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=cwd,
        env=env,
        start_new_session=True,
    )
    _groups.add(process.pid)
    return process


async def _end_group(starting: asyncio.Future[asyncio.subprocess.Process]) -> None:
    """Return when nobody is left in the group, if it started."""
    try:
        process = await starting
    except OSError:  # whoever wanted it is told
        return
    group = process.pid
    try:
        if _signal_group(group, signal.SIGTERM):
            with suppress(TimeoutError):
                async with asyncio.timeout(_TERMINATE_TIMEOUT_S):
                    while _signal_group(group, 0):  # noqa: ASYNC110 - there is no event to wait for
                        await asyncio.sleep(_POLL_INTERVAL_S)
    finally:
        _signal_group(group, signal.SIGKILL)
        _groups.discard(group)
    await process.wait()


def _signal_group(group: int, number: int) -> bool:
    """Whether there was somebody in the group."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # gone; or, on macOS, only a zombie is left
        return False
    return True
