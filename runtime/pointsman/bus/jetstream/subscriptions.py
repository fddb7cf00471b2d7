"""Who listens now over a connection, to messages or to questions about a service. Nothing is kept for the absent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

from pointsman.bus.jetstream.client import FAILURES, Msg, NatsClient
from pointsman.bus.jetstream.micro import micro_answer, micro_subjects
from pointsman.bus.jetstream.protocol import Arrival, Connection, Inbox
from pointsman.bus.validation import check_filter
from pointsman.errors import BusUnavailable
from pointsman.ports.bus import Service, Stored
from pointsman.ports.clock import Clock
from pointsman.util.lazy_import import structlog

__all__ = ["Listening"]

_log = structlog.get_logger(__name__)


class Listening:
    """Over `bus`, whose client is `client`. `whole` gives a message its body; `timeout` is in seconds."""

    def __init__(
        self,
        bus: Connection,
        client: NatsClient,
        whole: Callable[[Stored], Awaitable[Stored]],
        clock: Clock,
        timeout: float,
    ) -> None:
        self._bus = bus
        self._client = client
        self._whole = whole
        self._clock = clock
        self._timeout = timeout

    async def listen(
        self, subject: str, heard: Callable[[Stored], Awaitable[None]]
    ) -> AbstractAsyncContextManager[None]:
        """Each message is taken as it is read, and told in a task of the listener's own, in the order they came."""
        check_filter(subject)
        arrived = asyncio.Queue[Arrival]()
        inbox = await self._bus.hear(subject, arrived.put_nowait)
        await self._flush()
        return self._telling(inbox, arrived, heard)

    @asynccontextmanager
    async def _telling(
        self, inbox: Inbox, arrived: asyncio.Queue[Arrival], heard: Callable[[Stored], Awaitable[None]]
    ) -> AsyncIterator[None]:
        task = asyncio.create_task(self._tell(arrived, heard))
        try:
            yield
        finally:
            task.cancel()
            await inbox.drop()
            await asyncio.wait({task})

    async def _tell(self, arrived: asyncio.Queue[Arrival], heard: Callable[[Stored], Awaitable[None]]) -> None:
        """An error of the listener, or a body that is not to be had, does not end the listening."""
        while True:
            message = await arrived.get()
            sent = Stored(message.subject, message.data, message.own_headers, 0, self._clock.now())
            try:
                await heard(sent if sent.body else await self._whole(sent))
            except Exception as error:
                _log.warning("listener_failed", subject=sent.subject, error=repr(error))

    async def serve(self, service: Service) -> AbstractAsyncContextManager[None]:
        started = self._clock.now()

        def answering(verb: str) -> Callable[[Msg], Awaitable[None]]:
            async def asked(message: Msg) -> None:
                if message.reply:
                    await self._bus.send(message.reply, micro_answer(verb, service, started))

            return asked

        inboxes = []
        try:
            for subject, verb in micro_subjects(service):
                inboxes.append(await self._client.call(subject, answering(verb)))
        except FAILURES as error:
            raise BusUnavailable(f"cannot serve {service.name}: {error}") from error
        await self._flush()
        return _until_left(inboxes)

    async def _flush(self) -> None:
        """Return when the broker knows of it. While the connection is away, reconnecting brings subscriptions along."""
        if self._bus.connected:
            with suppress(*FAILURES):
                await self._client.flush(int(self._timeout) + 1)


@asynccontextmanager
async def _until_left(inboxes: Sequence[Inbox]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for inbox in inboxes:
            await inbox.drop()
