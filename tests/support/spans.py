"""Collect the spans of this process for a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import DEFAULT_ON, Sampler

from pointsman.telemetry import traces
from pointsman.telemetry.traces import TraceContext

__all__ = ["NOON", "REMOTE", "SPAN", "TRACE", "exporting", "ids"]

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
REMOTE = TraceContext(TRACE, SPAN, 1)
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@contextmanager
def exporting(sampler: Sampler = DEFAULT_ON) -> Iterator[InMemorySpanExporter]:
    """Turn tracing on in the block. Yield a list to which each span is appended when the span ends."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traces.configure(provider)
    try:
        yield exporter
    finally:
        traces.configure(None)


def ids(finished: ReadableSpan) -> tuple[str, str, str | None]:
    """Return the ids of the trace, of the span and of its parent."""
    context = finished.get_span_context()
    assert context is not None
    parent = f"{finished.parent.span_id:016x}" if finished.parent else None
    return f"{context.trace_id:032x}", f"{context.span_id:016x}", parent
