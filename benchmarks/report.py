"""Render the result of a run as a table for people, and check the few limits of `--smoke`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

from benchmarks.results import FLOOR, REAL, SYSTEMS, Measured, Row

__all__ = ["COUNTS", "failures", "table"]

COUNTS: dict[str, tuple[float, float]] = {
    "request": (1, 1),
    "handoff": (6, 6),
    "result": (6, 6),
    "schedule": (1, 1),
    "outcome": (1, 1),
    "log": (5, 7),
}
"""Messages that one W1 stores, minimum and maximum, by kind.

The plan, the three tasks, the join and the synthesis each have a handoff and a result. The number of commits varies,
because results that arrive at the same time are in one commit.
"""

_MAX_TIME_RATIO, _MAX_LATENCY_RATIO = 25.0, 15.0
"""Largest ratios to the floor's time per workflow and to the floor's latency. The usual ratios are 7 and 4, so a larger
ratio than these limits is a regression on any machine."""


def failures(measured: Measured) -> Iterator[str]:
    """Yield gross regressions. Only counts and ratios are compared, because times depend on the machine."""
    for kind in sorted(COUNTS.keys() | measured.kinds.keys()):
        least, most = COUNTS.get(kind, (0, 0))
        if not least <= (count := measured.kinds.get(kind, 0)) <= most:
            yield f"one W1 stores {count:g} messages of kind {kind}; expected {least:g} to {most:g}"
    if (slower := measured.ratio(REAL, lambda row: 1 / row.per_second)) > _MAX_TIME_RATIO:
        yield f"a workflow takes {slower:.1f} times as long as on the floor; expected less than {_MAX_TIME_RATIO:g}"
    if (later := measured.ratio(REAL, lambda row: row.p50)) > _MAX_LATENCY_RATIO:
        yield f"the latency is {later:.1f} times the floor's; expected less than {_MAX_LATENCY_RATIO:g}"
    if measured.amount.tracing and not measured.exported:
        yield "tracing was on and no telemetry arrived"


def table(measured: Measured) -> str:
    """Render the run as text. A number is the median of the rounds, and a ratio is the median of the rounds' ratios."""
    return "\n".join([*_head(measured), "", *_times(measured), "", *_processes(measured), "", *_stored(measured)])


def _head(measured: Measured) -> Iterator[str]:
    amount = measured.amount
    loads = sorted(load[0] for load in measured.load)
    others = statistics.median(row.others_cpu for row in measured.rows)
    yield f"{measured.machine['system']}, {measured.machine['cpus']} CPUs, Python {measured.machine['python']}"
    yield (
        f"load average {loads[0]:.1f} to {loads[-1]:.1f}, ours included; the rest of the machine used "
        f"{others:.2f} CPUs in that time (median)"
    )
    yield (
        f"{amount.rounds} interleaved rounds, in each {amount.single} W1 one at a time and {amount.many} W1 "
        f"{amount.concurrency} at a time; medians; sync_interval {amount.sync}"
    )
    yield (
        f"raw: publish to acknowledgement {_ms(statistics.median(measured.acknowledged))}, "
        f"publish to delivery {_ms(statistics.median(measured.delivered))}"
    )


def _times(measured: Measured) -> Iterator[str]:
    shapes = measured.amount.shapes
    yield f"{'':14}{'p50':>10}{'p99':>10}{'W1/s':>8}" + "".join(f"{shape:>12}" for shape in shapes)
    for system in _systems(measured):
        yield (
            f"{system:14}{_ms(measured.median(system, lambda row: row.p50)):>10}"
            f"{_ms(measured.median(system, lambda row: row.p99)):>10}"
            f"{measured.median(system, lambda row: row.per_second):8.1f}"
            + "".join(f"{_ms(measured.median(system, _took(shape))):>12}" for shape in shapes)
        )
        if system != FLOOR:
            yield (
                f"{'  x floor':14}{measured.ratio(system, lambda row: row.p50):10.1f}"
                f"{measured.ratio(system, lambda row: row.p99):10.1f}"
                f"{measured.ratio(system, lambda row: 1 / row.per_second):8.1f}"
                + "".join(f"{measured.ratio(system, _took(shape)):12.1f}" for shape in shapes)
            )


def _processes(measured: Measured) -> Iterator[str]:
    systems = list(_systems(measured))
    yield f"{'CPU per W1':14}" + "".join(f"{system:>14}" for system in systems)
    parts = list(dict.fromkeys(part for row in measured.rows for part in row.cpu))
    for part in parts:
        cells = (measured.median(system, _used(part)) for system in systems)
        yield f"  {part:12}" + "".join(f"{_ms(cell):>14}" for cell in cells)
    cells = (measured.median(system, lambda row: sum(row.cpu.values())) for system in systems)
    yield f"{'  all':14}" + "".join(f"{_ms(cell):>14}" for cell in cells)
    cells = (measured.ratio(system, lambda row: sum(row.cpu.values())) for system in systems)
    yield f"{'  x floor':14}" + "".join(f"{cell:14.1f}" for cell in cells)
    yield ""
    yield f"{'MiB rss (pss)':14}" + "".join(f"{system:>14}" for system in systems)
    for part in parts:
        yield f"  {part:12}" + "".join(f"{_memory(measured, system, part):>14}" for system in systems)


def _stored(measured: Measured) -> Iterator[str]:
    kinds = ", ".join(f"{count:g} {kind}" for kind, count in measured.kinds.items() if count)
    yield f"one W1 stores {sum(measured.kinds.values()):g} messages when nothing else runs: {kinds}"
    for system in _systems(measured):
        messages, size = (
            measured.median(system, lambda row: row.messages),
            measured.median(system, lambda row: row.bytes),
        )
        yield f"{measured.amount.concurrency} at a time, {system}: {messages:.1f} messages, {size:,.0f} bytes"
    if measured.amount.tracing:
        yield f"telemetry received: {measured.exported:,} bytes"


def _took(shape: str) -> Callable[[Row], float]:
    return lambda row: row.shapes[shape]


def _used(part: str) -> Callable[[Row], float]:
    return lambda row: row.cpu.get(part, 0.0)


def _systems(measured: Measured) -> Iterator[str]:
    return (name for name in SYSTEMS if name in measured.memory)


def _memory(measured: Measured, system: str, part: str) -> str:
    found = measured.memory[system].get(part)
    if found is None:
        return "-"
    return f"{found.resident:.0f}" + (f" ({found.proportional:.0f})" if found.proportional is not None else "")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"
