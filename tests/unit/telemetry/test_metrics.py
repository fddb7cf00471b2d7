"""Measurements are counted in the buckets of the conventions. If metrics are off, nothing is measured."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
from opentelemetry.context import attach, detach
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context
from support.prometheus import measure

from pointsman.telemetry import metrics, semconv
from pointsman.telemetry.fast.histograms import OVERFLOW_LABELS, _Series
from pointsman.telemetry.otel_env import has_default_histograms

NAN, INF = float("nan"), float("inf")  # the SDK omits these values, and values below 0


@pytest.fixture
def reader() -> Iterator[InMemoryMetricReader]:
    reader = InMemoryMetricReader()
    metrics.configure(MeterProvider([reader], shutdown_on_exit=False).get_meter("test"))
    yield reader
    metrics.configure(None)


def collected(reader: InMemoryMetricReader) -> dict[str, object]:
    data = reader.get_metrics_data()
    assert data is not None
    return {
        metric.name: metric.data.data_points[0]
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_measurements_are_sorted_into_the_conventions_buckets(reader: InMemoryMetricReader) -> None:
    metrics.observe(semconv.TOKEN_USAGE, 5, {semconv.TOKEN_TYPE: "input", "none": None})
    metrics.observe(semconv.TOKEN_USAGE, 20, {semconv.TOKEN_TYPE: "input"})

    point = collected(reader)[semconv.TOKEN_USAGE]
    assert (point.count, point.sum) == (2, 25)  # type: ignore[attr-defined]
    assert point.explicit_bounds[:3] == (1, 4, 16)  # type: ignore[attr-defined]
    assert point.explicit_bounds[-1] == 67108864  # type: ignore[attr-defined]
    assert dict(point.attributes) == {semconv.TOKEN_TYPE: "input"}  # type: ignore[attr-defined]


def test_counts_add_up(reader: InMemoryMetricReader) -> None:
    metrics.count(semconv.RETRIES)
    metrics.count(semconv.RETRIES, 2)

    assert collected(reader)[semconv.RETRIES].value == 3  # type: ignore[attr-defined]


def test_gauge_reports_its_newest_value_until_hidden(reader: InMemoryMetricReader) -> None:
    for value in (3, 5):
        metrics.set_gauge(semconv.QUEUE_DEPTH, value, {semconv.QUEUE: "a"})
    metrics.set_gauge(semconv.QUEUE_DEPTH, 1, {semconv.QUEUE: "b"})
    metrics.clear_gauge(semconv.QUEUE_DEPTH, {semconv.QUEUE: "b"})
    metrics.clear_gauge(semconv.QUEUE_DEPTH, {semconv.QUEUE: "never shown"})

    shown = collected(reader)[semconv.QUEUE_DEPTH]
    metrics.clear_gauge(semconv.QUEUE_DEPTH, {semconv.QUEUE: "a"})

    assert (dict(shown.attributes), shown.value) == ({semconv.QUEUE: "a"}, 5)  # type: ignore[attr-defined]
    assert reader.get_metrics_data() is None


def test_the_order_of_labels_makes_no_other_series(reader: InMemoryMetricReader) -> None:
    metrics.set_gauge(semconv.QUEUE_DEPTH, 3, {semconv.QUEUE: "a", semconv.QUEUE_STATE: "waiting"})
    metrics.clear_gauge(semconv.QUEUE_DEPTH, {semconv.QUEUE_STATE: "waiting", semconv.QUEUE: "a"})

    assert reader.get_metrics_data() is None


def test_every_name_can_be_measured(reader: InMemoryMetricReader) -> None:
    for name in metrics.NAMES:
        measure(name)

    assert set(collected(reader)) == set(metrics.NAMES)


def test_off_nothing_is_measured_and_nothing_raised() -> None:
    metrics.configure(None)

    metrics.observe(semconv.TASK_DURATION, 1)
    metrics.count(semconv.RETRIES)


def test_series_of_a_counter_are_bounded_and_the_rest_share_one(
    reader: InMemoryMetricReader,
) -> None:
    for number in range(2100):
        metrics.count(semconv.RETRIES, 1, {semconv.AGENT_NAME: str(number)})
    metrics.count(semconv.RETRIES, 1, {semconv.AGENT_NAME: "7"})

    kept = metrics._values_by_metric[semconv.RETRIES]
    assert (len(kept), kept[OVERFLOW_LABELS], sum(kept.values())) == (2001, 100, 2101)
    assert kept[metrics.labels({semconv.AGENT_NAME: "7"})] == 2


def test_a_gauge_that_was_hidden_makes_room_for_another(reader: InMemoryMetricReader) -> None:
    for number in range(2000):
        metrics.set_gauge(semconv.QUEUE_DEPTH, 1, {semconv.QUEUE: str(number)})
    metrics.clear_gauge(semconv.QUEUE_DEPTH, {semconv.QUEUE: "7"})
    metrics.set_gauge(semconv.QUEUE_DEPTH, 5, {semconv.QUEUE: "another"})

    kept = metrics._values_by_metric[semconv.QUEUE_DEPTH]
    assert (len(kept), kept[metrics.labels({semconv.QUEUE: "another"})], OVERFLOW_LABELS in kept) == (2000, 5, False)


class TestHistogramsThatAreKeptHere:
    def test_series_are_bounded_as_in_the_sdk(self) -> None:
        made = []
        for kept in (metrics.histograms(), None):
            reader = (kept.reader_class(InMemoryMetricReader) if kept else InMemoryMetricReader)()
            metrics.configure(MeterProvider([reader], shutdown_on_exit=False).get_meter("test"), kept)
            for number in (*range(2100), 7):
                metrics.observe(semconv.TASK_DURATION, 1, {semconv.AGENT_NAME: str(number)})
            made.append(_described(reader))
        metrics.configure(None)

        assert made[0] == made[1]
        assert len(made[0]) == 2001

    @pytest.mark.parametrize("values", [(0.005, 0.2, 0.2, 700.0), (0, 0.01, 600), (1,), (1, -1.0, NAN, INF), (-1.0,)])
    def test_reader_gets_the_same_data_as_from_the_sdk(self, values: tuple[float, ...]) -> None:
        made = []
        for kept in (metrics.histograms(), None):
            reader = (kept.reader_class(InMemoryMetricReader) if kept else InMemoryMetricReader)()
            metrics.configure(MeterProvider([reader], shutdown_on_exit=False).get_meter("test"), kept)
            for value in values:
                metrics.observe(semconv.TASK_DURATION, value, {semconv.AGENT_NAME: "a", "none": None})
            metrics.observe(semconv.TASK_DURATION, 3, {semconv.AGENT_NAME: "b"})
            made.append(_described(reader))
        metrics.configure(None)

        assert made[0] == made[1]
        assert len(made[0]) == (2 if values[0] >= 0 else 1)

    def test_value_in_a_sampled_span_is_an_exemplar(self) -> None:
        made = []
        within = set_span_in_context(NonRecordingSpan(SpanContext(7, 8, False, TraceFlags(1))))
        for kept in (metrics.histograms(), None):
            reader = (kept.reader_class(InMemoryMetricReader) if kept else InMemoryMetricReader)()
            metrics.configure(MeterProvider([reader], shutdown_on_exit=False).get_meter("test"), kept)
            token = attach(within)
            metrics.observe(semconv.TASK_DURATION, 3)
            detach(token)
            point: Any = collected(reader)[semconv.TASK_DURATION]
            made.append([(one.value, one.span_id, one.trace_id) for one in point.exemplars])
        metrics.configure(None)

        assert made == [[(3, 8, 7)]] * 2

    def test_nested_measurement_counts_once(self) -> None:
        """A generator may be collected, and then measure, at any line of the same thread."""
        kept, labels, added = metrics.histograms(), metrics.labels({}), 0

        def collect(frame: FrameType, event: str, _: object) -> None:
            nonlocal added
            if event == "c_call" and frame.f_code is _Series.add.__code__:
                added += 1
                kept.add(semconv.TASK_DURATION, 1, labels)

        sys.setprofile(collect)
        for _ in range(100):
            kept.add(semconv.TASK_DURATION, 1, labels)
        sys.setprofile(None)

        point = kept._series[semconv.TASK_DURATION][labels].point(labels)
        assert added
        assert (point.count, point.sum) == (100 + added, 100 + added)

    def test_reader_without_data_gets_none(self) -> None:
        kept = metrics.histograms()
        reader = kept.reader_class(InMemoryMetricReader)()
        metrics.configure(MeterProvider([reader], shutdown_on_exit=False).get_meter("test"), kept)

        metrics.observe(semconv.TASK_DURATION, -1)  # the SDK omits this value
        nothing = reader.get_metrics_data()
        metrics.observe(semconv.TASK_DURATION, 3)
        something = reader.get_metrics_data()
        metrics.configure(None)

        assert nothing is None
        assert something is not None

    @pytest.mark.parametrize(
        ("variable", "value"),
        [
            ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta"),
            ("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION", "base2_exponential_bucket_histogram"),
            ("OTEL_METRICS_EXEMPLAR_FILTER", "always_off"),
        ],
    )
    def test_with_other_options_the_histograms_are_the_sdks(
        self, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
    ) -> None:
        assert has_default_histograms()

        monkeypatch.setenv(variable, value)

        assert not has_default_histograms()


def _described(reader: InMemoryMetricReader) -> list[Any]:
    """Return the points of the histogram with attributes but without times."""
    data: Any = reader.get_metrics_data()
    found = [metric for resource in data.resource_metrics for scope in resource.scope_metrics
             for metric in scope.metrics if metric.name == semconv.TASK_DURATION]  # fmt: skip
    return [
        (metric.unit, metric.description, metric.data.aggregation_temporality, dict(point.attributes), point.count,
         point.sum, list(point.bucket_counts), tuple(point.explicit_bounds), point.min, point.max)
        for metric in found for point in metric.data.data_points
    ]  # fmt: skip
