"""Subjects and filters are matched as in NATS, and sizes are counted as in the server."""

from __future__ import annotations

import pytest

from pointsman.bus.validation import check_filter, check_subject, event_headers, header_size, matches, wire_headers
from pointsman.errors import InvalidTokenError


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.b", "a.b", True), ("a.b", "a.c", False), ("a.*", "a.b", True), ("a.*", "a.b.c", False), ("a.*", "a", False),
        ("a.>", "a.b.c", True), ("a.>", "a.b", True), ("a.>", "a", False), (">", "a", True), ("*.b.>", "a.b.c", True),
        ("*.b.>", "a.c.c", False), ("a", "a.b", False),
    ],
)  # fmt: skip
def test_wildcards_match_as_in_nats(pattern: str, subject: str, expected: bool) -> None:
    assert matches(pattern, subject) is expected


@pytest.mark.parametrize("subject", ["a", "a.b-c_D.1", "$JS.API", "ü.ñ", "a.%20"])
def test_plain_subjects_pass(subject: str) -> None:
    check_subject(subject)
    check_filter(subject)


@pytest.mark.parametrize("subject", ["*", ">", "a.*", "a.>", "*.b.>"])
def test_wildcards_pass_as_filters_only(subject: str) -> None:
    check_filter(subject)
    with pytest.raises(InvalidTokenError):
        check_subject(subject)


@pytest.mark.parametrize("subject", ["", ".", "a.", ".a", "a..b", "a.>.b", "a*", "a.b>", "a b", "a\nb", "a\x00"])
def test_broken_filters_are_refused(subject: str) -> None:
    with pytest.raises(InvalidTokenError):
        check_filter(subject)


def test_an_error_repeats_only_the_beginning_of_a_long_subject() -> None:
    with pytest.raises(InvalidTokenError) as refused:
        check_subject("x" * 100_000)

    assert len(str(refused.value)) < 300


def test_the_size_is_that_of_the_block_on_the_wire() -> None:
    headers = {"a": "b", "wide": "ü"}

    assert header_size(headers) == len("NATS/1.0\r\na: b\r\nwide: ü\r\n\r\n".encode())
    assert header_size({}) == 0


def test_headers_added_by_the_broker_are_not_the_events() -> None:
    wire = wire_headers({"ce-id": " a ", "Nats-Msg-Id": "m"}, {"Nats-Expected-Last-Subject-Sequence": "0"})

    assert wire == {"ce-id": "a", "Nats-Msg-Id": "m", "Nats-Expected-Last-Subject-Sequence": "0"}
    assert event_headers({**wire, "Nats-Scheduler": "x", "Nats-Schedule-Next": "purge"}) == {
        "ce-id": "a",
        "Nats-Msg-Id": "m",
    }
