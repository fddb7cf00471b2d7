"""Who listens now over a connection, to messages or to questions about a service. Nothing is kept for the absent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

from pointsman.bus.checks import check_filter, own_headers
from pointsman.bus.micro import micro_answer, micro_subjects
from pointsman.bus.nats_client import FAILURES, Msg, NatsClient
from pointsman.bus.wire import Connection, Inbox
from pointsman.errors import BusUnavailable
from pointsman.ports import Clock, Service, Stored

__all__ = ["Listening"]


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
        check_filter(subject)

        async def arrived(message: Msg) -> None:
            sent = Stored(message.subject, message.data, own_headers(message.headers), 0, self._clock.now())
            if not sent.body:
                try:
                    sent = await self._whole(sent)
                except BusUnavailable:  # who listens may always miss something
                    return
            await heard(sent)

        return await self._subscribed({subject: arrived})

    async def serve(self, service: Service) -> AbstractAsyncContextManager[None]:
        started = self._clock.now()

        def answering(verb: str) -> Callable[[Msg], Awaitable[None]]:
            async def asked(message: Msg) -> None:
                if message.reply:
                    await self._bus.send(message.reply, micro_answer(verb, service, started))

            return asked

        return await self._subscribed({subject: answering(verb) for subject, verb in micro_subjects(service)})

    async def _subscribed(
        self,
        handlers: Mapping[str, Callable[[Msg], Awaitable[None]]],
    ) -> AbstractAsyncContextManager[None]:
        """What leaves all of `handlers` again."""
        inboxes = []
        try:
            for subject, handler in handlers.items():
                inboxes.append(await self._client.call(subject, handler))
        except FAILURES as error:
            raise BusUnavailable(f"cannot listen on {', '.join(handlers)}: {error}") from error
        if self._bus.connected:  # else reconnecting brings the subscriptions along
            with suppress(*FAILURES):
                await self._client.flush(int(self._timeout) + 1)
        return _until_left(inboxes)


@asynccontextmanager
async def _until_left(inboxes: Sequence[Inbox]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for inbox in inboxes:
            await inbox.drop()
