"""Start the export of spans, metrics and log lines by the standard `OTEL_` variables, and stop it within a time limit.

The SDK and the exporters are imported only if there is something to export, so other processes do not pay for these
imports.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from opentelemetry import metrics as otel_metrics
from opentelemetry import trace as otel

from pointsman.telemetry import logs, metrics, traces
from pointsman.telemetry.fast.export_gate import ExportGate
from pointsman.telemetry.fast.lean_spans import EncodedSpan, SpanRecorder
from pointsman.telemetry.fast.otlp_exporter import enable_encoded_spans, span_exporter
from pointsman.telemetry.logs import get_logger
from pointsman.telemetry.otel_env import (
    has_default_histograms,
    has_prometheus,
    is_disabled,
    metric_exporter,
    queue_size,
    read_variable,
    requested_exporters,
)
from pointsman.telemetry.trace_context import otel_context_from_ids

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

__all__ = ["Measurements", "Pipeline", "start_logs", "start_metrics", "start_traces"]

P = ParamSpec("P")
T = TypeVar("T")

log = get_logger(__name__)


class Pipeline:
    """The export of one signal.

    `flush` sends the queue and stops the export, `abandon` ends a `flush` that takes too long, and `undelivered`
    returns the number of lost items.
    """

    def __init__(
        self, flush: Callable[[], object], abandon: Callable[[], object], undelivered: Callable[[], int]
    ) -> None:
        self._flush = flush
        self._abandon = abandon
        self.undelivered = undelivered

    async def close(self, timeout: float) -> bool:
        """Flush for at most `timeout` seconds. Return True if the flush ended in time."""
        # The flush runs in a daemon thread, because the SDK joins its threads, and nothing can interrupt this join. A
        # thread of an executor would delay the exit of the interpreter until the join ends.
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def resolve() -> None:
            if not done.done():
                done.set_result(None)

        def finish() -> None:
            with suppress(Exception):
                self._flush()
            with suppress(RuntimeError):  # `close` has returned at its timeout, and the loop is closed
                loop.call_soon_threadsafe(resolve)

        threading.Thread(target=finish, name="pointsman-telemetry-flush", daemon=True).start()
        await asyncio.wait([done], timeout=timeout)
        if not done.done():
            done.cancel()
            self._abandon()
            return False
        return True


def start_traces(service_name: str, instance: str) -> Pipeline | None:
    """Record spans if the environment or the application asks for them. Return None if there is nothing to flush."""
    traces.configure(None)
    if is_disabled():
        return None
    if not isinstance(otel.get_tracer_provider(), otel.ProxyTracerProvider) and not _is_own_provider(
        otel.get_tracer_provider()
    ):
        # Return no pipeline, because the application itself flushes and ends its provider.
        traces.configure(otel.get_tracer_provider(), _version())
        return None
    exporters = [
        exporter for name in requested_exporters("TRACES") if (exporter := _try_start("spans", span_exporter, name))
    ]
    if not exporters:
        return None
    return _try_start("spans", _build_traces, exporters, service_name, instance)


class Measurements(Pipeline):
    """The export of metrics. `exposition` returns the metrics for a Prometheus server; None if they are not exposed."""

    exposition: Callable[[], bytes] | None = None


def start_metrics(service_name: str, instance: str, *, exposed: bool = False) -> Measurements | None:
    """Record metrics if the environment or the application asks for them, or if they are `exposed` to Prometheus.

    Args:
        service_name: Name of the service.
        instance: Id of this process among the processes of the service.
        exposed: True if a Prometheus server can read the metrics from this process. Default: no.

    Returns:
        The export; None if there is nothing to flush.
    """
    metrics.configure(None)
    if is_disabled():
        return None
    loaded = sys.modules.get("opentelemetry.sdk.metrics")
    provider = otel_metrics.get_meter_provider()
    if loaded is not None and isinstance(provider, loaded.MeterProvider) and not _is_own_provider(provider):
        metrics.configure(provider.get_meter("pointsman", _version()))
        return None
    exporters = [
        exporter
        for name in requested_exporters("METRICS")
        if (exporter := _try_start("metrics", metric_exporter, name))
    ]
    asked = read_variable("OTEL_METRICS_EXPORTER").lower()
    if "prometheus" in asked and not exposed:
        log.warning(
            "telemetry_not_exposed",
            variable="OTEL_METRICS_EXPORTER",
            seen="prometheus",
            missing="a port that serves /metrics",
            hint="set POINTSMAN_HEALTH_PORT for each supervisor and worker, to 0 for a free port; no other process "
            "serves metrics",
        )
    exposed = exposed and asked != "none" and has_prometheus(asked="prometheus" in asked)
    if not exporters and not exposed:
        return None
    return _try_start("metrics", _build_metrics, exporters, service_name, instance, exposed)


def start_logs(service_name: str, instance: str) -> Pipeline | None:
    """Export log lines by OTLP if the environment names the OTLP exporter. The lines are also written as usual."""
    logs.send_to(None)
    asked = read_variable("OTEL_LOGS_EXPORTER") or read_variable("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT")
    if is_disabled() or not asked or "otlp" not in requested_exporters("LOGS"):
        return None
    return _try_start("logs", _build_logs, service_name, instance)


def _build_traces(exporters: Sequence[Any], service_name: str, instance: str) -> Pipeline:
    from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    class Batching(BatchSpanProcessor):
        def __init__(self, gate: ExportGate) -> None:
            super().__init__(cast(Any, gate), max_queue_size=gate.capacity)
            self._gate = gate

        def on_end(self, span: ReadableSpan) -> None:
            if span.context is not None and span.context.trace_flags.sampled:
                self.take(span)

        def take(self, span: Any) -> bool:
            """Queue a `ReadableSpan` or an `EncodedSpan`, and return True if the queue had room."""
            if admitted := self._gate.try_enter():
                super().on_end(span)
            return admitted

    class Provider(TracerProvider):
        def add_span_processor(self, span_processor: SpanProcessor) -> None:
            """Add a processor.

            A processor of the application expects spans of the SDK, so the SDK makes all spans from now on.
            """
            super().add_span_processor(span_processor)
            if traces.tracing_enabled() and not isinstance(span_processor, Batching):
                traces.configure(self, _version(), sink)

    gates = [ExportGate("spans", exporter, queue_size("OTEL_BSP_MAX_QUEUE_SIZE")) for exporter in exporters]
    sink = gates[0] if len(gates) == 1 else _SinkGroup(gates)
    resource = _resource(service_name, instance)
    provider = Provider(resource=resource, shutdown_on_exit=False)
    batching = [Batching(gate) for gate in gates]
    for one in batching:
        provider.add_span_processor(one)
    _own_providers.append(provider)
    if isinstance(otel.get_tracer_provider(), otel.ProxyTracerProvider):
        otel.set_tracer_provider(provider)  # set globally, so that spans of instrumented libraries join these traces

    def take_all(span: EncodedSpan) -> bool:
        taken = [one.take(span) for one in batching]
        return any(taken)

    take = batching[0].take if len(batching) == 1 else take_all
    lean = enable_encoded_spans(exporters, resource, (traces.SCOPE, _version(), traces.SCHEMA))
    traces.configure(provider, _version(), sink, SpanRecorder(take) if lean else None)

    def flush() -> None:
        traces.configure(None)
        provider.shutdown()

    def abandon() -> None:
        for gate in gates:
            gate.shutdown()  # ends the retries of the exporter, which block `flush`

    return Pipeline(flush, abandon, lambda: sum(gate.lost for gate in gates))


class _SinkGroup:
    """The gates of all exporters. Each gate receives every ended span."""

    def __init__(self, gates: Sequence[ExportGate]) -> None:
        self._gates = gates

    def is_open(self) -> bool:
        return any(map(ExportGate.is_open, self._gates))

    def collector_down(self) -> bool:
        return all(map(ExportGate.collector_down, self._gates))

    def reject(self) -> None:
        for gate in self._gates:
            gate.reject()


def _build_metrics(exporters: Sequence[Any], service_name: str, instance: str, exposed: bool) -> Measurements:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader

    kept = metrics.histograms() if has_default_histograms() else None
    periodic = kept.reader_class(PeriodicExportingMetricReader) if kept else PeriodicExportingMetricReader
    readers: list[MetricReader] = [periodic(exporter) for exporter in exporters]
    asked: Callable[[], bytes] | None = None
    if exposed:
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        scraped = kept.reader_class(PrometheusMetricReader) if kept else PrometheusMetricReader
        readers.append(scraped(scope_info_enabled=False, registry=registry))

        def expose() -> bytes:
            return bytes(generate_latest(registry))

        asked = expose

    provider = MeterProvider(readers, _resource(service_name, instance), shutdown_on_exit=False)
    _own_providers.append(provider)
    metrics.configure(provider.get_meter("pointsman", _version()), kept)

    def flush() -> None:
        metrics.configure(None)
        provider.shutdown()

    def abandon() -> None:
        for exporter in exporters:
            exporter.shutdown()

    made = Measurements(flush, abandon, lambda: 0)
    made.exposition = asked
    return made


def _build_logs(service_name: str, instance: str) -> Pipeline:
    from opentelemetry._logs import LogRecord, SeverityNumber
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor

    gate = ExportGate("logs", OTLPLogExporter(), queue_size("OTEL_BLRP_MAX_QUEUE_SIZE"))
    provider = LoggerProvider(_resource(service_name, instance), shutdown_on_exit=False)
    provider.add_log_record_processor(BatchLogRecordProcessor(cast(Any, gate), max_queue_size=gate.capacity))
    logger = provider.get_logger("pointsman", _version())
    severities = {
        "debug": SeverityNumber.DEBUG,
        "info": SeverityNumber.INFO,
        "warning": SeverityNumber.WARN,
        "error": SeverityNumber.ERROR,
        "critical": SeverityNumber.FATAL,
    }

    def send(line: logs.Line) -> None:
        if gate.try_enter():
            logger.emit(
                LogRecord(
                    timestamp=line.at,
                    context=otel_context_from_ids(line.trace_id, line.span_id),
                    severity_text=line.level,
                    severity_number=severities.get(line.level, SeverityNumber.INFO),
                    body=line.event,
                    attributes=line.attributes,
                )
            )

    logs.send_to(send)

    def flush() -> None:
        logs.send_to(None)
        provider.shutdown()

    return Pipeline(flush, gate.shutdown, lambda: 0)


def _try_start(what: str, build: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """Return the result of `build`. After an error, log a warning and return None; telemetry is not essential."""
    try:
        return build(*args, **kwargs)
    except Exception as error:
        log.warning(
            "telemetry_off", signal=what, error=f"{type(error).__name__}: {error}", hint="check the OTEL_ variables"
        )
        return None


def _resource(service_name: str, instance: str) -> Resource:
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    ours = {"service.name": service_name, "service.instance.id": instance, "service.version": _version()}
    resource = Resource.create({name: value for name, value in ours.items() if value})
    # Merge last, because OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES replace these values.
    merged = resource.merge(OTELResourceDetector().detect())

    class Hashed(Resource):
        """Resource with a stored hash, because the SDK would compute the hash (10 us of CPU) for each exported span."""

        _hash = hash(merged)

        def __hash__(self) -> int:
            return self._hash

    return Hashed(merged.attributes, merged.schema_url)


_own_providers: list[object] = []  # remembered, so that a second `setup` does not treat them as the application's


def _is_own_provider(provider: object) -> bool:
    return any(provider is ours for ours in _own_providers)


def _version() -> str:
    try:
        return version("pointsman")
    except PackageNotFoundError:
        return ""
