"""Subscribe to messages, and answer requests about a service.

The broker stores nothing for a subscription: a subscriber gets only the messages that are sent while it is subscribed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

from pointsman.bus.jetstream.client import CLIENT_ERRORS, Msg, NatsClient
from pointsman.bus.jetstream.micro import micro_answer, micro_subjects
from pointsman.bus.jetstream.protocol import BusSubscription, Connection, WireMessage
from pointsman.bus.validation import check_filter
from pointsman.errors import BusUnavailableError
from pointsman.ports.bus import Service, StoredMessage
from pointsman.ports.clock import Clock
from pointsman.util.lazy_import import structlog

__all__ = ["Subscriptions"]

_log = structlog.get_logger(__name__)


class Subscriptions:
    """Subscriptions over `bus` and its `client`. `whole` fetches a body that is stored separately.

    `timeout` is the longest wait until the broker has a subscription, in seconds.
    """

    def __init__(
        self,
        bus: Connection,
        client: NatsClient,
        whole: Callable[[StoredMessage], Awaitable[StoredMessage]],
        clock: Clock,
        timeout: float,
    ) -> None:
        self._bus = bus
        self._client = client
        self._resolve = whole
        self._clock = clock
        self._timeout = timeout

    async def subscribe(
        self, subject: str, on_message: Callable[[StoredMessage], Awaitable[None]]
    ) -> AbstractAsyncContextManager[None]:
        """Read each message at once. A separate task passes the messages to the listener in order."""
        check_filter(subject)
        arrived = asyncio.Queue[WireMessage]()
        inbox = await self._bus.subscribe(subject, arrived.put_nowait)
        try:
            await self._flush()
            if inbox.refused is not None:
                raise inbox.refused
        except BaseException:
            await inbox.unsubscribe()
            raise
        return self._deliver_loop(inbox, arrived, on_message)

    @asynccontextmanager
    async def _deliver_loop(
        self,
        inbox: BusSubscription,
        arrived: asyncio.Queue[WireMessage],
        on_message: Callable[[StoredMessage], Awaitable[None]],
    ) -> AsyncIterator[None]:
        task = asyncio.create_task(self._deliver(arrived, on_message))
        try:
            yield
        finally:
            task.cancel()
            await inbox.unsubscribe()
            await asyncio.wait({task})

    async def _deliver(
        self, arrived: asyncio.Queue[WireMessage], on_message: Callable[[StoredMessage], Awaitable[None]]
    ) -> None:
        """Pass messages to the listener. Continue after an error of the listener, and after an unavailable body."""
        while True:
            message = await arrived.get()
            sent = StoredMessage(message.subject, message.data, message.event_headers, 0, self._clock.now())
            try:
                await on_message(sent if sent.body else await self._resolve(sent))
            except Exception as error:
                _log.warning("listener_failed", subject=sent.subject, error=repr(error))

    async def serve(self, service: Service) -> AbstractAsyncContextManager[None]:
        started = self._clock.now()

        def answering(verb: str) -> Callable[[Msg], Awaitable[None]]:
            async def asked(message: Msg) -> None:
                if message.reply:
                    await self._bus.send(message.reply, micro_answer(verb, service, started))

            return asked

        inboxes: list[BusSubscription] = []
        try:
            for subject, verb in micro_subjects(service):
                inboxes.append(await self._client.subscribe_async(subject, answering(verb)))
            await self._flush()
        except BaseException as error:
            for inbox in inboxes:
                await inbox.unsubscribe()
            if isinstance(error, CLIENT_ERRORS):
                raise BusUnavailableError(f"cannot serve {service.name}: {error}") from error
            raise
        return _unsubscribe_on_exit(inboxes)

    async def _flush(self) -> None:
        """Return when the broker has the subscription. If the connection is down, the reconnect subscribes again."""
        if self._bus.connected:
            with suppress(*CLIENT_ERRORS):
                await self._client.flush(int(self._timeout) + 1)


@asynccontextmanager
async def _unsubscribe_on_exit(inboxes: Sequence[BusSubscription]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for inbox in inboxes:
            await inbox.unsubscribe()
