"""Run a command in its own process group, and end the whole group when the caller is cancelled.

The group receives SIGTERM, and SIGKILL if it has not ended 0.75 s later. A process that leaves its group on purpose,
such as a daemon, is not ended. Where the system has no process groups, only the command itself is ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pointsman.util.environment import child_environment

__all__ = ["CompletedProcess", "kill_groups", "run_process", "wait_until_ended"]

# Seconds between SIGTERM and SIGKILL. Less than the one second that a worker waits for a cancelled handler.
_TERMINATE_TIMEOUT_S = 0.75
_POLL_INTERVAL_S = 0.02  # seconds between two checks of a group; the kernel does not report the end of a grandchild

_HAS_GROUPS = hasattr(os, "killpg")
"""False on Windows. On Windows, commands work, but the children of a command are not ended with the command."""
_groups: set[int] = set()
_ending_tasks: set[asyncio.Task[None]] = set()


@dataclass(frozen=True, slots=True)
class CompletedProcess:
    """Exit code and output of a command. If a signal ended the command, `code` is the negative number of the signal."""

    code: int
    output: bytes
    errors: bytes


async def run_process(
    *command: str,
    input: bytes = b"",
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    secrets: Iterable[str] = (),
) -> CompletedProcess:
    """Run `command` to its end. A cancellation ends the command and all processes of its group within a second.

    Args:
        command: The program and its arguments.
        input: Bytes for the standard input. Default: none.
        cwd: Working directory. Default: the working directory of this process.
        env: Environment variables. Default: the variables that `child_environment` returns.
        secrets: Names of variables with secrets that the command gets if `env` is None. Default: none.

    Returns:
        The exit code and the output.

    Raises:
        OSError: The command cannot be started.
    """
    # The start and the end run in their own tasks. Otherwise, a caller that is cancelled during the start would not get
    # the number of the group, and a caller that is cancelled twice would leave a process behind.
    starting = asyncio.ensure_future(_start(command, cwd, child_environment(secrets) if env is None else env))
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
    """Kill all groups that run now. Call this in a process that exits without waiting."""
    for group in tuple(_groups):
        if _HAS_GROUPS:
            _signal_group(group, signal.SIGKILL)
        else:
            with suppress(OSError):
                os.kill(group, signal.SIGTERM)  # on a system without groups, SIGTERM ends the process at once


async def wait_until_ended() -> None:
    """Return when all processes of cancelled commands have exited. Call this function before the event loop closes."""
    while _ending_tasks:
        await asyncio.wait(tuple(_ending_tasks))


async def _start(
    command: tuple[str, ...], cwd: Path | str | None, env: Mapping[str, str]
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
    """Return when all processes of the group have exited, if the command started."""
    try:
        process = await starting
    except OSError:  # not started; `run_process` raises the error
        return
    group = process.pid
    if not _HAS_GROUPS:
        _groups.discard(group)
        await _end_process(process)
        return
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


async def _end_process(process: asyncio.subprocess.Process) -> None:
    """Return when the command has exited, on a system without process groups. The command's children are not ended."""
    for end in (process.terminate, process.kill):
        if process.returncode is None:
            with suppress(ProcessLookupError, TimeoutError):
                end()
                async with asyncio.timeout(_TERMINATE_TIMEOUT_S):
                    await process.wait()


def _signal_group(group: int, number: int) -> bool:
    """Send a signal to the group. Return True if the group had a process."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # no process is left; or, on macOS, only a zombie
        return False
    return True
