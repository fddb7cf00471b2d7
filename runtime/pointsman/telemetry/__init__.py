"""Logs, traces and metrics of a process. Telemetry never slows the work and never makes the work fail."""

from __future__ import annotations

import asyncio
from urllib.parse import unquote

from pointsman.settings import Settings
from pointsman.telemetry import content_capture, logs, metrics, semconv
from pointsman.telemetry.bus_metrics import bus_observer
from pointsman.telemetry.export import Measurements, Pipeline, start_logs, start_metrics, start_traces
from pointsman.telemetry.logs import bind, get_logger
from pointsman.telemetry.traces import (
    Kind,
    Span,
    SpanEvent,
    TraceContext,
    TracedCall,
    current_context,
    parse_traceparent,
    record,
    reserve_context,
    span,
    tracing_enabled,
)
from pointsman.util.environment import normalise_variables, variables
from pointsman.util.scrubber import hide_header_values, scrub

__all__ = [
    "Kind",
    "Span",
    "SpanEvent",
    "Telemetry",
    "TraceContext",
    "TracedCall",
    "bind",
    "bus_observer",
    "content_capture",
    "current_context",
    "get_logger",
    "metrics",
    "parse_traceparent",
    "record",
    "reserve_context",
    "scrub",
    "semconv",
    "setup",
    "span",
    "tracing_enabled",
]

_log = get_logger(__name__)


class Telemetry:
    """The exporters that `setup` started. Close them last, after all work has ended."""

    def __init__(
        self, spans: Pipeline | None = None, measurements: Measurements | None = None, lines: Pipeline | None = None
    ) -> None:
        self._spans = spans
        self._measurements = measurements
        self._lines = lines
        self.exposition = measurements.exposition if measurements else None
        """Function that returns the metrics for a Prometheus server; None if they are not exposed."""

    async def shutdown(self, timeout: float = 4.0) -> None:
        """Send the queued spans for at most `timeout` seconds, and log the number of lost spans in one line.

        The method returns in time even if the collector refuses, hangs or is overloaded, and may be called twice. With
        the default of 4 seconds, an idle process exits within 5 seconds.
        """
        every = (self._spans, self._measurements, self._lines)
        pipelines = [pipeline for pipeline in every if pipeline is not None]
        spans, self._spans, self._measurements, self._lines = self._spans, None, None, None
        await asyncio.gather(*(pipeline.close(timeout) for pipeline in pipelines))
        if spans is not None and (lost := spans.undelivered()):
            _log.warning(
                "spans_lost", count=lost, hint="the collector did not accept spans: check OTEL_EXPORTER_OTLP_ENDPOINT"
            )


def setup(service_name: str, *, instance: str = "", settings: Settings, exposed: bool = False) -> Telemetry:
    """Set up logs, traces and metrics of this process.

    Spans and metrics are exported by OTLP over HTTP if `OTEL_EXPORTER_OTLP_ENDPOINT` or its variant for one signal is
    set. `OTEL_TRACES_EXPORTER` and `OTEL_METRICS_EXPORTER` can name other exporters. If the application has set its own
    OpenTelemetry providers, Pointsman uses these providers. Log lines are exported if `OTEL_LOGS_EXPORTER` names
    `otlp`. `OTEL_SDK_DISABLED=true` turns off all exports.

    Args:
        service_name: Name of the service. `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` replace the name.
        instance: Id of this process in the service. `OTEL_RESOURCE_ATTRIBUTES` replaces the id. Default: none.
        settings: The settings of this process.
        exposed: Collect metrics for a Prometheus server, see `Telemetry.exposition`. Default: no.

    Returns:
        The exporters that were started.
    """
    normalise_variables("OTEL_")  # the SDK reads these variables by itself
    for name, value in variables("OTEL_EXPORTER_OTLP_").items():
        if name.endswith("HEADERS"):
            hide_header_values(unquote(pair.partition("=")[2]).strip() for pair in value.split(","))
    logs.configure(settings)
    content_capture.configure(content_capture.mode_of(settings), emails=settings.redact_emails)
    return Telemetry(
        start_traces(service_name, instance),
        start_metrics(service_name, instance, exposed=exposed),
        start_logs(service_name, instance),
    )
