"""Read streams: the newest message of a subject, its present messages, or its present and later messages."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Any

from pointsman.bus.jetstream.follower import Follower, merge_followers
from pointsman.bus.jetstream.protocol import (
    NO_MESSAGE_CODE,
    NO_STREAM_CODE,
    Connection,
    WireMessage,
    error_code,
    error_text,
    header_block,
    parse_time,
)
from pointsman.bus.jetstream.push_consumer import PushConsumer
from pointsman.bus.jetstream.refusals import Refusal
from pointsman.bus.jetstream.request_reply import NoRespondersError
from pointsman.bus.validation import event_headers, matches
from pointsman.errors import BusUnavailableError, PeerError, PermissionDeniedError
from pointsman.ports.bus import StoredMessage

__all__ = ["StreamReader"]

_EVERY_SUBJECT = "*.>"  # every subject of a stream has two tokens or more
_DIRECT_GET_BATCH = 512  # number of messages that one direct get requests
# Largest size in bytes of the messages of one direct get, which this process holds in memory. A single larger message
# is still sent.
_DIRECT_GET_BYTES = 4 * 1024 * 1024
# Seconds before a message that was not found is requested again. In measurements, replicas lagged by up to 7 ms.
_ABSENCE_PAUSE_S = 0.05
_LAG_TIMEOUT_S = 1.0  # seconds to wait for a message that another replica has


class StreamReader:
    """Reads the streams of a connection. An answer must arrive within `timeout` seconds.

    With `from_leader`, the leader of a stream answers, so no result is outdated. Without `from_leader`, the subject of
    each request contains the subject to read, so permissions of the broker can limit the reads. Such a request is a
    direct get of the newest message, or creates a consumer with one filter. A replica that lags might answer. So if no
    message is found and `has_replicas` returns True, the request is sent a second time.

    `missing` is called with a stream that the broker does not have. It returns True if a second try might succeed.
    """

    def __init__(
        self,
        bus: Connection,
        timeout: float,
        missing: Callable[[str], Awaitable[bool]],
        *,
        from_leader: bool = True,
        has_replicas: Callable[[], bool] = bool,
    ) -> None:
        self._bus = bus
        self._timeout = timeout
        self._retry_missing = missing
        self._from_leader = from_leader
        self._has_replicas = has_replicas

    async def broker_time(self, stream: str, subject: str) -> datetime:
        """Return the time of the broker, which sets the time stamps of `stream`.

        Without `from_leader`, create a consumer of `subject`: the broker's answer contains the time.

        Raises:
            PeerError: The broker does not answer with its time.
        """
        if self._from_leader:
            answer = await self._bus.api(f"STREAM.INFO.{stream}")
        else:
            push = PushConsumer(self._bus, stream, subject)
            try:
                answer = await push.create(deliver_policy="new")
            finally:
                await push.close()
        if error_code(answer):
            raise PeerError(f"the broker does not describe the stream {stream}: {error_text(answer)}")
        return parse_time(answer["ts"])

    async def last(self, stream: str, subject: str) -> StoredMessage | None:
        """Return the newest message of a subject, or of a filter with wildcards; None if there is no message.

        For the filter `>`, nats-server returns the message with the last sequence, or no message if this message was
        deleted. For any other filter, the server searches, which takes longer in a stream with many subjects. So for
        `>`, a search follows only if the first answer has no message.
        """
        found = await self._last(stream, subject)
        return await self._last(stream, _EVERY_SUBJECT) if found is None and subject == ">" else found

    async def _last(self, stream: str, subject: str) -> StoredMessage | None:
        if self._from_leader:
            return await self._get_from_leader(stream, {"last_by_subj": subject})
        try:
            found = await self._get_direct(stream, subject)
        except NoRespondersError:
            if not await self._retry_missing(stream):
                raise
            found = await self._get_direct(stream, subject)
        if found is None and self._has_replicas():
            await asyncio.sleep(_ABSENCE_PAUSE_S)
            found = await self._get_direct(stream, subject)
        return found

    async def get(self, stream: str, sequence: int, subject: str) -> StoredMessage | None:
        """Return the message of a sequence; None if the message was deleted or its subject does not match `subject`."""
        if self._from_leader:
            found = await self._get_from_leader(stream, {"seq": sequence})
            return found if found is not None and matches(subject, found.subject) else None
        async with aclosing(self._read_pushed(stream, subject, sequence - 1, sequence)) as messages:
            async for stored in messages:
                return stored if stored.sequence == sequence else None
        return None

    def read(self, stream: str, subject: str, after: int) -> AsyncGenerator[StoredMessage, None]:
        """Yield the present messages of a subject, or of a filter with wildcards, above the sequence `after`.

        Returns:
            The messages in the order of their sequences.
        """
        return self._read_batches(stream, subject, after) if self._from_leader else self._read(stream, subject, after)

    async def follow(self, stream: str, subjects: Sequence[str], after: int) -> AsyncGenerator[StoredMessage, None]:
        """Yield the messages of the subjects above `after`, then each new message.

        If a broker lost messages at a restart, the sequences of new messages begin at a lower number. In that case, a
        stream that was created again is read from its start. A stream that lost only its last messages is read from its
        current end, so only new messages follow.

        Args:
            stream: The name of the stream.
            subjects: Subjects, or filters with wildcards, each with a separate consumer.
            after: A sequence. Only messages with higher sequences are yielded; 0 for all messages.

        Yields:
            The messages in the order of their sequences.

        Raises:
            PermissionDeniedError: The broker refuses a permission that a consumer needs.
        """
        followers = [Follower(self._bus, stream, subject, after, self.last) for subject in subjects]
        messages = followers[0].messages() if len(followers) == 1 else merge_followers(followers, self.last)
        async with aclosing(messages):
            async for stored in messages:
                yield stored

    # From the leader

    async def _get_from_leader(self, stream: str, query: Mapping[str, Any]) -> StoredMessage | None:
        """Read from the stream's leader, because a replica that lags could answer a direct get."""
        answer = await self._bus.api(f"STREAM.MSG.GET.{stream}", query)
        if error_code(answer) == NO_STREAM_CODE and await self._retry_missing(stream):
            answer = await self._bus.api(f"STREAM.MSG.GET.{stream}", query)
        if code := error_code(answer):
            if code == NO_MESSAGE_CODE:
                return None
            raise PeerError(f"the broker does not read {query} of {stream}: {error_text(answer)}")
        message = answer["message"]
        headers, scheduled_by = header_block(message.get("hdrs", ""))
        return StoredMessage(
            message["subject"],
            b64decode(message.get("data", "")),
            headers,
            message["seq"],
            parse_time(message["time"]),
            scheduled_by,
        )

    async def _read_batches(self, stream: str, subject: str, after: int) -> AsyncGenerator[StoredMessage, None]:
        """Yield the messages up to the last sequence of the leader, in batched direct gets.

        This takes one read from the leader and one request per `_DIRECT_GET_BATCH` messages. A consumer would cost the
        broker more. If a replica lags, the messages that the replica lacks are read from the leader, one at a time.

        Args:
            stream: The name of the stream.
            subject: A subject, or a filter with wildcards.
            after: A sequence. Only messages with higher sequences are yielded; 0 for all messages.

        Yields:
            The messages in the order of their sequences.
        """
        end = await self.last(stream, subject)
        while end is not None and after < end.sequence:
            reached = after
            for stored in await self._direct_batch(stream, subject, after + 1):
                if stored.sequence > after:
                    after = stored.sequence
                    yield stored
            # No progress: a replica lags, or the publisher set `Nats-Sequence` on the message, which hides the real
            # sequence.
            if after == reached:
                next_one = await self._get_from_leader(stream, {"seq": after + 1, "next_by_subj": subject})
                if next_one is None:  # the last message was deleted during the read
                    return
                after = next_one.sequence
                yield next_one

    async def _direct_batch(self, stream: str, subject: str, sequence: int) -> list[StoredMessage]:
        batch: list[StoredMessage] = []
        query = {"batch": _DIRECT_GET_BATCH, "max_bytes": _DIRECT_GET_BYTES, "next_by_subj": subject, "seq": sequence}
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def arrived(message: WireMessage) -> None:
            headers = message.headers
            if "Nats-Sequence" in headers:
                batch.append(_to_direct_message(message))
            elif not done.done():
                done.set_result(None)

        inbox, asked = self._bus.new_inbox(), self._bus.api_subject(f"DIRECT.GET.{stream}")

        def refused(refusal: Refusal, error: PermissionDeniedError) -> None:
            if refusal.concerns(asked, inbox) and not done.done():
                done.set_exception(error)

        listening = await self._bus.subscribe(inbox, arrived)
        self._bus.refusal_listeners.add(refused)
        try:
            await self._bus.send(asked, json.dumps(query).encode(), reply=inbox)
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

    # The subject of each request contains the subject to read, so permissions of the broker can limit the reads

    async def _get_direct(self, stream: str, subject: str) -> StoredMessage | None:
        answer = await self._bus.ask(self._bus.api_subject(f"DIRECT.GET.{stream}.{subject}"))
        if not answer.status:
            return _to_direct_message(answer)
        if answer.status.startswith("404"):
            return None
        raise PeerError(f"the broker does not read {subject} of {stream}: {answer.status}")

    async def _read(self, stream: str, subject: str, after: int) -> AsyncGenerator[StoredMessage, None]:
        """Yield the messages up to the newest message.

        If the subject has no messages, which is the usual case, no consumer is created.
        """
        end = await self.last(stream, subject)
        if end is None or end.sequence <= after:
            return
        async with aclosing(self._read_pushed(stream, subject, after, end.sequence)) as messages:
            async for stored in messages:
                yield stored
                if stored.sequence >= end.sequence:
                    return

    async def _read_pushed(
        self, stream: str, subject: str, after: int, through: int
    ) -> AsyncGenerator[StoredMessage, None]:
        """Yield the present messages of a new consumer.

        If the announced messages do not arrive in time, another consumer delivers those that were not deleted. With
        replicas, wait at most `_LAG_TIMEOUT_S` for each missing message up to `through`.

        Args:
            stream: The name of the stream.
            subject: A subject, or a filter with wildcards.
            after: A sequence. Only messages with higher sequences are yielded.
            through: The last sequence to wait for. Another replica has the message of this sequence, but the replica of
                the consumer might lag.

        Yields:
            The messages in the order of their sequences.

        Raises:
            BusUnavailableError: The broker does not answer.
            PeerError: The broker refuses the consumer.
            PermissionDeniedError: The broker refuses a permission that the consumer needs.
        """
        while True:
            push = PushConsumer(self._bus, stream, subject)
            try:
                await push.subscribe()
                answer = await push.create(deliver_policy="by_start_sequence", opt_start_seq=after + 1)
                if error_code(answer):
                    raise PeerError(f"the broker does not read {subject} of {stream}: {error_text(answer)}")
                while push.buffer or await self._arrives(push, lacks=after < through):
                    stored = await push.take()
                    after = stored.sequence
                    yield stored
            finally:
                await push.close()
            if push.denied is not None:
                raise PermissionDeniedError(str(push.denied))
            if not push.lost_reason and not (push.left and await self._has_more(stream, subject, after)):
                return

    async def _arrives(self, push: PushConsumer, *, lacks: bool) -> bool:
        """Return True when a message has arrived. Return False if the consumer is lost or has no more messages."""
        if push.left:
            wait = self._timeout
        elif lacks and self._has_replicas():
            wait = _LAG_TIMEOUT_S
        else:
            return False
        try:
            async with asyncio.timeout(wait):
                await push.wait()
        except TimeoutError:  # the remaining messages were deleted, or the network is silent
            return bool(push.buffer)
        return bool(push.buffer)

    async def _has_more(self, stream: str, subject: str, after: int) -> bool:
        newest = await self.last(stream, subject)
        return newest is not None and newest.sequence > after


def _to_direct_message(answer: WireMessage) -> StoredMessage:
    """Return the message in the answer to a direct get. The headers of the answer have the subject and the sequence."""
    headers = answer.headers
    return StoredMessage(
        headers["Nats-Subject"],
        answer.data,
        event_headers(headers),
        int(headers["Nats-Sequence"]),
        parse_time(headers["Nats-Time-Stamp"]),
        answer.scheduled_by,
    )
