"""Run `pointsman` in a process that reports its own peak memory.

`ru_maxrss` of a child cannot be used, because it includes the memory of the process that forked the child.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from pointsman.settings import Settings

__all__ = ["MeasuredProcess"]

_PROGRAM = """
import atexit, pathlib, runpy, sys

_, report, *rest = sys.argv

def write_peak():
    status = pathlib.Path("/proc/self/status").read_text()
    pathlib.Path(report).write_text(status.partition("VmHWM:")[2].split()[0])

atexit.register(write_peak)
sys.argv = ["pointsman", *rest]
runpy.run_module("pointsman", run_name="__main__")
"""


class MeasuredProcess:
    """One running command.

    Args:
        settings: The broker and the namespace.
        report: The file for the peak, in KiB.
        *arguments: The arguments of `pointsman`.
        cwd: The working directory.
    """

    def __init__(self, settings: Settings, report: Path, *arguments: str, cwd: Path) -> None:
        self._report = report
        placed = ["--url", settings.url, "--namespace", settings.namespace]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(report), *arguments, *placed],
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    async def ended(self) -> tuple[int, str]:
        """Wait until the process ends. Return its peak resident memory in KiB, and its output."""
        out, err = await asyncio.to_thread(self._process.communicate)
        assert self._process.returncode == 0, err[-3000:]
        return int(await asyncio.to_thread(self._report.read_text)), out
