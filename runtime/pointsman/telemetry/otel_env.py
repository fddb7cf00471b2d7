"""What the standard's environment variables ask for: which exporters, where to, and how much may wait."""

from __future__ import annotations

import sys
from typing import Any, Final

from pointsman.telemetry.logs import get_logger
from pointsman.util import environment

__all__ = [
    "has_plain_histograms",
    "has_prometheus",
    "is_disabled",
    "metric_exporter",
    "room",
    "variable",
    "wanted",
]

log = get_logger(__name__)

_QUEUE: Final = 2048  # spans, or log records: the default of the standard's variables
_HTTP: Final = "http/protobuf"


def is_disabled() -> bool:
    """Whether `OTEL_SDK_DISABLED` says so."""
    return variable("OTEL_SDK_DISABLED").lower() == "true"


def wanted(signal: str) -> list[str]:
    """The exporters the environment asks for, of those there are. OTLP by itself only when an endpoint is named."""
    asked = [name.strip().lower() for name in variable(f"OTEL_{signal}_EXPORTER").split(",") if name.strip()]
    if not asked and (variable("OTEL_EXPORTER_OTLP_ENDPOINT") or variable(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")):
        asked = ["otlp"]
    protocol = variable(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL") or variable("OTEL_EXPORTER_OTLP_PROTOCOL") or _HTTP
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
        elif name == "otlp" and protocol != _HTTP:
            log.warning(
                "telemetry_protocol_unsupported",
                variable="OTEL_EXPORTER_OTLP_PROTOCOL",
                seen=protocol,
                expected=_HTTP,
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


def has_plain_histograms() -> bool:
    """Whether histograms are wanted as they are by default: cumulative, in explicit buckets, exemplars from traces."""
    plain = {
        "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "cumulative",
        "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": "explicit_bucket_histogram",
        "OTEL_METRICS_EXEMPLAR_FILTER": "trace_based",
    }
    return all(variable(name).lower() in ("", value) for name, value in plain.items())


def room(name: str) -> int:
    """How many spans or log records may wait."""
    asked = variable(name)
    return int(asked) if asked.isdecimal() else _QUEUE


def variable(name: str) -> str:
    """Return an environment variable without white space around it; empty if it is unset."""
    return environment.variable(name) or ""
