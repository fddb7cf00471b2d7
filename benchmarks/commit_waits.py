"""Measure the waits of a supervisor for commits that a handoff could contain: `python -m benchmarks.commit_waits`.

If exactly one handoff follows a commit, the commit could be stored inside the handoff. Then the handoff would not wait
for the commit. The sum of these waits in a workflow is the largest possible saving. The supervisor runs in this module,
which measures each wait. A wait begins when the messages are ready, and ends when the commit is acknowledged.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.machine import Children
from benchmarks.real import RealSystem
from pointsman.__main__ import main as pointsman
from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.core.model.state import State
from pointsman.engine.log.workflow_log import LogHead, WorkflowLog
from pointsman_schemas.log import Entry, TaskDispatched, WorkflowEnded

ROUNDS = {"W1": 300, "W3": 40}
WARM_UP = 20
_LINE = re.compile(r"^commit (\S+) (\S+) (\S+) (yes|no)$", re.MULTILINE)


class MeasuredSystem(RealSystem):
    """The system with a supervisor that reports the waits for commits."""

    async def start(self, part: str, *arguments: str) -> None:
        """Start a process of the system. For the supervisor, the process runs this module."""
        if part == "supervisor":
            self._module = "benchmarks.commit_waits"
        await super().start(part, *arguments)
        self._module = "pointsman"


async def main() -> None:
    """Print the duration of W1 and W3, and the waits that could be saved, in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        async with (
            EmbeddedBroker(Path(folder) / "broker") as broker,
            Children(Path(folder)) as children,
            MeasuredSystem("waits", broker.url, children, {}).running() as system,
        ):
            for _ in range(WARM_UP):
                await system.submit("W1")
            took: dict[str, dict[str, float]] = {}
            for shape, rounds in ROUNDS.items():
                took[shape] = {}
                for _ in range(rounds):
                    began = perf_counter()
                    workflow = await system.submit(shape)
                    took[shape][workflow] = (perf_counter() - began) * 1000
            report = children.log("waits-supervisor")
    waits: dict[str, list[float]] = defaultdict(list)
    wholes: dict[str, list[float]] = defaultdict(list)
    alone: dict[str, int] = defaultdict(int)
    for workflow, waited, whole, carried in _LINE.findall(report):
        if carried == "yes":
            waits[workflow].append(float(waited))
            wholes[workflow].append(float(whole))
        else:
            alone[workflow] += 1
    for shape, durations in took.items():
        median = statistics.median
        print(
            f"{shape}: p50 {median(durations.values()):.1f} ms; {median(len(waits[each]) for each in durations):g} "
            f"commits that a handoff could carry, {median(alone[each] for each in durations):g} others; "
            f"waits {median(sum(waits[each]) for each in durations):.2f} ms "
            f"({median(sum(waits[each]) / ms for each, ms in durations.items()):.1%}); "
            f"with the preparation that continues meanwhile {median(sum(wholes[each]) for each in durations):.2f} ms "
            f"({median(sum(wholes[each]) / ms for each, ms in durations.items()):.1%})"
        )


def supervise() -> None:
    """Run `pointsman ARGUMENTS`, and print a line for each commit of a workflow."""
    commit = WorkflowLog.commit

    async def measured(
        self: WorkflowLog,
        head: LogHead,
        workflow: str,
        entries: Sequence[Entry],
        state: State,
        cause: str,
        decision_context: Any = None,
        meanwhile: Callable[[State], object] = lambda _: None,
    ) -> LogHead:
        began = ready = perf_counter()

        def prepare(committed: State) -> None:
            nonlocal ready
            meanwhile(committed)
            ready = perf_counter()

        new = await commit(self, head, workflow, entries, state, cause, decision_context, prepare)
        sent = sum(isinstance(entry, TaskDispatched) for entry in entries)
        carried = sent == 1 and not any(isinstance(entry, WorkflowEnded) for entry in entries)
        waited, whole = (perf_counter() - ready) * 1000, (perf_counter() - began) * 1000
        print(f"commit {workflow} {waited:.4f} {whole:.4f} {'yes' if carried else 'no'}", flush=True)
        return new

    WorkflowLog.commit = measured  # type: ignore[method-assign]
    pointsman()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        supervise()
    else:
        asyncio.run(main())
