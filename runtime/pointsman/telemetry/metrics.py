"""A few measurements, in the units of the conventions: seconds, tokens, counts. Off, each costs one comparison."""

from __future__ import annotations

from typing import Final

from opentelemetry.metrics import Counter, Histogram, Meter

from pointsman.telemetry import names
from pointsman.telemetry.names import Attributes, Value

__all__ = ["count", "observe", "use"]

# The boundaries of the first three are those of the conventions.
_HISTOGRAMS: Final[dict[str, tuple[str, str, tuple[float, ...]]]] = {
    names.PROCESS_DURATION: (
        "s",
        "Time one attempt at a handoff took.",
        (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10),
    ),
    names.MODEL_DURATION: (
        "s",
        "Time one model call took.",
        (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
    ),
    names.TOKEN_USAGE: ("{token}", "Tokens one model call used.", tuple(4.0**power for power in range(14))),
    # From a workflow of code alone (some 10 ms) to the default deadline of one full of models (600 s).
    names.WORKFLOW_DURATION: (
        "s",
        "Time from a request to its outcome.",
        (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600),
    ),
    names.TASK_DURATION: (
        "s",
        "Time from a task's first dispatch to its end, all attempts together.",
        (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600),
    ),
}
_COUNTERS: Final[dict[str, tuple[str, str]]] = {
    names.RETRIES: ("{attempt}", "Attempts after the first of a task."),
    names.DEAD_LETTERS: ("{event}", "Events given up on."),
    names.COMMIT_CONFLICTS: ("{commit}", "Commits that lost the compare-and-set and were decided again."),
}

_meter: Meter | None = None
_histograms: dict[str, Histogram] = {}
_counters: dict[str, Counter] = {}


def observe(name: str, value: float, attributes: Attributes | None = None) -> None:
    """Add one measurement to the histogram `name`, a constant of `names`; attributes that are None are left out."""
    if _meter is None:
        return
    histogram = _histograms.get(name)
    if histogram is None:
        unit, description, boundaries = _HISTOGRAMS[name]
        histogram = _histograms[name] = _meter.create_histogram(
            name, unit, description, explicit_bucket_boundaries_advisory=boundaries
        )
    histogram.record(value, _attributes(attributes))


def count(name: str, amount: int = 1, attributes: Attributes | None = None) -> None:
    """Add `amount` to the counter `name`, a constant of `names`; attributes that are None are left out."""
    if _meter is None:
        return
    counter = _counters.get(name)
    if counter is None:
        counter = _counters[name] = _meter.create_counter(name, *_COUNTERS[name])
    counter.add(amount, _attributes(attributes))


def use(meter: Meter | None) -> None:
    """Measure with `meter` from now on, or not at all with None. `setup` and tests call it."""
    global _meter
    _meter = meter
    _histograms.clear()
    _counters.clear()


def _attributes(attributes: Attributes | None) -> dict[str, Value]:
    return {key: value for key, value in attributes.items() if value is not None} if attributes else {}
