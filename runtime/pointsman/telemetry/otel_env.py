"""What the standard's environment variables ask for: which exporters, where to, and how much may wait."""

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

_DEFAULT_QUEUE_SIZE: Final = 2048  # spans, or log records: the default of the standard's variables
_HTTP_PROTOCOL: Final = "http/protobuf"


def is_disabled() -> bool:
    """Whether `OTEL_SDK_DISABLED` says so."""
    return read_variable("OTEL_SDK_DISABLED").lower() == "true"


def requested_exporters(signal: str) -> list[str]:
    """The exporters the environment asks for, of those there are. OTLP by itself only when an endpoint is named."""
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
        if name == "none" or (name, signal) == ("prometheus", "METRICS"):  # it is asked on the health port
            continue
        if name not in ("otlp", "console"):
            log.warning(
                "telemetry_exporter_unknown",
                variable=f"OTEL_{signal}_EXPORTER",
                seen=name,
                expected="otlp, console or none; for metrics prometheus, too",
            )
        elif name == "otlp" and protocol != _HTTP_PROTOCOL:
            log.warning(
                "telemetry_protocol_unsupported",
                variable="OTEL_EXPORTER_OTLP_PROTOCOL",
                seen=protocol,
                expected=_HTTP_PROTOCOL,
                hint="a collector listens for it on port 4318, as a rule",
            )
        else:
            known.append(name)
    return known


def metric_exporter(name: str) -> Any:
    """The exporter `console`, to standard error, or else OTLP over HTTP; its packages are loaded now."""
    if name == "console":
        from opentelemetry.sdk.metrics.export import ConsoleMetricExporter

        return ConsoleMetricExporter(out=sys.stderr)
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    return OTLPMetricExporter()


def has_prometheus(*, asked: bool) -> bool:
    """Whether the extra `prometheus` is installed; a warning says so where it was `asked` for and is not."""
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
    """Whether histograms are wanted as they are by default: cumulative, in explicit buckets, exemplars from traces."""
    plain = {
        "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "cumulative",
        "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": "explicit_bucket_histogram",
        "OTEL_METRICS_EXEMPLAR_FILTER": "trace_based",
    }
    return all(read_variable(name).lower() in ("", value) for name, value in plain.items())


def queue_size(name: str) -> int:
    """How many spans or log records may wait."""
    asked = read_variable(name)
    return int(asked) if asked.isdecimal() else _DEFAULT_QUEUE_SIZE


def read_variable(name: str) -> str:
    """Return an environment variable without white space around it; empty if it is unset."""
    return environment.variable(name) or ""
