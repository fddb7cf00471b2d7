"""Each answer of a stream to a write has one outcome. An observer that raises makes no write fail."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from pointsman.bus.jetstream.message_tracing import TRACE_DESTINATION_HEADER
from pointsman.bus.jetstream.protocol import PendingCall, WireMessage, header_lines
from pointsman.bus.jetstream.publisher import StreamPublisher
from pointsman.bus.jetstream.reader import StreamReader
from pointsman.bus.validation import EXPECTED_SEQUENCE_HEADER, EXPECTED_SUBJECT_HEADER, header_size
from pointsman.errors import (
    BusUnavailableError,
    ConflictError,
    OversizeEventError,
    PeerError,
    PointsmanError,
    PublishOutcomeUnknownError,
)
from pointsman.ports.bus import Server, StoredMessage, TraceHop
from pointsman.testing import VirtualClock

HEADERS = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
HOPS = "_INBOX.hops"


class Stream:
    """A connection to a stream that answers `answer`, and whose leader has `newest` as each subject's last message."""

    max_payload = 1_000
    server = None

    def __init__(self, answer: Mapping[str, Any] | None = None, newest: int = 0) -> None:
        self.answer = {"stream": "NS_LOG", **(answer or {"seq": 7})}
        self.newest = newest
        self.asked: list[str] = []
        self.sent: list[dict[str, str]] = []

    def request(
        self,
        subject: str,
        body: bytes = b"",
        headers: bytes = b"",
        *,
        lost: type[BusUnavailableError] = BusUnavailableError,
    ) -> PendingCall[WireMessage]:
        self.sent.append(header_lines(headers))
        return self._told

    async def _told(self) -> WireMessage:
        return WireMessage("_INBOX.1", "", json.dumps(self.answer).encode())

    async def last(self, stream: str, subject: str) -> StoredMessage | None:
        self.asked.append(subject)
        at = datetime(2026, 1, 1, tzinfo=UTC)
        return StoredMessage(subject, b"", {}, self.newest, at) if self.newest else None


class Watching:
    def __init__(self) -> None:
        self.errors: list[str | None] = []

    def on_published(self, subject: str, server: Server | None, seconds: float, error: str | None) -> None:
        self.errors.append(error)

    def on_received(self, subject: str, server: Server | None, consumer: str, amount: int) -> None: ...
    def on_hop(self, hop: TraceHop) -> None: ...


def writer(stream: Stream, watching: Watching | None = None) -> StreamPublisher:
    return StreamPublisher(stream, cast(StreamReader, stream), VirtualClock(), watching)


def refusal(number: int, code: int = 400) -> dict[str, Any]:
    return {"error": {"err_code": number, "code": code, "description": "no"}}


@pytest.mark.parametrize(
    ("answer", "raised"),
    [
        (refusal(10071), ConflictError),
        (refusal(10054), OversizeEventError),
        (refusal(10097), OversizeEventError),
        (refusal(10077, 503), BusUnavailableError),
        (refusal(10060), PeerError),
    ],
)
async def test_refusal_is_reported_as_an_error_of_its_kind(
    answer: dict[str, Any], raised: type[PointsmanError]
) -> None:
    watching = Watching()

    with pytest.raises(raised) as caught:
        await writer(Stream(answer), watching).publish("ns.log.a.w", b"", {EXPECTED_SEQUENCE_HEADER: "0"})

    assert caught.type is raised
    assert watching.errors == [raised.kind]


@pytest.mark.parametrize(("newest", "raised"), [(0, PublishOutcomeUnknownError), (3, ConflictError)])
async def test_a_message_in_flight_is_a_conflict_only_after_it_is_stored(
    newest: int, raised: type[PointsmanError]
) -> None:
    stream = Stream(refusal(10164), newest)

    with pytest.raises(raised):
        await writer(stream).publish(
            "ns.schedule.w.a", b"", {EXPECTED_SEQUENCE_HEADER: "0", EXPECTED_SUBJECT_HEADER: "ns.timer.a.w.a"}
        )

    assert stream.asked == ["ns.timer.a.w.a"]


@pytest.mark.parametrize(("spare", "asks"), [(0, True), (-1, False)])
async def test_trace_header_is_added_where_the_message_has_room(spare: int, asks: bool) -> None:
    stream = Stream()
    watched = writer(stream, Watching())
    watched.hops = HOPS
    room = stream.max_payload - header_size({**HEADERS, TRACE_DESTINATION_HEADER: HOPS})

    sequence = await watched.publish("ns.log.a.w", b"x" * (room - spare), HEADERS)

    assert sequence == 7
    assert stream.sent == [{**HEADERS, TRACE_DESTINATION_HEADER: HOPS} if asks else HEADERS]


@pytest.mark.parametrize("watching", [None, Watching()])
async def test_message_counts_as_sent_once_stored_with_or_without_an_observer(
    watching: Watching | None,
) -> None:
    """The publish starts before it is awaited, so concurrent publishes need no tasks."""
    stream = Stream()

    storing = writer(stream, watching).publish("ns.log.a.w", b"", {})

    assert stream.sent == [{}]
    assert await storing == 7


@pytest.mark.parametrize("watching", [None, Watching()])
async def test_abandoned_publish_leaves_no_unawaited_future(
    watching: Watching | None,
) -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")

        writer(Stream(), watching).publish("ns.log.a.w", b"", {}).close()

    assert [str(each.message) for each in warned] == []


async def test_unsent_message_is_reported_too() -> None:
    watching = Watching()

    with pytest.raises(OversizeEventError):
        await writer(Stream(), watching).publish("ns.log.a.w", b"x" * 2_000, {})

    assert watching.errors == [OversizeEventError.kind]
