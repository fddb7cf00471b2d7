"""Read CPU time and memory of processes from /proc, if the system has a /proc. Start and end child processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

__all__ = ["Children", "Memory", "cpu_seconds", "machine_seconds", "memory"]

ROOT = Path(__file__).parents[1]

_EXIT_TIMEOUT_S = 5.0  # after SIGTERM, before SIGKILL
_LOG_TAIL = 600  # characters of a child's log in an error message


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory in MiB. `proportional` divides each shared page by the number of its processes; None if unavailable."""

    resident: float
    proportional: float | None


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process, in steps of 0.01 s; 0 without a /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def machine_seconds() -> float:
    """Return the busy time of all CPUs since the machine started, in seconds; 0 without a /proc."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return 0.0
    user, nice, system, _, _, irq, soft = map(int, fields[:7])
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> Memory | None:
    """Return the memory of a process, or None without a /proc."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return None
    sizes = {name: int(size.split()[0]) / 1024 for name, _, size in (line.partition(":") for line in lines)}
    return Memory(sizes["Rss"], sizes.get("Pss"))


class Children:
    """Python processes of this repository, each with a log in `directory`.

    At the end of the context, the processes are ended by their ids. If this process dies first, the children end, too,
    because the standard input of each child is a pipe from this process, and a child ends when its pipe closes.
    """

    def __init__(self, directory: Path) -> None:
        self.pids: dict[str, int] = {}
        self._directory = directory
        self._processes: dict[str, asyncio.subprocess.Process] = {}

    async def __aenter__(self) -> Children:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        running = [process for process in self._processes.values() if process.returncode is None]
        for process in running:
            process.terminate()
        if running:
            _, left = await asyncio.wait(
                [asyncio.ensure_future(process.wait()) for process in running], timeout=_EXIT_TIMEOUT_S
            )
            for process in running:
                if process.returncode is None:
                    process.kill()
            if left:
                await asyncio.wait(left)

    async def start(
        self, name: str, module: str, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> None:
        """Run `python -m MODULE ARGUMENTS` as `name`."""
        with (self._directory / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", module, *arguments),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {})},
                cwd=ROOT,
                start_new_session=True,
            )
        self._processes[name] = process
        self.pids[name] = process.pid

    def log(self, name: str) -> str:
        """Return the output of `name` so far."""
        return (self._directory / f"{name}.log").read_text(errors="replace")

    def check(self, names: Sequence[str] | None = None) -> None:
        """Raise `RuntimeError` with the end of the child's log, if a child has ended."""
        for name in names or list(self._processes):
            code = self._processes[name].returncode
            if code is not None:
                raise RuntimeError(f"the process {name} ended with code {code}: {self.log(name)[-_LOG_TAIL:]}")
