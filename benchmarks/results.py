"""Define the measured values of a run."""

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

`TRACED` exports only spans; `benchmarks.collectors` also exports metrics. `LOGGED_FLOOR` is the floor with the commits
of the protocol. `APART` is Pointsman with `POINTSMAN_UNSYNCED_HANDOFFS`, and `SYNCED_FLOOR` is the floor; both run on a
broker that syncs every message. The broker of `FLOOR` does not sync every message.
"""


@dataclass(frozen=True, slots=True)
class Amount:
    """The size of a run.

    Attributes:
        rounds: Number of rounds.
        single: Number of W1 in each round that run one at a time.
        many: Number of W1 in each round that run concurrently.
        concurrency: Number of W1 that run at the same time.
        raw: Number of round trips to the broker in each round.
        shapes: Other shapes. One workflow of each shape runs in each round.
        tracing: True if a system with tracing runs as well.
        logged: True if the floor with a log runs as well.
        sync: The broker's `sync_interval`. With `always`, acknowledged messages are on the disk.
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
    """The measured values of one system in one round. Times are in seconds.

    Attributes:
        system: The name of the system.
        p50: Median latency of a W1 that runs alone.
        p99: 99th percentile of the latency of a W1 that runs alone.
        per_second: W1 per second at the concurrency `Amount.concurrency`.
        cpu: CPU seconds per workflow, by process.
        others_cpu: Number of CPUs that the rest of the machine used at the same time.
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
    """The measured values of a whole run.

    Attributes:
        machine: Description of the machine.
        amount: The size of the run.
        kinds: Messages that one W1 stores, by kind.
        load: Load averages at the start of each round.
        acknowledged: Seconds from a publish to its acknowledgement, the median of each round.
        delivered: Seconds from a publish to its delivery, the median of each round.
        rows: The rows, one for each system and round.
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
        """Return the median of the ratios of `value` to the floor's value in the same round."""
        ours = [value(row) for row in self.rows if row.system == system]
        floor = [value(row) for row in self.rows if row.system == FLOOR]
        return statistics.median(one / other for one, other in zip(ours, floor, strict=True))
