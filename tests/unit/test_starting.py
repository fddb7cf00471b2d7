"""The CPU time of a start, relative to the imports that every start needs.

Imports need nearly all the time of a start. Each budget is a multiple of a baseline that is measured in the same run,
so it is the same for fast and slow machines, and changes by a few per cent on a busy machine. If a test fails,
`python -X importtime -m pointsman ...` shows the added import.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

MAX_TRIES = 20
"""Largest number of measured pairs of starts, because few starts are undisturbed on a busy machine."""

WORKER_BUDGET = 1.45
"""Measured: 1.3, of which Typer needs an eighth. With rich the ratio is 1.6, with the supervisor's engine 1.5."""
WORKER_BASELINE = """
import sys
sys.modules["rich"] = None  # imports structlog without rich
import asyncio, jiter, nats, opentelemetry.metrics, opentelemetry.trace, structlog, typer, uvloop
from pydantic import BaseModel, TypeAdapter
TypeAdapter(int)  # loads the part of pydantic that builds models
"""
WORKER = """
from pointsman.bus.jetstream import bus as jetstream

async def connect(*args, **kwargs):
    raise SystemExit

jetstream.connect = connect
from pointsman.__main__ import main
main()
"""
AGENT = """
from pointsman import agent

@agent(name="echo", description="Says it again")
async def echo(text: str) -> str:
    return text
"""

HELP_BUDGET = 1.4
"""Measured: 1.1, or 0.12 s of CPU. With pydantic the ratio is 2."""
HELP_BASELINE = "import typer"
HELP = "from pointsman.__main__ import main; main()"


def _cpu_seconds(arguments: Sequence[str]) -> float:
    """Return the user and system time in seconds of a Python process with `arguments`."""
    command = [sys.executable, "-c", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{arguments} ended with code {process.returncode}"
    return usage.ru_utime + usage.ru_stime


def _ratio(arguments: Sequence[str], baseline: str, budget: float) -> float:
    """Return the smallest CPU time with `arguments` divided by the smallest with `baseline`, measured in turn.

    The measurement ends when the ratio is within `budget`, or after `MAX_TRIES` pairs.
    """
    least, least_base = math.inf, math.inf
    for _ in range(MAX_TRIES):
        least = min(least, _cpu_seconds(arguments))
        least_base = min(least_base, _cpu_seconds([baseline]))
        if least / least_base < budget:
            break
    return least / least_base


def test_worker_connects_within_its_budget_of_cpu_time(tmp_path: Path) -> None:
    (tmp_path / "echo.py").write_text(AGENT)

    assert _ratio([WORKER, "worker", str(tmp_path / "echo.py")], WORKER_BASELINE, WORKER_BUDGET) < WORKER_BUDGET


def test_help_is_shown_within_its_budget_of_cpu_time() -> None:
    assert _ratio([HELP, "--help"], HELP_BASELINE, HELP_BUDGET) < HELP_BUDGET
