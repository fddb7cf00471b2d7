"""The spans of this process, kept where a test can read them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import DEFAULT_ON, Sampler

from pointsman.telemetry import traces

__all__ = ["exporting"]


@contextmanager
def exporting(sampler: Sampler = DEFAULT_ON) -> Iterator[InMemorySpanExporter]:
    """Tracing is on in the block, and every span that ends in it is in what this gives at once."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traces.use(provider)
    try:
        yield exporter
    finally:
        traces.use(None)
