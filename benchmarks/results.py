"""What a run measures, as values."""

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
"""`TRACED` exports spans and nothing else; `benchmarks.collectors` has metrics as well.

`LOGGED_FLOOR` is the floor with the commits of the protocol, and what must wait for them.

`APART` and `SYNCED_FLOOR` run where the broker syncs every message: Pointsman with `POINTSMAN_UNSYNCED_HANDOFFS`,
and the floor on the same broker. `FLOOR` has a broker that does not."""


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is measured. In each round: `single` workflows one at a time, `many` of them `concurrency` at a time,
    one of each of `shapes`, and `raw` round trips to the broker; `tracing` and `logged` say which systems run, too.
    `sync` is the broker's `sync_interval`: with `always` what is acknowledged is on the disk."""

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
    """One system in one round. Times are in seconds; `cpu` is CPU seconds a workflow by process.

    `others_cpu` is what the rest of the machine used meanwhile, in CPUs. `messages` and `bytes` are what the broker
    stored for a workflow, `shapes` how long one workflow of each shape took.
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
    """A whole run. `kinds` are messages of each kind that one W1 stores; `memory` is by system and process, after the
    last round; `exported` counts the bytes of telemetry that arrived."""

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
        """Over the rounds."""
        return statistics.median(value(row) for row in self.rows if row.system == system)

    def ratio(self, system: str, value: Callable[[Row], float]) -> float:
        """The median over the rounds of `value` of a system to that of the floor in the same round."""
        ours = [value(row) for row in self.rows if row.system == system]
        floor = [value(row) for row in self.rows if row.system == FLOOR]
        return statistics.median(one / other for one, other in zip(ours, floor, strict=True))
