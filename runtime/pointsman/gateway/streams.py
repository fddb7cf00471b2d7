"""Stream the events of one workflow in order and without a gap, from any position.

The events are read from the log. So, after a restart of the gateway, a client continues at its position without a gap.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from time import monotonic
from typing import NamedTuple, TypeAlias

from pointsman.client.client import Client
from pointsman.client.streamed_text import StreamedTexts
from pointsman.client.workflow import Workflow, read_delta, read_progress
from pointsman.engine.log.reader import as_async_generator, read_commit
from pointsman.errors import BusUnavailableError
from pointsman.gateway.feed import LogFeed, StreamResetError, Subscription
from pointsman.http.sse import KEEPALIVE_INTERVAL_S
from pointsman.ports.bus import StoredMessage
from pointsman_schemas.events import Delta, Progress
from pointsman_schemas.log import Entry, WorkflowEnded

__all__ = ["LogEvent", "Position", "StreamItem", "WorkflowStreams"]

_RETRY_PAUSE_S = 0.5  # seconds before the log is read again, if the broker is unavailable or its replica lags behind
_REPLICA_LAG_S = 2.0  # seconds by which a replica of the broker can lag behind the leader
_POSITION = re.compile(r"([0-9]{1,18})\.([0-9]{1,9})")


class Position(NamedTuple):
    """The position of an entry: the sequence number of the log message, and the index of the entry in the message."""

    sequence: int
    part: int

    @classmethod
    def parse(cls, text: str) -> Position | None:
        """Read a position.

        Args:
            text: The text, such as `42.0`.

        Returns:
            The position; None if the text is not a position.
        """
        found = _POSITION.fullmatch(text.strip())
        return cls(int(found[1]), int(found[2])) if found else None

    def __str__(self) -> str:
        return f"{self.sequence}.{self.part}"


class LogEvent(NamedTuple):
    """An entry of the log with its position."""

    position: Position
    entry: Entry


StreamItem: TypeAlias = LogEvent | Progress | Delta | None
"""An entry, a report or a piece of text; None if nothing has happened for `KEEPALIVE_INTERVAL_S` seconds."""


class WorkflowStreams:
    """The streams of the workflows of a namespace.

    Args:
        client: The client.
        feed: The feed of the log.
    """

    def __init__(self, client: Client, feed: LogFeed) -> None:
        self._client = client
        self._feed = feed
        self.stopping = asyncio.Event()
        """Set when the gateway stops. Each stream ends, and the client opens the stream again at another gateway."""

    def stop(self) -> None:
        """End all streams."""
        self.stopping.set()
        self._feed.stop()

    async def follow(
        self, workflow: Workflow, *, after: Position | None = None, live: bool = False, text: bool = False
    ) -> AsyncGenerator[StreamItem, None]:
        """Yield the entries of a workflow after a position, and wait for future entries, up to the end of the workflow.

        Args:
            workflow: The workflow.
            after: The position of the newest entry that the client has. Default: none.
            live: Also yield reports of agents and text of models. These are not repeated after a reconnect.
            text: Also yield text of models, without reports.

        Yields:
            The entries, in order, and the reports and pieces of text; None when nothing has happened for
            `KEEPALIVE_INTERVAL_S` seconds.

        Raises:
            StreamResetError: The gateway stops, or the broker has lost the end of the log. The end of the iterator
                without this error is the end of the workflow.
        """
        position = after or Position(0, -1)
        subject, texts = self._client.subjects.log(workflow.team, workflow.id), StreamedTexts()
        newest, round = await self._newest(subject, position), 1
        if newest is not None:
            # If the broker has lost the end of the log, new entries get positions below the client's position and would
            # be omitted. So lower the client's position to the newest message.
            position = min(position, Position(newest.sequence, position.part))
            # A resumed workflow has several rounds, and each round has an end. Only the end of the newest round ends
            # the stream.
            round = read_commit(newest).round
        with self._feed.subscribe(workflow.id) as subscription:
            async with AsyncExitStack() as listening:
                if live or text:
                    await _listen_to_text(self._client, workflow, subscription, listening)
                if live:
                    await _listen_to_reports(self._client, workflow, subscription, listening)
                while not self.stopping.is_set():
                    async with aclosing(self._stored(workflow.id, subject, position)) as messages:
                        async for stored in messages:
                            if stored is None:
                                yield None
                                continue
                            for event in _events(stored, position):
                                position = event.position
                                yield event
                                if isinstance(event.entry, WorkflowEnded) and event.entry.outcome.round >= round:
                                    return
                    async with aclosing(self._arriving(subscription)) as arriving:
                        async for item in arriving:
                            if isinstance(item, Delta):  # the queue can drop pieces of text, so `texts` looks for gaps
                                if (piece := texts.add(item)) is not None:
                                    yield piece
                                continue
                            if not isinstance(item, StoredMessage):
                                yield item
                                continue
                            for event in _events(item, position):
                                position = event.position
                                yield event
                                if isinstance(event.entry, WorkflowEnded) and event.entry.outcome.round >= round:
                                    return
        raise StreamResetError

    async def history(self, workflow: Workflow) -> AsyncGenerator[LogEvent, None]:
        """Yield the present entries of a workflow.

        Args:
            workflow: The workflow.

        Yields:
            The entries, in order.
        """
        subject = self._client.subjects.log(workflow.team, workflow.id)
        async for stored in self._client.bus.read("log", subject):
            for event in _events(stored, Position(0, -1)):
                yield event

    async def _newest(self, subject: str, position: Position) -> StoredMessage | None:
        """Return the newest message of a log. Wait up to 2 s if the broker's replica lags behind the client."""
        newest = await self._client.bus.last("log", subject)
        until = monotonic() + _REPLICA_LAG_S
        while newest is not None and newest.sequence < position.sequence and monotonic() < until:
            await asyncio.sleep(_RETRY_PAUSE_S)
            newest = await self._client.bus.last("log", subject)
        return newest

    async def _stored(self, workflow: str, subject: str, after: Position) -> AsyncGenerator[StoredMessage | None, None]:
        """Yield the present messages of a log. While the broker is unavailable, yield None periodically."""
        waited = 0.0
        row = self._feed.find(workflow)
        # The feed had the messages up to this sequence already, so the subscription may not get them. If a read ends
        # before this sequence, the replica that was read lags behind.
        known = row.sequence if row else 0
        until = monotonic() + _REPLICA_LAG_S
        sequence = after.sequence - 1 if after.part >= 0 else after.sequence
        while True:
            try:
                messages = as_async_generator(self._client.bus.read("log", subject, after=max(0, sequence)))
                async with aclosing(messages):
                    async for stored in messages:
                        sequence = stored.sequence
                        yield stored
                if sequence >= known or monotonic() >= until:
                    return
                await asyncio.sleep(_RETRY_PAUSE_S)  # the replica lags behind, so read again
            except BusUnavailableError:
                if self._client.bus.closed or self.stopping.is_set():
                    return
                await asyncio.sleep(_RETRY_PAUSE_S)
                waited += _RETRY_PAUSE_S
                if waited >= KEEPALIVE_INTERVAL_S:
                    waited = 0.0
                    yield None

    async def _arriving(
        self, subscription: Subscription
    ) -> AsyncGenerator[StoredMessage | Progress | Delta | None, None]:
        """Yield each message that arrives, until messages were dropped or the gateway stops."""
        while not self.stopping.is_set():
            try:
                item = await subscription.next(KEEPALIVE_INTERVAL_S)
            except TimeoutError:
                yield None
                continue
            if item is None:
                return
            yield item


def _events(stored: StoredMessage, after: Position) -> list[LogEvent]:
    """Return the entries of a message after a position."""
    if stored.sequence < after.sequence:
        return []
    events = [
        LogEvent(Position(stored.sequence, part), entry) for part, entry in enumerate(read_commit(stored).entries)
    ]
    return [event for event in events if event.position > after]


async def _listen_to_reports(
    client: Client, workflow: Workflow, subscription: Subscription, until: AsyncExitStack
) -> None:
    async def post(stored: StoredMessage) -> None:
        if (progress := read_progress(stored)) is not None:
            subscription.post(progress)

    subject = client.subjects.workflow_events(workflow.id, workflow.team)
    await until.enter_async_context(await client.bus.listen(subject, post))


async def _listen_to_text(
    client: Client, workflow: Workflow, subscription: Subscription, until: AsyncExitStack
) -> None:
    async def post(stored: StoredMessage) -> None:
        if (delta := read_delta(stored)) is not None:
            subscription.post(delta)

    subject = client.subjects.workflow_deltas(workflow.team, workflow.id)
    await until.enter_async_context(await client.bus.listen(subject, post))
