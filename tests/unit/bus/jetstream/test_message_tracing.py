"""Trace events of servers are parsed. Other messages are ignored."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from pointsman.bus.jetstream.message_tracing import is_sampled, parse_hop
from pointsman.ports.bus import TraceHop, TraceHopStep

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def account(*events: dict[str, Any]) -> bytes:
    """Return a trace event in the format of nats-server 2.15."""
    arrived = {"type": "in", "ts": "2026-01-02T03:04:05.480777052Z", "kind": 0, "cid": 27, "acc": "$G",
               "subj": "ns.log.crew.w"}  # fmt: skip
    return json.dumps({
        "server": {"name": "n1", "host": "127.0.0.1", "ver": "2.15.1"},
        "request": {"header": {"Traceparent": [PARENT], "Nats-Trace-Dest": ["_INBOX.x"]}, "msgsize": 154},
        "events": [arrived, *events],
    }).encode()  # fmt: skip


STORED = {"type": "js", "ts": "2026-01-02T03:04:05.48092544Z", "stream": "NS_LOG", "subject": "ns.log.crew.w"}


def at(microsecond: int) -> datetime:
    return datetime(2026, 1, 2, 3, 4, 5, microsecond, tzinfo=UTC)


def test_a_stored_message_has_its_arrival_and_its_stream() -> None:
    assert parse_hop(account(STORED)) == TraceHop(
        "ns.log.crew.w",
        {"traceparent": PARENT, "nats-trace-dest": "_INBOX.x"},
        "n1",
        (TraceHopStep("received", at(480777), ""), TraceHopStep("stored", at(480925), "NS_LOG")),
    )


def test_a_refused_one_reports_the_reason() -> None:
    hop = parse_hop(account({**STORED, "error": "last sequence by subject mismatch: 0 vs 1"}))

    assert hop is not None
    assert (hop.steps[-1].kind, hop.error) == ("refused", "last sequence by subject mismatch: 0 vs 1")


def test_unknown_fields_of_a_later_server_are_ignored() -> None:
    hop = parse_hop(account({"type": "xx", "ts": "?"}, {"type": "eg", "ts": "2026-01-02T03:04:06Z", "name": "n2"}))

    assert hop is not None
    assert [(step.kind, step.where) for step in hop.steps] == [("received", ""), ("handed_on", "n2")]


@pytest.mark.parametrize(
    "told",
    [b"", b"{}", b"[]", b"1", b'{"events": [], "server": {"name": "n1"}}', b'{"events": [{"type": "js"}]}',
     b'{"events": [{"type": "in", "ts": "yesterday", "subj": "a.b"}]}', b"\xff"],
)  # fmt: skip
def test_message_that_is_no_trace_event_is_none(told: bytes) -> None:
    assert parse_hop(told) is None


@pytest.mark.parametrize(
    ("traceparent", "sampled"),
    [(PARENT, True), (PARENT[:-1] + "0", False), (PARENT[:-1] + "3", True), ("", False), ("nonsense", False)],
)
def test_only_a_trace_that_is_kept_is_followed(traceparent: str, sampled: bool) -> None:
    assert is_sampled({"traceparent": traceparent}) is sampled
