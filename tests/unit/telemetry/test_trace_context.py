"""A well-formed trace header is parsed. Other headers are ignored and raise no error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.spans import REMOTE, SPAN, TRACE

from pointsman.telemetry.traces import (
    TraceContext,
    parse_traceparent,
)


@pytest.mark.parametrize(
    ("header", "flags"),
    [
        (f"00-{TRACE}-{SPAN}-01", 1),
        (f"00-{TRACE}-{SPAN}-00", 0),
        (f" 00-{TRACE}-{SPAN}-03\t", 3),
        (f"00-{TRACE}-{SPAN}-ff", 3),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-brings", 1),
    ],
)
def test_a_well_formed_header_is_read(header: str, flags: int) -> None:
    assert parse_traceparent(header) == TraceContext(TRACE, SPAN, flags)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "nonsense",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"cc-{TRACE}-{SPAN}-01more",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01\n",
        f"0x-{TRACE}-{SPAN}-01",
        f"00_{TRACE}_{SPAN}_01",
        f"00-{TRACE}-{SPAN}-0\u0661",
    ],
)
def test_a_broken_header_is_no_context(header: str | None) -> None:
    assert parse_traceparent(header) is None


@given(st.text(max_size=80), st.text(max_size=20))
def test_nothing_makes_it_raise(header: str, state: str) -> None:
    parsed = parse_traceparent(header, state)

    assert parsed is None or parse_traceparent(parsed.traceparent, parsed.tracestate) == parsed


@pytest.mark.parametrize(
    ("state", "kept"), [("a=1,b=2", "a=1,b=2"), (" a=1 ", "a=1"), ("a=\n", ""), ("ä=1", ""), ("a=" + "x" * 511, "")]
)
def test_a_tracestate_is_carried_or_dropped_whole(state: str, kept: str) -> None:
    parsed = parse_traceparent(REMOTE.traceparent, state)

    assert parsed is not None
    assert parsed.tracestate == kept
