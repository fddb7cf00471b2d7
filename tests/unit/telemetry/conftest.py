"""Fixtures for tests of telemetry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.spans import exporting


@pytest.fixture
def exported() -> Iterator[InMemorySpanExporter]:
    """Turn tracing on. Yield the exporter that gets every ended span."""
    with exporting() as exporter:
        yield exporter
