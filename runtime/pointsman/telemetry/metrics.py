"""Record metrics in the units of OpenTelemetry's conventions: seconds, tokens, counts.

If metrics are off, a call costs only one comparison. This module stores the values of counters and gauges, and the SDK
reads the values with callbacks. There are two reasons. An addition here costs only a fraction of an addition in the SDK
(docs/performance.md). And a gauge can be removed here, while a gauge of the SDK reports its last value for ever.

Because of the cost, `fast.histograms` stores the values of histograms. In two cases, the SDK stores them instead. In
the first case, the application creates the metric readers. In the second case, an `OTEL_` variable asks for another
form of histograms than OpenTelemetry's default (see `otel_env.has_default_histograms`).
"""

from __future__ import annotations

import threading
from functools import lru_cache, partial
from typing import Any, Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from pointsman.telemetry import semconv
from pointsman.telemetry.fast.histograms import MAX_SERIES, OVERFLOW_LABELS, Histograms, Labels
from pointsman.telemetry.semconv import Attributes, Value

__all__ = [
    "NAMES",
    "Labels",
    "agent_series",
    "change_for_agent",
    "clear_gauge",
    "configure",
    "count",
    "count_series",
    "histograms",
    "labels",
    "metrics_enabled",
    "observe",
    "observe_series",
    "set_gauge",
]  # fmt: skip

# The buckets reach from a workflow without model calls (some 10 ms) to the default deadline of a workflow (600 s).
_WORKFLOW_BUCKETS: Final[tuple[float, ...]] = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
# The buckets that the conventions recommend.
_MODEL_BUCKETS: Final[tuple[float, ...]] = tuple(0.01 * 2**power for power in range(14))
_PROCESS_BUCKETS: Final[tuple[float, ...]] = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)

_HISTOGRAMS: Final[dict[str, tuple[str, str, tuple[float, ...]]]] = {
    semconv.OPERATION_DURATION: ("s", "Time the broker took to store one message.", _PROCESS_BUCKETS),
    semconv.PROCESS_DURATION: ("s", "Time one attempt at a handoff took.", _PROCESS_BUCKETS),
    semconv.MODEL_DURATION: ("s", "Time one model call took.", _MODEL_BUCKETS),
    semconv.TOOL_DURATION: ("s", "Time one run of a tool took.", _MODEL_BUCKETS),
    semconv.TOKEN_USAGE: ("{token}", "Tokens one model call used.", tuple(4.0**power for power in range(14))),
    semconv.WORKFLOW_DURATION: ("s", "Time from a request to its outcome.", _WORKFLOW_BUCKETS),
    semconv.TASK_DURATION: (
        "s",
        "Time from a task's first dispatch to its end, all attempts together.",
        _WORKFLOW_BUCKETS,
    ),
    semconv.QUEUE_DURATION: ("s", "Time a handoff waited until a worker took it.", _WORKFLOW_BUCKETS),
    semconv.WEBHOOK_DURATION: ("s", "Time one attempt at the delivery of a webhook took.", _PROCESS_BUCKETS),
    semconv.EVENT_LOOP_BLOCKED: ("s", "Time an agent blocked the event loop of its worker.", _WORKFLOW_BUCKETS),
}
_COUNTERS: Final[dict[str, tuple[str, str]]] = {
    semconv.SENT_MESSAGES: ("{message}", "Messages a process tried to store at the broker."),
    semconv.CONSUMED_MESSAGES: ("{message}", "Messages a process took from a queue, redeliveries among them."),
    semconv.RETRIES: ("{attempt}", "Attempts at a task after its first attempt."),
    semconv.DEAD_LETTERS: ("{event}", "Events that became dead letters."),
    semconv.COMMIT_CONFLICTS: ("{commit}", "Commits that lost the compare-and-set and were decided again."),
    semconv.WEBHOOK_DELIVERIES: ("{delivery}", "Deliveries of webhooks, by their status after an attempt."),
    semconv.MODEL_COST: ("{USD}", "US dollars that model calls cost, where the price is known."),
    semconv.TELEMETRY_DROPPED: ("{item}", "Spans, log records and reports that could not be sent in time."),
}
_COUNTER_OF_HISTOGRAM: Final[dict[str, str]] = {semconv.OPERATION_DURATION: semconv.SENT_MESSAGES}
"""For a histogram, the counter that counts its measurements. Both have the same series. The counter is read from the
histogram, so one addition updates both."""
_UP_DOWN: Final[dict[str, tuple[str, str]]] = {
    semconv.HANDOFFS_ACTIVE: ("{handoff}", "Handoffs this process works on now."),
}
_GAUGES: Final[dict[str, tuple[str, str]]] = {
    semconv.CIRCUIT_STATE: (
        "{state}",
        "State of an agent: 0 if work is sent to it (closed), 1 if one task is sent (half open), 2 if no work is sent "
        "(open).",
    ),
    semconv.WEBHOOK_OLDEST_DUE: ("s", "Delay of the webhook delivery that has been due for the longest time."),
    semconv.WEBHOOK_DISABLED: (
        "{state}",
        "State of a webhook endpoint that belongs to operators: 1 disabled, 0 enabled.",
    ),
    semconv.QUEUE_DEPTH: ("{message}", "Messages of a queue that wait, or are being worked on."),
}
NAMES: Final = (*_HISTOGRAMS, *_COUNTERS, *_UP_DOWN, *_GAUGES)
"""The names of all metrics."""

_meter: Meter | None = None
_histograms: Histograms | None = None
_instruments: dict[str, Any] = {}
_values_by_metric: dict[str, dict[Labels, float]] = {}
"""Current values of counters and gauges."""
# Reentrant, because the finalizer of a generator may run while this thread holds the lock, and may call `count`.
_lock = threading.RLock()


def metrics_enabled() -> bool:
    """Return True if metrics are on. Ask this before you collect values that cost more than a comparison."""
    return _meter is not None


def observe(name: str, value: float, attributes: Attributes | None = None) -> None:
    """Add one measurement to the histogram `name`, a constant of `semconv`; attributes that are None are left out."""
    if _meter is not None:
        observe_series(name, value, labels(attributes))


def observe_series(name: str, value: float, series: Labels) -> None:
    """Add one measurement to `series`. If you measure often, create the series once with `labels`."""
    if _histograms is not None:
        _histograms.add(name, value, series)
    elif _meter is not None:
        _instrument(_meter, name).record(value, dict(series))
        if name in _COUNTER_OF_HISTOGRAM:
            _add(_meter, _COUNTER_OF_HISTOGRAM[name], 1, series)


def count(name: str, amount: float = 1, attributes: Attributes | None = None) -> None:
    """Add `amount` to the counter `name`, a constant of `semconv`; attributes that are None are left out."""
    if _meter is not None:
        _add(_meter, name, amount, labels(attributes))


def count_series(name: str, amount: float, series: Labels) -> None:
    """Add `amount` to `series` of a counter."""
    if _meter is not None:
        _add(_meter, name, amount, series)


def labels(attributes: Attributes | None) -> Labels:
    """Return the key of the series with these attributes."""
    return frozenset(_attributes(attributes).items())


def change_for_agent(name: str, amount: int, agent: str) -> None:
    """Add `amount`, which may be negative, to the metric `name` of `agent`."""
    if _meter is not None:
        _add(_meter, name, amount, agent_series(agent))


@lru_cache(MAX_SERIES)
def agent_series(name: str) -> Labels:
    """Return the key of the series of one agent."""
    return frozenset(((semconv.AGENT_NAME, name),))


def set_gauge(name: str, value: float, attributes: Attributes | None = None) -> None:
    """Set the gauge `name` to `value`. The value is reported until the next call or `clear_gauge`."""
    if _meter is not None:
        series = labels(attributes)
        with _lock:
            values = _values(_meter, name)
            values[_limit_series(values, series)] = value


def clear_gauge(name: str, attributes: Attributes | None = None) -> None:
    """Stop reporting the gauge `name`, because its value is unknown or the measured object does not exist any more."""
    if _meter is not None:
        with _lock:
            _values(_meter, name).pop(labels(attributes), None)


def histograms() -> Histograms:
    """Return histograms for `configure`.

    The SDK's own metric readers do not collect them. So create each reader with a class from their `reader_class`.
    """
    return Histograms(_HISTOGRAMS)


def configure(meter: Meter | None, kept: Histograms | None = None) -> None:
    """Record metrics with `meter` from now on; None turns them off. For `setup` and tests.

    Args:
        meter: The meter of the SDK.
        kept: The result of `histograms`, which then stores all values of histograms. Default: the SDK stores them.
    """
    global _meter, _histograms
    _meter, _histograms = meter, kept
    _instruments.clear()
    _values_by_metric.clear()
    if meter is not None and kept is not None:
        kept.register(meter)
        for histogram, counter in _COUNTER_OF_HISTOGRAM.items():
            meter.create_observable_counter(counter, [partial(kept.counts, histogram)], *_COUNTERS[counter])


def _add(meter: Meter, name: str, amount: float, series: Labels) -> None:
    with _lock:
        if (values := _values_by_metric.get(name)) is None:
            values = _values(meter, name)
        if (current := values.get(series)) is None:
            series = _limit_series(values, series)
            current = values.get(series, 0)
        values[series] = current + amount


def _limit_series(values: dict[Labels, float], series: Labels) -> Labels:
    """Return `series`, or the overflow series if the metric has reached its maximum of series."""
    return series if series in values or len(values) < MAX_SERIES else OVERFLOW_LABELS


def _values(meter: Meter, name: str) -> dict[Labels, float]:
    values = _values_by_metric.get(name)
    if values is None:
        values = _values_by_metric[name] = {}
        _make_readable(meter, name, values)
    return values


def _make_readable(meter: Meter, name: str, values: dict[Labels, float]) -> None:
    def read(_: CallbackOptions) -> list[Observation]:
        # `read` uses the captured `values`, because the final export reads after `configure(None)` has cleared
        # `_values_by_metric`.
        with _lock:
            return [Observation(value, dict(series)) for series, value in values.items()]

    if name in _COUNTERS:
        meter.create_observable_counter(name, [read], *_COUNTERS[name])
    elif name in _GAUGES:
        meter.create_observable_gauge(name, [read], *_GAUGES[name])
    else:
        meter.create_observable_up_down_counter(name, [read], *_UP_DOWN[name])


def _instrument(meter: Meter, name: str) -> Any:
    found = _instruments.get(name)
    if found is None:
        unit, description, boundaries = _HISTOGRAMS[name]
        found = meter.create_histogram(name, unit, description, explicit_bucket_boundaries_advisory=boundaries)
        _instruments[name] = found
    return found


def _attributes(attributes: Attributes | None) -> dict[str, Value]:
    return {key: value for key, value in attributes.items() if value is not None} if attributes else {}
