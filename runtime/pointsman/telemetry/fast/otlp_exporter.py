"""Extend the SDK's exporter of spans. One request contains encoded spans and spans of the SDK."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from pointsman.telemetry.fast import otlp_encoder
from pointsman.telemetry.fast.lean_spans import EncodedSpan
from pointsman.telemetry.otel_env import read_variable

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

__all__ = ["enable_encoded_spans", "span_exporter"]

_MAX_REQUEST_BYTES: Final = 64 * 1024 * 1024  # largest request, as in the SDK
_PARENT_BASED_SAMPLERS: Final = (
    "",
    "always_on",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
)
_LIMIT_VARIABLES: Final = (
    "OTEL_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_SPAN_EVENT_COUNT_LIMIT",
    "OTEL_SPAN_LINK_COUNT_LIMIT",
    "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT",
)


def span_exporter(name: str) -> Any:
    """Return the exporter with this name in `OTEL_TRACES_EXPORTER`."""
    if name == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter(out=sys.stderr)  # not standard output, which is for results
    return _otlp()


def _otlp() -> Any:
    """Return an OTLP exporter for encoded spans. The SDK sends, retries, compresses and encrypts its requests.

    In two cases, the result is the SDK's own exporter, which cannot send encoded spans. In the first case, the SDK
    lacks the attributes that the extension uses. In the second case, the environment sets options that only the SDK
    implements: limits, the SDK's own metrics, or a sampler that may drop a span of a sampled trace.

    Returns:
        The exporter.
    """
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import SpanExportResult

    class Sending(OTLPSpanExporter):
        about: tuple[Resource, tuple[str, str, str]] | None = None
        left_out = 0  # number of spans in the last batch that could not be encoded

        def export(self, spans: Sequence[Any]) -> SpanExportResult:
            self.left_out = 0
            ours = [span for span in spans if isinstance(span, EncodedSpan)]
            if not ours or self._shutdown or self.about is None:
                return super().export(spans)
            others = [span for span in spans if not isinstance(span, EncodedSpan)]
            resource, scope = self.about
            encoded = list(map(EncodedSpan.encoded, ours))
            self.left_out = encoded.count(b"")
            body = otlp_encoder.encode_request(resource.attributes, resource.schema_url, scope, encoded)
            if others:  # appended, because in protobuf two messages in a row are one message with the fields of both
                body += encode_spans(others).SerializePartialToString()
            if len(body) > _MAX_REQUEST_BYTES:
                raise ValueError(
                    f"a batch of {len(spans)} spans is a request of {len(body)} bytes; at most {_MAX_REQUEST_BYTES}"
                    " are allowed: lower OTEL_BSP_MAX_EXPORT_BATCH_SIZE"
                )
            return SpanExportResult.SUCCESS if self._client.export(body).success else SpanExportResult.FAILURE

    plain = (
        read_variable("OTEL_TRACES_SAMPLER").lower() in _PARENT_BASED_SAMPLERS
        and not any(map(read_variable, _LIMIT_VARIABLES))
        and read_variable("OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED").lower() != "true"
    )
    exporter = Sending() if plain else OTLPSpanExporter()
    known = callable(getattr(getattr(exporter, "_client", None), "export", None)) and hasattr(exporter, "_shutdown")
    return exporter if known else OTLPSpanExporter()


def enable_encoded_spans(exporters: Sequence[Any], resource: Resource, scope: tuple[str, str, str]) -> bool:
    """Enable encoded spans if all exporters can send them, and return True. `scope` is a name, version and schema."""
    if not all(hasattr(exporter, "about") for exporter in exporters):
        return False
    for exporter in exporters:
        exporter.about = resource, scope
    return True
