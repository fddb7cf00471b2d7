"""Measurements go into the buckets of the conventions, and nowhere when metrics are off."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from support.prometheus import measure

from pointsman.telemetry import metrics, names


@pytest.fixture
def reader() -> Iterator[InMemoryMetricReader]:
    reader = InMemoryMetricReader()
    metrics.use(MeterProvider([reader], shutdown_on_exit=False).get_meter("test"))
    yield reader
    metrics.use(None)


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
    metrics.observe(names.TOKEN_USAGE, 5, {names.TOKEN_TYPE: "input", "none": None})
    metrics.observe(names.TOKEN_USAGE, 20, {names.TOKEN_TYPE: "input"})

    point = collected(reader)[names.TOKEN_USAGE]
    assert (point.count, point.sum) == (2, 25)  # type: ignore[attr-defined]
    assert point.explicit_bounds[:3] == (1, 4, 16)  # type: ignore[attr-defined]
    assert point.explicit_bounds[-1] == 67108864  # type: ignore[attr-defined]
    assert dict(point.attributes) == {names.TOKEN_TYPE: "input"}  # type: ignore[attr-defined]


def test_counts_add_up(reader: InMemoryMetricReader) -> None:
    metrics.count(names.RETRIES)
    metrics.count(names.RETRIES, 2)

    assert collected(reader)[names.RETRIES].value == 3  # type: ignore[attr-defined]


def test_a_gauge_tells_its_newest_value_and_nothing_once_it_is_hidden(reader: InMemoryMetricReader) -> None:
    for value in (3, 5):
        metrics.show(names.QUEUE_DEPTH, value, {names.QUEUE: "a"})
    metrics.show(names.QUEUE_DEPTH, 1, {names.QUEUE: "b"})
    metrics.hide(names.QUEUE_DEPTH, {names.QUEUE: "b"})
    metrics.hide(names.QUEUE_DEPTH, {names.QUEUE: "never shown"})

    shown = collected(reader)[names.QUEUE_DEPTH]
    metrics.hide(names.QUEUE_DEPTH, {names.QUEUE: "a"})

    assert (dict(shown.attributes), shown.value) == ({names.QUEUE: "a"}, 5)  # type: ignore[attr-defined]
    assert reader.get_metrics_data() is None


def test_the_order_of_labels_makes_no_other_series(reader: InMemoryMetricReader) -> None:
    metrics.show(names.QUEUE_DEPTH, 3, {names.QUEUE: "a", names.QUEUE_STATE: "waiting"})
    metrics.hide(names.QUEUE_DEPTH, {names.QUEUE_STATE: "waiting", names.QUEUE: "a"})

    assert reader.get_metrics_data() is None


def test_every_name_can_be_measured(reader: InMemoryMetricReader) -> None:
    for name in metrics.NAMES:
        measure(name)

    assert set(collected(reader)) == set(metrics.NAMES)


def test_off_nothing_is_measured_and_nothing_raised() -> None:
    metrics.use(None)

    metrics.observe(names.TASK_DURATION, 1)
    metrics.count(names.RETRIES)
