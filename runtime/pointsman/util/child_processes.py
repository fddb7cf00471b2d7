"""Run child processes of this process. They are restarted after a crash and ended when this process exits."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from pointsman.errors import PointsmanError

__all__ = ["ChildExitedError", "ChildProcesses", "exit_message", "exit_with_parent"]

# Seconds that children have to drain before they are killed. The agents of a demo need about one second.
_STOP_TIMEOUT_S = 5.0
_FIRST_PAUSE_S = 0.5  # seconds before a crashed child is started again; doubled after each crash
_MAX_PAUSE_S = 30.0
_STABLE_AFTER_S = 30.0  # seconds after which a child counts as stable: its next restart has the first pause again
_LOG_TAIL_CHARS = 400  # number of last characters of a log that an error repeats


class ChildExitedError(PointsmanError):
    """A child process has exited. The message has the last line of the log, and the path of the log."""

    kind = "child_exited"


@dataclass(slots=True)
class _Child:
    name: str
    arguments: Sequence[str]
    log: Path
    process: asyncio.subprocess.Process
    started: float
    pause: float = _FIRST_PAUSE_S


class ChildProcesses:
    """Children that run `pointsman` commands, each with a log file in `directory`. The context ends all children.

    Each child has its own session. So the terminal's Ctrl-C reaches only this process, which then ends the children. A
    child ends by itself when this process has exited.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self.directory = directory
        self._environment = {**os.environ, **environment}
        self._children: list[_Child] = []
        self._stopping = False

    async def __aenter__(self) -> ChildProcesses:
        self.directory.mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self, name: str, *arguments: str) -> None:
        """Start `pointsman ARGUMENTS` as the child `name`."""
        log = self.directory / f"{name}.log"
        process = await self._spawn(arguments, log)
        self._children.append(_Child(name, arguments, log, process, time.monotonic()))

    async def stop(self) -> None:
        """End all children with SIGTERM, and with SIGKILL after a limited wait. A second call has no effect."""
        self._stopping = True
        running = [child.process for child in self._children if child.process.returncode is None]
        for process in running:
            _terminate(process, kill=False)
        if running:
            _, left = await asyncio.wait(
                [asyncio.ensure_future(process.wait()) for process in running], timeout=_STOP_TIMEOUT_S
            )
            if left:
                for process in running:
                    _terminate(process, kill=True)
                await asyncio.wait(left)

    async def wait_for_exit(self) -> ChildExitedError:
        """Wait for the first child that ends, and return an error with the last line of its log."""
        waits = {asyncio.ensure_future(child.process.wait()): child for child in self._children}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return _exit_message(waits[done.pop()])

    async def keep_running(self, on_exit: Callable[[ChildExitedError, float], None]) -> None:
        """Restart each child that ends, after a growing pause, until `stop` is called.

        Args:
            on_exit: Function that is called at each end, with the error and the pause in seconds before the restart.
        """
        async with asyncio.TaskGroup() as group:
            for child in self._children:
                group.create_task(self._keep_running(child, on_exit))

    async def _keep_running(self, child: _Child, on_exit: Callable[[ChildExitedError, float], None]) -> None:
        while True:
            await child.process.wait()
            if self._stopping:
                return
            if time.monotonic() - child.started > _STABLE_AFTER_S:
                child.pause = _FIRST_PAUSE_S
            on_exit(_exit_message(child), child.pause)
            await asyncio.sleep(child.pause)
            child.pause = min(_MAX_PAUSE_S, child.pause * 2)
            child.process = await self._spawn(child.arguments, child.log)
            child.started = time.monotonic()

    async def _spawn(self, arguments: Sequence[str], log: Path) -> asyncio.subprocess.Process:
        with log.open("ab") as output:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "pointsman",
                *arguments,
                "--with-parent",
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=self._environment,
                start_new_session=True,
            )


def exit_with_parent() -> None:
    """Send SIGTERM to this process when its standard input closes.

    For a child of `ChildProcesses`, standard input is a pipe from the parent, which never writes. When the parent exits
    or is killed, the kernel closes the parent's end of the pipe, so the read ends.
    """

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="end-with-parent", daemon=True).start()


def exit_message(name: str, code: int, log: Path) -> ChildExitedError:
    """Return an error that describes the end of the process `name`.

    Args:
        name: The name of the process, for the message.
        code: The exit code. A negative code is the number of the signal that killed the process, as in `subprocess`.
        log: The log of the process. The message repeats the last line of the log if `code` is positive, because only
            then the process itself exited with an error.

    Returns:
        The error, not raised.
    """
    if code < 0:
        return ChildExitedError(f"the process {name} was killed by signal {-code}; its log is {log}")
    if code == 0:
        return ChildExitedError(f"the process {name} ended with code 0; its log is {log}")
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    last = lines[-1][-_LOG_TAIL_CHARS:] if lines else "its log is empty"
    return ChildExitedError(f"the process {name} ended with code {code}: {last}; its log is {log}")


def _exit_message(child: _Child) -> ChildExitedError:
    return exit_message(child.name, child.process.returncode or 0, child.log)


def _terminate(process: asyncio.subprocess.Process, *, kill: bool) -> None:
    with suppress(ProcessLookupError):
        process.kill() if kill else process.terminate()
