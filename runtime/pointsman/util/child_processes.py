"""Several processes of one machine, as children of this one: started again when they crash, ended when it leaves."""

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

_STOP_TIMEOUT_S = (
    5.0  # seconds children have to drain before they are killed; agents of a demo or a laptop are done in one
)
_FIRST_PAUSE_S = 0.5  # seconds before a crashed child is started again; doubled each time
_MAX_PAUSE_S = 30.0
_STABLE_AFTER_S = 30.0  # seconds after which a child is taken to have started well, and the pauses begin anew
_LOG_TAIL_CHARS = 400  # characters of a log that an error repeats


class ChildExitedError(PointsmanError):
    """A process that was to run has ended. The message holds the last thing it said and where the rest is."""

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
    """Children that run `pointsman` commands, each with a log file in `directory`. Leaving the context ends them all.

    Each has a session of its own, so that the terminal's Ctrl-C reaches this process alone and it decides who ends
    when; each ends by itself when this process is gone.
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
        """End all children: asked first, killed after a bounded wait. Safe to call twice."""
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
        """Wait for the first child that ends, and return what it said last."""
        waits = {asyncio.ensure_future(child.process.wait()): child for child in self._children}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return _exit_message(waits[done.pop()])

    async def keep_running(self, told: Callable[[ChildExitedError, float], None]) -> None:
        """Start again whoever ends, after a growing pause that `told` hears of. Never returns."""
        async with asyncio.TaskGroup() as group:
            for child in self._children:
                group.create_task(self._keep_running(child, told))

    async def _keep_running(self, child: _Child, told: Callable[[ChildExitedError, float], None]) -> None:
        while True:
            await child.process.wait()
            if self._stopping:
                return
            if time.monotonic() - child.started > _STABLE_AFTER_S:
                child.pause = _FIRST_PAUSE_S
            told(_exit_message(child), child.pause)
            await asyncio.sleep(child.pause)
            child.pause = min(_MAX_PAUSE_S, child.pause * 2)
            child.process = await self._spawn(child.arguments, child.log)
            child.started = time.monotonic()

    async def _spawn(self, arguments: Sequence[str], log: Path) -> asyncio.subprocess.Process:
        with log.open("ab") as said:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "pointsman",
                *arguments,
                "--with-parent",
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=said,
                env=self._environment,
                start_new_session=True,
            )


def exit_with_parent() -> None:
    """Ask this process to stop when its standard input closes.

    The parent holds the other end and never writes: when it is gone, killed or not, the kernel closes it.
    """

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="end-with-parent", daemon=True).start()


def exit_message(name: str, code: int, log: Path) -> ChildExitedError:
    """How the process `name` ended: a negative `code` is the signal that killed it, as in `subprocess`.

    Only a positive one is the process's own word, which the last line of its log then explains.
    """
    if code < 0:
        return ChildExitedError(f"the process {name} was killed by signal {-code}; its log is {log}")
    if code == 0:
        return ChildExitedError(f"the process {name} ended with code 0; its log is {log}")
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    last = lines[-1][-_LOG_TAIL_CHARS:] if lines else "it said nothing"
    return ChildExitedError(f"the process {name} ended with code {code}: {last}; its log is {log}")


def _exit_message(child: _Child) -> ChildExitedError:
    return exit_message(child.name, child.process.returncode or 0, child.log)


def _terminate(process: asyncio.subprocess.Process, *, kill: bool) -> None:
    with suppress(ProcessLookupError):
        process.kill() if kill else process.terminate()
