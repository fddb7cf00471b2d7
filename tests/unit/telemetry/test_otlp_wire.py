"""What is written at once is what the official encoder writes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanKind, Status, StatusCode
from opentelemetry.trace.span import SpanContext, TraceFlags, TraceState

from pointsman.telemetry.otlp_wire import encode

texts = st.text(max_size=300)
values = st.one_of(
    texts, st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False),
    st.lists(texts, max_size=4).map(tuple), st.lists(st.integers(-5, 300), max_size=4).map(tuple),
)  # fmt: skip
attributes = st.dictionaries(texts.filter(bool), values, max_size=6)
contexts = st.builds(
    SpanContext,
    trace_id=st.integers(1, 2**128 - 1),
    span_id=st.integers(1, 2**64 - 1),
    is_remote=st.booleans(),
    trace_flags=st.just(TraceFlags(1)),
    trace_state=st.sampled_from([None, TraceState([("a", "1"), ("b", "2")])]),
)
statuses = st.one_of(
    st.builds(Status, st.just(StatusCode.ERROR), texts), st.just(Status()), st.just(Status(StatusCode.OK))
)
times = st.integers(0, 2**63)
RESOURCES = (Resource({"service.name": "x", "n": 300}), Resource({"service.name": "y"}, "https://schema"))
SCOPES = (InstrumentationScope("pointsman", "1.0", "https://gen-ai"), InstrumentationScope("other"), None)


@st.composite
def spans(draw: Any) -> ReadableSpan:
    return ReadableSpan(
        name=draw(texts),
        context=draw(contexts),
        parent=draw(st.one_of(st.none(), contexts)),
        resource=draw(st.sampled_from(RESOURCES)),
        attributes=draw(attributes),
        events=[Event(draw(texts), draw(attributes), draw(times)) for _ in range(draw(st.integers(0, 2)))],
        links=[Link(draw(contexts), draw(attributes)) for _ in range(draw(st.integers(0, 2)))],
        kind=draw(st.sampled_from(SpanKind)),
        status=draw(statuses),
        start_time=draw(times),
        end_time=draw(times),
        instrumentation_scope=draw(st.sampled_from(SCOPES)),
    )


@given(st.lists(spans(), max_size=5))
def test_it_is_read_as_what_the_official_encoder_writes(made: list[ReadableSpan]) -> None:
    assert ExportTraceServiceRequest.FromString(encode(made)) == encode_spans(made)


def test_what_opentelemetry_has_no_word_for_is_refused() -> None:
    context = SpanContext(1, 1, is_remote=False)
    with pytest.raises(TypeError):
        encode([ReadableSpan("x", context, attributes={"a": object()})])  # type: ignore[dict-item]
