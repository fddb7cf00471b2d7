"""Read streams: one message from the leader, the present messages of a subject, and the messages that follow."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from pointsman.bus.jetstream.protocol import (
    NO_MESSAGE_CODE,
    NO_STREAM_CODE,
    Connection,
    DeliveryInfo,
    WireMessage,
    error_code,
    error_text,
    header_block,
    parse_time,
    to_nanoseconds,
    to_stored_message,
    with_advice,
)
from pointsman.bus.jetstream.pull_consumer import PullRequest
from pointsman.bus.jetstream.refusals import Refusal
from pointsman.bus.validation import event_headers
from pointsman.errors import BusUnavailableError, PeerError, PermissionDeniedError
from pointsman.ports.bus import StoredMessage
from pointsman.util.lazy_import import structlog

__all__ = ["StreamReader"]

_log = structlog.get_logger(__name__)

_FOLLOW_WINDOW = 256  # messages requested ahead by a follower: enough to hide the round trip, few enough to store
_DIRECT_GET_BATCH = 512  # messages asked for in one direct get
_FOLLOWER_LINGER_S = 60.0  # seconds the broker keeps a follower's consumer without pull requests
_RETRY_PAUSE_S = 0.5  # seconds before a follower repeats a failed request


class StreamReader:
    """Reads the streams of a connection. An answer must arrive within `timeout` seconds.

    `missing` is called with a stream that the broker does not have; it returns True if a second try may succeed.
    """

    def __init__(self, bus: Connection, timeout: float, missing: Callable[[str], Awaitable[bool]]) -> None:
        self._bus = bus
        self._timeout = timeout
        self._retry_missing = missing

    async def broker_time(self, stream: str) -> datetime:
        """Return the time of the broker that sets the time stamps of `stream`."""
        answer = await self._bus.api(f"STREAM.INFO.{stream}")
        if error_code(answer):
            raise PeerError(f"the broker does not describe the stream {stream}: {error_text(answer)}")
        return parse_time(answer["ts"])

    async def get_from_leader(self, stream: str, query: Mapping[str, Any]) -> StoredMessage | None:
        """Read from the stream's leader: a direct get may be answered by a replica that is behind."""
        answer = await self._bus.api(f"STREAM.MSG.GET.{stream}", query)
        if error_code(answer) == NO_STREAM_CODE and await self._retry_missing(stream):
            answer = await self._bus.api(f"STREAM.MSG.GET.{stream}", query)
        if code := error_code(answer):
            if code == NO_MESSAGE_CODE:
                return None
            raise PeerError(f"the broker does not read {query} of {stream}: {error_text(answer)}")
        message = answer["message"]
        return StoredMessage(
            message["subject"],
            b64decode(message.get("data", "")),
            header_block(message.get("hdrs", "")),
            message["seq"],
            parse_time(message["time"]),
        )

    async def read(self, stream: str, subject: str, after: int) -> AsyncGenerator[StoredMessage, None]:
        """Yield the present messages of `subject`: up to the last sequence of the leader, in batched direct gets.

        This takes one read from the leader and one request per `_DIRECT_GET_BATCH` messages. A consumer would take
        three requests, and would have to be deleted. If a replica lags, its missing messages are read from the leader,
        one at a time.

        Args:
            stream: The name of the stream.
            subject: A subject, or a filter with wildcards.
            after: The sequence before the first message; 0 for all.

        Yields:
            The messages in the order of their sequences.
        """
        end = await self.get_from_leader(stream, {"last_by_subj": subject})
        while end is not None and after < end.sequence:
            reached = after
            for stored in await self._direct_batch(stream, subject, after + 1):
                if stored.sequence > after:
                    after = stored.sequence
                    yield stored
            if after == reached:  # a replica lags, or the headers of a message hide its number
                next_one = await self.get_from_leader(stream, {"seq": after + 1, "next_by_subj": subject})
                if next_one is None:  # the last message was deleted during the read
                    return
                after = next_one.sequence
                yield next_one

    async def _direct_batch(self, stream: str, subject: str, sequence: int) -> list[StoredMessage]:
        batch: list[StoredMessage] = []
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def arrived(message: WireMessage) -> None:
            headers = message.headers
            if "Nats-Sequence" in headers:
                batch.append(
                    StoredMessage(
                        headers["Nats-Subject"],
                        message.data,
                        event_headers(headers),
                        int(headers["Nats-Sequence"]),
                        parse_time(headers["Nats-Time-Stamp"]),
                    )
                )
            elif not done.done():
                done.set_result(None)

        query = json.dumps({"batch": _DIRECT_GET_BATCH, "next_by_subj": subject, "seq": sequence}).encode()
        inbox, asked = self._bus.new_inbox(), self._bus.api_subject(f"DIRECT.GET.{stream}")

        def refused(refusal: Refusal, error: PermissionDeniedError) -> None:
            if refusal.concerns(asked, inbox) and not done.done():
                done.set_exception(error)

        listening = await self._bus.subscribe(inbox, arrived)
        self._bus.refusal_listeners.add(refused)
        try:
            await self._bus.send(asked, query, reply=inbox)
            async with asyncio.timeout(self._timeout):
                await done
        except TimeoutError:
            raise BusUnavailableError(
                f"no answer to a read of {subject} in {stream} within {self._timeout} s"
            ) from None
        finally:
            self._bus.refusal_listeners.discard(refused)
            await listening.unsubscribe()
        return batch

    async def follow(
        self,
        stream: str,
        subjects: Sequence[str],
        after: int,
    ) -> AsyncGenerator[StoredMessage, None]:
        """Yield the messages of the subjects above `after`, then each new message.

        An ephemeral consumer counts its deliveries: a gap in the count means that a delivery was lost, and a new
        consumer begins after the last message that was yielded. A broker that was restarted with fewer messages counts
        from a lower sequence: a stream that was created again is read from its start, a stream that lost its end from
        its present end.

        Args:
            stream: The name of the stream.
            subjects: Subjects, or filters with wildcards.
            after: The sequence before the first message; 0 for all.

        Yields:
            The messages in the order of their sequences.

        Raises:
            PermissionDeniedError: The broker refuses a permission that the consumer needs.
        """
        made: object = None
        while True:
            state = await self._request_with_retry(stream, subjects, lambda: self._bus.api(f"STREAM.INFO.{stream}"))
            after = min(after, state["state"]["last_seq"]) if made in (None, state["created"]) else 0
            made = state["created"]
            name = await self._create_follower(stream, subjects, after)
            pull = PullRequest(self._bus, stream, name)
            try:
                await pull.open()
                expected = 1
                while pull.buffer or not pull.lost:
                    await pull.refill(_FOLLOW_WINDOW)
                    if not pull.buffer:
                        await pull.wait()
                        continue
                    meta = DeliveryInfo(pull.buffer[0].reply)
                    if meta.delivery != expected:
                        break
                    expected += 1
                    after = meta.sequence
                    yield to_stored_message(pull.buffer.popleft(), meta)
            finally:
                await pull.close()
                await self._bus.send(
                    self._bus.api_subject(f"CONSUMER.DELETE.{stream}.{name}"), reply=self._bus.new_inbox()
                )
            if pull.denied is not None:
                raise PermissionDeniedError(str(pull.denied))

    async def _create_follower(self, stream: str, subjects: Sequence[str], after: int) -> str:
        """Create an ephemeral consumer and return its name. Each try has the same name: a lost answer is harmless."""
        name = f"reader_{self._bus.new_inbox().rpartition('.')[2]}"
        order = {
            "stream_name": stream,
            "config": {
                "name": name,
                "filter_subjects": list(subjects),
                "ack_policy": "none",
                "max_deliver": -1,
                "deliver_policy": "by_start_sequence",
                "opt_start_seq": after + 1,
                "replay_policy": "instant",
                "mem_storage": True,
                "num_replicas": 1,
                "inactive_threshold": to_nanoseconds(_FOLLOWER_LINGER_S),
            },
        }
        await self._request_with_retry(
            stream, subjects, lambda: self._bus.api(f"CONSUMER.CREATE.{stream}.{name}", order)
        )
        return name

    async def _request_with_retry(
        self, stream: str, subjects: Sequence[str], ask: Callable[[], Awaitable[dict[str, Any]]]
    ) -> dict[str, Any]:
        """Return the answer that a follower needs, with retries without a limit. Log a new reason only."""
        reason = ""
        while True:
            report = _log.warning
            try:
                answer = await ask()
                if not (code := error_code(answer)):
                    return answer
                refusal = with_advice(error_text(answer), code)
                if code != NO_STREAM_CODE:  # a lost stream is created again; any other refusal may be permanent
                    report = _log.error
            except BusUnavailableError as error:
                if self._bus.closed:
                    raise
                refusal = str(error)
            if refusal != reason and self._bus.connected:  # a lost connection has its own log line
                reason = refusal
                report("follow_retrying", stream=stream, subjects=subjects, reason=reason, hint="it is tried again")
            await asyncio.sleep(_RETRY_PAUSE_S)
