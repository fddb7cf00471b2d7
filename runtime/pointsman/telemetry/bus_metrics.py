"""Count and time the messages on the bus by OpenTelemetry's conventions, and record the broker's hops as spans.

While metrics and traces are off, the bus has no observer.
"""

from __future__ import annotations

from pointsman.ports.bus import BusObserver, Server, TraceHop
from pointsman.telemetry import metrics, semconv
from pointsman.telemetry.fast.histograms import Labels
from pointsman.telemetry.traces import SpanEvent, parse_traceparent, record, reserve_context, tracing_enabled

__all__ = ["bus_observer"]


def bus_observer() -> BusObserver | None:
    """Return the observer for a bus; None if neither metrics nor traces are on."""
    return _MessageMetrics() if metrics.metrics_enabled() or tracing_enabled() else None


class _MessageMetrics:
    """Bus observer that records metrics and spans.

    The duration of a receive is not measured. A pull request stays open until messages arrive, so its duration would be
    the time without messages.
    """

    def __init__(self) -> None:
        self._published_series: dict[tuple[str, Server | None, str | None], Labels] = {}
        self._received_series: dict[tuple[str, Server | None, str], Labels] = {}
        """The two maps stay small: their keys contain templates of subjects instead of subjects, and there are few
        queues and errors."""

    def on_published(self, subject: str, server: Server | None, seconds: float, error: str | None) -> None:
        if not metrics.metrics_enabled():
            return
        key = (semconv.destination_template(subject), server, error)
        if (of := self._published_series.get(key)) is None:
            of = self._published_series[key] = metrics.labels(
                semconv.published_message_attributes(subject, server, error)
            )
        metrics.observe_series(semconv.OPERATION_DURATION, seconds, of)

    def on_received(self, subject: str, server: Server | None, consumer: str, amount: int) -> None:
        if not metrics.metrics_enabled():
            return
        key = (subject, server, consumer)
        if (of := self._received_series.get(key)) is None:
            of = self._received_series[key] = metrics.labels(
                semconv.received_messages_attributes(subject, server, consumer)
            )
        metrics.count_series(semconv.CONSUMED_MESSAGES, amount, of)

    def on_hop(self, hop: TraceHop) -> None:
        parent = parse_traceparent(hop.headers.get("traceparent"), hop.headers.get("tracestate"))
        if parent is None:
            return
        name, about = semconv.broker_hop(hop.subject, hop.server, stored=hop.steps[-1].kind in ("stored", "refused"))
        record(
            name,
            context=reserve_context(parent),
            parent_span_id=parent.span_id,
            started=hop.steps[0].at,
            ended=hop.steps[-1].at,
            attributes=about,
            error=("refused", hop.error) if hop.error else None,
            happenings=[SpanEvent(f"pointsman.broker.{step.kind}", step.at, {semconv.BROKER_PEER: step.where or None})
                        for step in hop.steps],
        )  # fmt: skip
