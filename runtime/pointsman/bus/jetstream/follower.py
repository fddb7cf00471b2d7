"""Follow a stream: yield the stored messages of a filter, then each new message. A lost connection causes no gap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pointsman.bus.jetstream.protocol import NO_STREAM_CODE, Connection, error_code, error_text, parse_time, with_advice
from pointsman.bus.jetstream.push_consumer import PushConsumer
from pointsman.errors import BusUnavailableError, PeerError, PermissionDeniedError
from pointsman.ports.bus import StoredMessage
from pointsman.util.lazy_import import structlog

__all__ = ["Follower", "merge_followers"]

_log = structlog.get_logger(__name__)

_RETRY_PAUSE_S = 0.5  # seconds before a failed request is repeated
_TIME_UNIT = timedelta(microseconds=1)  # the precision of `parse_time`
_MERGE_WAIT_S = 1.0  # seconds to wait for a stored message that the consumer has not delivered yet


class Follower:
    """The messages of one filter of a stream. A new consumer replaces each lost consumer.

    Attributes:
        stream: The name of the stream.
        subject: The filter.
        after: The sequence of the last yielded message, or the argument `after` if no message was yielded yet.
            Only messages with higher sequences are yielded.
    """

    def __init__(
        self,
        bus: Connection,
        stream: str,
        subject: str,
        after: int,
        last: Callable[[str, str], Awaitable[StoredMessage | None]],
    ) -> None:
        self.stream = stream
        self.subject = subject
        self.after = after
        self._bus = bus
        self._read_last = last
        self._known_at: datetime | None = None  # the broker's time of the last message, or of the first consumer
        self._lost_at: datetime | None = None  # the value of `_known_at` when the stream lost messages
        self._push: PushConsumer | None = None
        self._reason = ""  # the reason that was logged last for a consumer that cannot be created

    @property
    def has_arrived(self) -> bool:
        """Return True if a message has arrived that was not yielded yet."""
        return self._push is not None and bool(self._push.buffer)

    @property
    def arrived_through(self) -> int:
        """Return the sequence of the newest message that has arrived."""
        return max(self.after, self._push.newest if self._push is not None else 0)

    async def messages(self) -> AsyncGenerator[StoredMessage, None]:
        """Yield the messages in the order of their sequences.

        A replacement consumer begins with the last yielded message. Two cases show that the stream was created again or
        has lost its last messages: the stream had ended before the last yielded message when the next message was
        stored, or a younger message has the sequence of the last yielded message. In both cases the iterator continues
        with the first message that is younger than the last yielded message.

        Yields:
            The stored messages, then each new message.

        Raises:
            PermissionDeniedError: The broker refuses a permission that the consumer needs.
        """
        while True:
            push = self._push = PushConsumer(self._bus, self.stream, self.subject)
            try:
                await push.subscribe()
                if (known_at := await self._create(push)) is None:
                    continue
                while push.buffer or not push.lost:
                    if not push.buffer:
                        await push.wait()
                        continue
                    stored = await push.take()
                    if stored.sequence <= self.after or self._lost_at is not None:
                        if stored.at <= known_at:
                            continue
                        if self._lost_at is None:
                            self._restart()
                            break
                    self.after, self._lost_at = stored.sequence, None
                    self._known_at = known_at = max(known_at, stored.at)
                    yield stored
            finally:
                await push.close()
            if push.denied is not None:
                raise PermissionDeniedError(str(push.denied))

    async def _create(self, push: PushConsumer) -> datetime | None:
        """Create the consumer.

        The broker gives no error if a consumer starts after the end of the stream. So before each try, the stream is
        compared with `after`. If the stream was created again, or has lost its last messages, the consumer begins with
        the first message that is younger than the last yielded message. Without a yielded message, the consumer begins
        with the first message of the stream.

        Returns:
            The time of the last yielded message; before the first message, the time of the creation; None after a
            failure. Then try again with another `push`, because a user may have a fixed set of consumer names, and the
            comparison needs a name, too.
        """
        if self.after and self._lost_at is None and await self._has_lost_messages():
            self._restart()
        start: dict[str, Any] = {"deliver_policy": "by_start_sequence", "opt_start_seq": self.after + 1}
        if self._lost_at is not None:
            start = {"deliver_policy": "by_start_time", "opt_start_time": _to_text(self._lost_at)}
        elif self._known_at is not None:  # begin with the last yielded message, so that its time can be compared
            start["opt_start_seq"] = max(1, self.after)
        if (answer := await self._try_create(push, start)) is None:
            return None
        self._known_at = self._known_at or parse_time(answer["ts"])
        return self._known_at

    async def _has_lost_messages(self) -> bool:
        """Return True if the stream was created again, or has lost its last messages.

        The newest message of the filter answers this in most cases. If this message is older, is missing, or cannot be
        read, a consumer answers: its first sequence is the sequence of the first message after `_known_at`. The answer
        must not be a guess, because a wrong True skips messages: while stored messages are read, `_known_at` is the
        time of the first consumer, which is later than the times of these messages.
        """
        try:
            newest = await self._read_last(self.stream, self.subject)
        except PeerError:  # the stream or its servers are missing
            newest = None
        if newest is not None and newest.sequence >= self.after:
            is_known = self._known_at is None or newest.at <= self._known_at
            return newest.sequence == self.after and not is_known
        start = {"deliver_policy": "new"}
        if self._known_at is not None:
            start = {"deliver_policy": "by_start_time", "opt_start_time": _to_text(self._known_at + _TIME_UNIT)}
        probe = PushConsumer(self._bus, self.stream, self.subject)
        try:
            while (answer := await self._try_create(probe, start)) is None:
                pass
        finally:
            await probe.close()
        return int(answer["delivered"]["stream_seq"]) < self.after

    def _restart(self) -> None:
        """Begin again with the first message that is younger than the last yielded message."""
        self.after, self._lost_at = 0, self._known_at

    async def _try_create(self, push: PushConsumer, start: Mapping[str, Any]) -> dict[str, Any] | None:
        """Create the consumer, and return the answer. After a failure, pause and return None. Log each reason once."""
        report = _log.warning
        try:
            answer = await push.create(**start)
            if not (code := error_code(answer)):
                self._reason = ""
                return answer
            refusal = with_advice(error_text(answer), code)
            if code != NO_STREAM_CODE:  # a lost stream will be created again; any other refusal might be permanent
                report = _log.error
        except BusUnavailableError as error:
            if self._bus.closed:
                raise
            refusal = str(error)
        if refusal != self._reason and self._bus.connected:  # a lost connection is logged by `connection`
            self._reason = refusal
            report(
                "follow_retrying",
                stream=self.stream,
                subject=self.subject,
                reason=refusal,
                hint="the read is repeated",
            )
        await asyncio.sleep(_RETRY_PAUSE_S)
        return None


def _to_text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


async def merge_followers(
    followers: Sequence[Follower], last: Callable[[str, str], Awaitable[StoredMessage | None]]
) -> AsyncGenerator[StoredMessage, None]:
    """Yield the messages of several filters of one stream in the order of their sequences.

    The consumers deliver independently, so an idle consumer might deliver an older message later. So before a message
    is yielded, `last` reads the newest message of each idle consumer's filter. It shows whether the consumer has more
    messages to deliver.

    Args:
        followers: One follower for each filter.
        last: Function that returns the newest message of a filter of a stream.

    Yields:
        The stored messages, then each new message.
    """
    sources = [follower.messages() for follower in followers]
    coming = {number: asyncio.ensure_future(anext(source)) for number, source in enumerate(sources)}
    heads: dict[int, StoredMessage] = {}
    read_through = [0] * len(followers)  # by follower: all messages up to this sequence have arrived
    try:
        while True:
            if not heads:
                await asyncio.wait(coming.values(), return_when=asyncio.FIRST_COMPLETED)
            for number in [number for number, task in coming.items() if task.done()]:
                heads[number] = coming.pop(number).result()
            if not heads:
                continue
            first = min(heads, key=lambda number: heads[number].sequence)
            sequence = heads[first].sequence
            late = await _find_late(followers, coming.keys(), sequence, read_through, last)
            if late is None and any(task.done() or followers[number].has_arrived for number, task in coming.items()):
                continue  # a message arrived during the reads, and might have a lower sequence
            if late is not None:
                arrived, _ = await asyncio.wait({coming[late]}, timeout=_MERGE_WAIT_S)
                if not arrived:  # do not wait again: the message was deleted, or its consumer is replaced
                    read_through[late] = sequence
                continue
            yield heads.pop(first)
            coming[first] = asyncio.ensure_future(anext(sources[first]))
    finally:
        for task in coming.values():
            task.cancel()
        await asyncio.gather(*coming.values(), return_exceptions=True)
        for source in sources:
            await source.aclose()


async def _find_late(
    followers: Sequence[Follower],
    idle: Iterable[int],
    sequence: int,
    read_through: list[int],
    last: Callable[[str, str], Awaitable[StoredMessage | None]],
) -> int | None:
    """Return the number of a follower that might still yield a message before `sequence`; None if no follower can."""
    for number in idle:
        follower = followers[number]
        if follower.has_arrived:
            return number
        if read_through[number] >= sequence:
            continue
        known = max(each.arrived_through for each in followers)
        try:
            newest = await last(follower.stream, follower.subject)
        except BusUnavailableError:  # messages in a wrong order are better than no messages
            continue
        if newest is not None and newest.sequence > follower.arrived_through:
            return number
        read_through[number] = known
    return None
