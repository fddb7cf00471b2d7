"""A span is exported with the ids that it got at its start."""

from __future__ import annotations

from datetime import timedelta, timezone

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import SpanKind
from support.spans import NOON, REMOTE, SPAN, TRACE, ids

from pointsman.telemetry import traces
from pointsman.telemetry.traces import (
    TraceContext,
    record,
    reserve_context,
    span,
)


def test_a_span_is_exported_under_the_ids_chosen_when_it_began(exported: InMemorySpanExporter) -> None:
    workflow = reserve_context(REMOTE)
    task = reserve_context(workflow)
    east = NOON.astimezone(timezone(timedelta(hours=8)))

    record("task", context=task, parent_span_id=workflow.span_id, kind="client", started=NOON, ended=NOON)
    record(
        "workflow",
        context=workflow,
        parent_span_id=SPAN,
        started=NOON,
        ended=east + timedelta(seconds=2, microseconds=1),
        attributes={"a": 1, "none": None},
        error=("limit", "the deadline passed"),
    )

    first, second = exported.get_finished_spans()
    assert ids(first) == (TRACE, task.span_id, workflow.span_id)
    assert ids(second) == (TRACE, workflow.span_id, SPAN)
    assert first.kind is SpanKind.CLIENT
    assert second.start_time == 1_769_860_800_000_000_000
    assert second.end_time == 1_769_860_802_000_001_000
    assert dict(second.attributes or {}) == {"a": 1, "error.type": "limit"}
    assert second.status.description == "the deadline passed"


def test_a_root_is_exported_under_the_ids_chosen_for_it(exported: InMemorySpanExporter) -> None:
    root = reserve_context()

    with span("something else is going on"):
        record("workflow", context=root, parent_span_id=None, started=NOON, ended=NOON)

    assert root.sampled
    assert ids(exported.get_finished_spans()[0]) == (root.trace_id, root.span_id, None)


def test_the_chosen_ids_are_used_once(exported: InMemorySpanExporter) -> None:
    record("workflow", context=reserve_context(REMOTE), parent_span_id=SPAN, started=NOON, ended=NOON)
    with span("next"):
        pass

    first, second = exported.get_finished_spans()
    assert set(ids(first)).isdisjoint(ids(second))


def test_an_unsampled_trace_is_not_exported(exported: InMemorySpanExporter) -> None:
    reserved = reserve_context(TraceContext(TRACE, SPAN, 0))

    record("workflow", context=reserved, parent_span_id=SPAN, started=NOON, ended=NOON)
    record("root", context=TraceContext(TRACE, SPAN, 0), parent_span_id=None, started=NOON, ended=NOON)

    assert exported.get_finished_spans() == ()


def test_the_sampler_decides_for_new_traces() -> None:
    traces.configure(TracerProvider(sampler=ParentBased(ALWAYS_OFF), shutdown_on_exit=False))
    try:
        assert not reserve_context().sampled
        assert reserve_context(REMOTE).sampled
    finally:
        traces.configure(None)


def test_a_clock_that_was_behind_makes_no_negative_duration(exported: InMemorySpanExporter) -> None:
    record("w", context=reserve_context(), parent_span_id=None, started=NOON, ended=NOON - timedelta(seconds=1))

    (finished,) = exported.get_finished_spans()
    assert finished.start_time == finished.end_time


def test_an_application_keeps_its_own_ids_for_its_own_spans() -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    generator = provider.id_generator
    traces.configure(provider)
    try:
        assert provider.id_generator is generator
        assert provider.get_tracer("the application's").id_generator is generator  # type: ignore[attr-defined]
    finally:
        traces.configure(None)
