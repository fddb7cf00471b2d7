"""Read the standard `OTEL_` variables: exporters, endpoints and sizes of queues."""

from __future__ import annotations

import sys
from typing import Any, Final

from pointsman.telemetry.logs import get_logger
from pointsman.util import environment

__all__ = [
    "has_default_histograms",
    "has_prometheus",
    "is_disabled",
    "metric_exporter",
    "queue_size",
    "read_variable",
    "requested_exporters",
]

log = get_logger(__name__)

_DEFAULT_QUEUE_SIZE: Final = 2048  # number of spans or log records; OpenTelemetry's default
_HTTP_PROTOCOL: Final = "http/protobuf"


def is_disabled() -> bool:
    """Return True if `OTEL_SDK_DISABLED` is `true`."""
    return read_variable("OTEL_SDK_DISABLED").lower() == "true"


def requested_exporters(signal: str) -> list[str]:
    """Return the supported exporters that the environment names. The default is `otlp` if an endpoint is set."""
    asked = [name.strip().lower() for name in read_variable(f"OTEL_{signal}_EXPORTER").split(",") if name.strip()]
    if not asked and (
        read_variable("OTEL_EXPORTER_OTLP_ENDPOINT") or read_variable(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    ):
        asked = ["otlp"]
    protocol = (
        read_variable(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL")
        or read_variable("OTEL_EXPORTER_OTLP_PROTOCOL")
        or _HTTP_PROTOCOL
    )
    known: list[str] = []
    for name in asked:
        if name == "none" or (name, signal) == ("prometheus", "METRICS"):  # Prometheus reads the health port
            continue
        if name not in ("otlp", "console"):
            log.warning(
                "telemetry_exporter_unknown",
                variable=f"OTEL_{signal}_EXPORTER",
                seen=name,
                expected="otlp, console or none; for metrics also prometheus",
            )
        elif name == "otlp" and protocol != _HTTP_PROTOCOL:
            log.warning(
                "telemetry_protocol_unsupported",
                variable="OTEL_EXPORTER_OTLP_PROTOCOL",
                seen=protocol,
                expected=_HTTP_PROTOCOL,
                hint="collectors usually accept http/protobuf on port 4318",
            )
        else:
            known.append(name)
    return known


def metric_exporter(name: str) -> Any:
    """Import and return an exporter: `console` writes to standard error, any other name uses OTLP over HTTP."""
    if name == "console":
        from opentelemetry.sdk.metrics.export import ConsoleMetricExporter

        return ConsoleMetricExporter(out=sys.stderr)
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    return OTLPMetricExporter()


def has_prometheus(*, asked: bool) -> bool:
    """Return True if the extra `prometheus` is installed. Log a warning if it is missing and `asked` is True."""
    try:
        import opentelemetry.exporter.prometheus  # noqa: F401  (an extra)
    except ImportError:
        if asked:
            log.warning(
                "telemetry_exporter_missing",
                variable="OTEL_METRICS_EXPORTER",
                seen="prometheus",
                hint="pip install 'pointsman[prometheus]'",
            )
        return False
    return True


def has_default_histograms() -> bool:
    """Return True if histograms have OpenTelemetry's default form.

    The default form is cumulative, with explicit buckets, and with exemplars from sampled traces.
    """
    plain = {
        "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "cumulative",
        "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": "explicit_bucket_histogram",
        "OTEL_METRICS_EXEMPLAR_FILTER": "trace_based",
    }
    return all(read_variable(name).lower() in ("", value) for name, value in plain.items())


def queue_size(name: str) -> int:
    """Return the maximum number of queued spans or log records, from the variable `name`."""
    asked = read_variable(name)
    return int(asked) if asked.isdecimal() else _DEFAULT_QUEUE_SIZE


def read_variable(name: str) -> str:
    """Return an environment variable without white space around it; empty if it is unset."""
    return environment.variable(name) or ""
