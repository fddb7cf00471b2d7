"""Count values in histograms, and pass the points to the SDK's readers when a reader collects.

An addition is much cheaper than in the SDK, which passes each value through readers, views and attribute sets (see
docs/performance.md). The points equal the SDK's points: they are cumulative and have explicit buckets, and the exemplar
of a bucket is its newest value from a sampled span.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import time_ns
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from opentelemetry.context import get_current
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.trace import get_current_span

from pointsman.telemetry.semconv import Value

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import HistogramDataPoint, Metric, MetricReader, MetricsData

__all__ = ["MAX_SERIES", "OVERFLOW_LABELS", "Histograms", "Labels"]

Labels: TypeAlias = frozenset[tuple[str, Value]]
"""Key of a series: its attributes. Their order does not matter."""
HistogramSpecs: TypeAlias = Mapping[str, tuple[str, str, tuple[float, ...]]]
"""Unit, description and boundaries of histograms, by name."""
MAX_SERIES: Final = 2000  # largest number of series of one metric; OpenTelemetry's default
OVERFLOW_LABELS: Final[Labels] = frozenset({("otel.metric.overflow", True)})
"""Key of the overflow series. It gets the values of all series beyond the maximum."""
_INFINITE: Final = float("inf")
_INSTRUMENT_NAME: Final = "pointsman.histograms"
_Reader = TypeVar("_Reader", bound="MetricReader")


class Histograms:
    """All histograms of a meter. `described` has their unit, description and boundaries. Thread-safe."""

    def __init__(self, described: HistogramSpecs) -> None:
        self._described: Final = described
        self._series: dict[str, dict[Labels, _Series]] = {}
        # Reentrant, because a generator's finalizer may add a value while this thread holds the lock.
        self._lock = threading.RLock()

    def add(self, name: str, value: float, labels: Labels) -> None:
        if not 0 <= value < _INFINITE:  # negative durations, from a clock that was set back, are dropped as in the SDK
            return
        with self._lock:
            found = self._series.get(name)
            if found is None:
                found = self._series[name] = {}
            series = found.get(labels)
            if series is None:
                series = self._new_series(found, labels, self._described[name][2])
            series.add(value)

    def _new_series(self, series: dict[Labels, _Series], labels: Labels, bounds: tuple[float, ...]) -> _Series:
        if len(series) >= MAX_SERIES:
            labels = OVERFLOW_LABELS
        if (found := series.get(labels)) is None:
            found = series[labels] = _Series(bounds)
        return found

    def register(self, meter: Meter) -> None:
        """Let the readers of `meter` collect these histograms.

        The SDK calls a reader only if the meter has values. So a gauge is registered, and the readers replace this
        gauge by the histograms.
        """
        meter.create_observable_gauge(_INSTRUMENT_NAME, [lambda _: [Observation(1)]])

    def counts(self, name: str, _: CallbackOptions) -> list[Observation]:
        """Return the number of measurements of each series of a histogram."""
        with self._lock:
            return [Observation(each.count, dict(labels)) for labels, each in self._series.get(name, {}).items()]

    def reader_class(self, kind: type[_Reader]) -> type[_Reader]:
        """Return a subclass of the reader `kind` that collects these histograms and the metrics of the SDK."""
        histograms = self

        class Reading(kind):  # type: ignore[valid-type, misc]
            def _receive_metrics(self, metrics_data: MetricsData, *args: Any, **kwargs: Any) -> None:
                if (filled := histograms._merge(metrics_data)) is not None:
                    super()._receive_metrics(filled, *args, **kwargs)

        return Reading  # pyright: ignore[reportReturnType]

    def _merge(self, data: MetricsData) -> MetricsData | None:
        """Return `data` with the gauge replaced by these histograms; None if no metric is left."""
        ours = self._metrics()
        resources = [
            replace(resource, scope_metrics=[
                replace(scope, metrics=[
                    metric for one in scope.metrics for metric in (ours if one.name == _INSTRUMENT_NAME else (one,))
                ])
                for scope in resource.scope_metrics
            ])
            for resource in data.resource_metrics
        ]  # fmt: skip
        if not any(scope.metrics for resource in resources for scope in resource.scope_metrics):
            return None
        return replace(data, resource_metrics=resources)

    def _metrics(self) -> Sequence[Metric]:
        from opentelemetry.sdk.metrics.export import AggregationTemporality, Histogram, Metric

        with self._lock:
            points = {
                name: [one.point(labels) for labels, one in series.items()] for name, series in self._series.items()
            }
        return [
            Metric(name, self._described[name][1], self._described[name][0],
                   Histogram(of, AggregationTemporality.CUMULATIVE))
            for name, of in points.items()
        ]  # fmt: skip


class _Series:
    __slots__ = ("_bounds", "_counts", "_exemplars", "_max", "_min", "_started", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._min = float("inf")
        self._max = float("-inf")
        self._exemplars: dict[int, tuple[float, int, int, int]] = {}
        self._started = time_ns()

    def add(self, value: float) -> None:
        bucket = bisect_left(self._bounds, value)
        self._counts[bucket] += 1
        self._sum += value
        if value < self._min:
            self._min = value
        if value > self._max:
            self._max = value
        if not get_current():  # a cheap check first: an empty context has no open span, so there is no exemplar
            return
        within = get_current_span().get_span_context()
        if within.trace_flags & 1:
            self._exemplars[bucket] = (value, time_ns(), within.span_id, within.trace_id)

    @property
    def count(self) -> int:
        return sum(self._counts)

    def point(self, labels: Labels) -> HistogramDataPoint:
        """Return the point for all values so far. Each exemplar is reported once."""
        from opentelemetry.sdk.metrics import Exemplar
        from opentelemetry.sdk.metrics.export import HistogramDataPoint

        exemplars, self._exemplars = self._exemplars, {}
        return HistogramDataPoint(
            attributes=dict(labels),
            start_time_unix_nano=self._started,
            time_unix_nano=time_ns(),
            count=self.count,
            sum=self._sum,
            bucket_counts=list(self._counts),
            explicit_bounds=self._bounds,
            min=self._min,
            max=self._max,
            exemplars=[Exemplar({}, *exemplar) for exemplar in exemplars.values()],
        )
