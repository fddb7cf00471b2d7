"""Read metrics with Prometheus's own parser."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

from prometheus_client.parser import text_string_to_metric_families

from pointsman.telemetry import metrics
from pointsman.telemetry.export import Measurements, start_metrics

__all__ = ["Samples", "every_name", "exposing", "measure", "samples"]

Samples: TypeAlias = Mapping[str, list[tuple[Mapping[str, str], float]]]
"""Labels and value of each sample, by name."""


@contextmanager
def exposing() -> Iterator[Measurements]:
    """Collect the metrics of this process in the block, as a process with a metrics endpoint does."""
    started = start_metrics("test", "", exposed=True)
    assert started is not None
    try:
        yield started
    finally:
        started._flush()  # also ends the threads of the metric readers


def samples(of: Measurements) -> Samples:
    """Return the samples that a Prometheus server would store, by name."""
    assert of.exposition is not None
    found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for family in text_string_to_metric_families(of.exposition().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def every_name() -> set[str]:
    """Return the name of every possible sample."""
    with exposing() as started:
        for name in metrics.NAMES:
            measure(name)
        return set(samples(started))


def measure(name: str) -> None:
    """Record one measurement of `name`, for any kind of metric."""
    if name in metrics._UP_DOWN:
        metrics.change_for_agent(name, 1, "a")
    elif name in metrics._HISTOGRAMS:
        metrics.observe(name, 1)
    elif name in metrics._COUNTERS:
        metrics.count(name)
    else:
        metrics.set_gauge(name, 1)
