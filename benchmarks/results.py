"""The measured values of a run."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.machine import Memory

__all__ = ["APART", "FLOOR", "LOGGED_FLOOR", "REAL", "SYNCED_FLOOR", "SYSTEMS", "TRACED", "Amount", "Measured", "Row"]

REAL, APART, TRACED, LOGGED_FLOOR, SYNCED_FLOOR, FLOOR = SYSTEMS = (
    "pointsman", "handoffs apart", "with tracing", "floor with a log", "floor, synced", "floor",
)  # fmt: skip
"""The systems.

`TRACED` exports spans only; `benchmarks.collectors` also exports metrics. `LOGGED_FLOOR` is the floor with the commits
of the protocol. `APART` and `SYNCED_FLOOR` run on a broker that syncs every message: Pointsman with
`POINTSMAN_UNSYNCED_HANDOFFS`, and the floor. The broker of `FLOOR` does not sync every message.
"""


@dataclass(frozen=True, slots=True)
class Amount:
    """The size of a run.

    Attributes:
        rounds: Number of rounds.
        single: W1 in each round that run one at a time.
        many: W1 in each round that run `concurrency` at a time.
        concurrency: Number of W1 that run at the same time.
        raw: Round trips to the broker in each round.
        shapes: Other shapes, of which one workflow runs in each round.
        tracing: True if a system with tracing runs as well.
        logged: True if the floor with a log runs as well.
        sync: The broker's `sync_interval`; with `always`, acknowledged messages are on the disk.
    """

    rounds: int
    single: int
    many: int
    concurrency: int
    raw: int
    shapes: tuple[str, ...]
    tracing: bool
    logged: bool
    sync: str = "1s"


@dataclass(slots=True)
class Row:
    """One system in one round. Times are in seconds.

    Attributes:
        system: The name of the system.
        p50: Median latency of a W1 that runs alone.
        p99: 99th percentile of that latency.
        per_second: W1 per second with `Amount.concurrency` of them at a time.
        cpu: CPU seconds per workflow, by process.
        others_cpu: CPUs that the rest of the machine used in that time.
        messages: Stored messages per workflow.
        bytes: Stored bytes per workflow.
        shapes: Seconds of one workflow of each shape.
    """

    system: str
    p50: float
    p99: float
    per_second: float
    cpu: dict[str, float]
    others_cpu: float
    messages: float
    bytes: float
    shapes: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Measured:
    """A whole run.

    Attributes:
        machine: Description of the machine.
        amount: The size of the run.
        kinds: Messages that one W1 stores, by kind.
        load: Load averages at the start of each round.
        acknowledged: Seconds from a publish to its acknowledgement, the median of each round.
        delivered: Seconds from a publish to its delivery, the median of each round.
        rows: One for each system and round.
        memory: Memory after the last round, by system and process.
        exported: Bytes of telemetry that arrived.
    """

    machine: dict[str, Any]
    amount: Amount
    kinds: dict[str, float] = field(default_factory=dict)
    load: list[tuple[float, float, float]] = field(default_factory=list)
    acknowledged: list[float] = field(default_factory=list)
    delivered: list[float] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    memory: dict[str, dict[str, Memory | None]] = field(default_factory=dict)
    exported: int = 0

    def median(self, system: str, value: Callable[[Row], float]) -> float:
        """Return the median of `value` over the rounds."""
        return statistics.median(value(row) for row in self.rows if row.system == system)

    def ratio(self, system: str, value: Callable[[Row], float]) -> float:
        """Return the median of the ratios of `value` to the floor's in the same round."""
        ours = [value(row) for row in self.rows if row.system == system]
        floor = [value(row) for row in self.rows if row.system == FLOOR]
        return statistics.median(one / other for one, other in zip(ours, floor, strict=True))
