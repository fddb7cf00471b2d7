"""What is sent of ended spans is, message for message, what the SDK's own encoder would have sent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from pointsman.telemetry.encoder import encode

LARGEST = 2**63 - 1

texts = st.text(max_size=80)  # hypothesis makes no lone surrogates: the SDK cannot send them
scalars = st.none() | st.booleans() | st.integers(-LARGEST - 1, LARGEST) | st.floats() | texts | st.binary(max_size=20)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4).map(tuple) | st.dictionaries(st.text(min_size=1), inner, max_size=4),
    max_leaves=8,
)
attributes = st.dictionaries(st.text(min_size=1, max_size=20), values, max_size=6)


@st.composite
def bounded(draw: st.DrawFn) -> BoundedAttributes:
    return BoundedAttributes(draw(st.none() | st.integers(0, 4)), draw(attributes))


states = st.none() | st.dictionaries(
    st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True), st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True), max_size=3
).map(lambda found: TraceState(list(found.items())))
contexts = st.builds(
    SpanContext,
    trace_id=st.integers(1, 2**128 - 1),
    span_id=st.integers(1, 2**64 - 1),
    is_remote=st.booleans(),
    trace_flags=st.integers(0, 3).map(TraceFlags),
    trace_state=states,
)
times = st.integers(0, 2**64 - 1)
statuses = st.sampled_from(StatusCode).flatmap(
    lambda code: st.builds(Status, st.just(code), (st.none() | texts) if code is StatusCode.ERROR else st.none())
)
resources = [
    Resource({"service.name": "a", "ports": (1, 2)}, "https://schema"),
    Resource({"service.name": "b"}),
    Resource({}),
]
scopes = [
    InstrumentationScope("pointsman", "1.0", "https://schema"),
    InstrumentationScope("other", None, None, {"key": "é"}),
    None,
]
spans = st.builds(
    ReadableSpan,
    name=texts,
    context=contexts,
    parent=st.none() | contexts,
    resource=st.sampled_from(resources),
    attributes=st.none() | attributes | bounded(),
    events=st.lists(st.builds(Event, texts, st.none() | bounded(), times), max_size=3),
    links=st.lists(st.builds(Link, contexts, st.none() | bounded()), max_size=3),
    kind=st.sampled_from(SpanKind),
    status=statuses,
    start_time=times,
    end_time=times,
    instrumentation_scope=st.sampled_from(scopes),
)


def sent(these: Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
    return ExportTraceServiceRequest.FromString(encode(these))


def as_the_sdk_would(these: Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
    """Written and read, because a NaN is equal to none but its bytes."""
    return ExportTraceServiceRequest.FromString(encode_spans(these).SerializeToString())


def same(these: Sequence[ReadableSpan]) -> bool:
    return sent(these).SerializeToString(deterministic=True) == as_the_sdk_would(these).SerializeToString(
        deterministic=True
    )


@settings(max_examples=40)  # of some 2 spans each
@given(st.lists(spans, max_size=4))
def test_spans_are_sent_as_the_sdk_would_send_them(these: list[ReadableSpan]) -> None:
    assert same(these)


def with_attributes(*each: dict[str, Any]) -> list[ReadableSpan]:
    context = SpanContext(1, 2, is_remote=False)
    return [ReadableSpan("x", context, attributes=found, start_time=1, end_time=2) for found in each]


def test_values_that_are_equal_and_not_the_same_are_told_apart_though_they_come_again() -> None:
    these = with_attributes(*[{"key": value} for value in (1, True, 1.0, "1", b"1", 0, False, 0.0, -0.0, "", (), {})])

    assert same(these * 2)
    kinds = [span.attributes[0].value for span in sent(these).resource_spans[0].scope_spans[0].spans]
    assert [kind.WhichOneof("value") for kind in kinds[:5]] == [
        "int_value",
        "bool_value",
        "double_value",
        "string_value",
        "bytes_value",
    ]
    assert math.copysign(1, kinds[8].double_value) == -1


@pytest.mark.parametrize("length", [0, 1, 64, 65, 127, 128, 16_383, 16_384, 3_000_000])
def test_a_text_may_be_of_any_length(length: int) -> None:
    assert same(with_attributes({"key": "é" * length}, {"x" * (length or 1): 1}))


def test_what_is_dropped_by_a_limit_is_told() -> None:
    exporter = InMemorySpanExporter()
    limits = SpanLimits(max_span_attributes=1, max_events=1, max_links=1, max_event_attributes=1)
    provider = TracerProvider(shutdown_on_exit=False, span_limits=limits)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    link = Link(SpanContext(3, 4, is_remote=True))
    with provider.get_tracer("x").start_as_current_span("x", attributes={"a": 1, "b": 2}, links=[link] * 3) as span:
        for _ in range(3):
            span.add_event("e", {"a": 1, "b": 2})
    these = exporter.get_finished_spans()

    told = sent(these).resource_spans[0].scope_spans[0].spans[0]

    assert same(these)
    dropped = (told.dropped_attributes_count, told.dropped_events_count, told.dropped_links_count)
    assert (*dropped, told.events[0].dropped_attributes_count) == (1, 2, 2, 1)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, object()])
def test_what_otlp_cannot_hold_raises(value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        encode(with_attributes({"key": value}))


def test_a_text_that_no_utf8_can_hold_is_sent_with_its_code_wherever_it_stands() -> None:
    """One exception that names a file of another encoding must not lose the 511 spans beside it."""
    context = SpanContext(1, 2, is_remote=False)
    status = Status(StatusCode.ERROR, "no \udce9")
    attributes = {"k\ud800": "\ud800", "many": ["\ud800"]}
    event = Event("e\ud800", {"k": "\ud800"}, 1)

    span = ReadableSpan(
        "n\ud800", context, attributes=attributes, events=[event], status=status, start_time=1, end_time=2
    )

    told = sent([span]).resource_spans[0].scope_spans[0].spans[0]

    assert (told.name, told.status.message, told.events[0].name) == ("n\\ud800", "no \\udce9", "e\\ud800")
    assert told.attributes[0].key == "k\\ud800"
    assert told.attributes[0].value.string_value == "\\ud800"
    assert told.attributes[1].value.array_value.values[0].string_value == "\\ud800"
    assert told.events[0].attributes[0].value.string_value == "\\ud800"


def test_a_span_that_has_not_ended_raises() -> None:
    with pytest.raises(ValueError, match="'open' is not one that has ended"):
        encode([ReadableSpan("open", SpanContext(1, 2, is_remote=False), start_time=1)])
