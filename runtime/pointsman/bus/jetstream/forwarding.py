"""Forward deliveries between connections over core NATS. A delivery is settled by the last connection that gets it.

Any connection can settle a delivery by the reply subject of the delivery. A forwarded message is unchanged except for
its reply subject, which consists of an inbox of the sender, the name of the receiver and the reply subject of the
delivery. If the receiver does not exist, the server reports this at once on this reply subject, so the report reaches
the sender. The sender takes the reply subject of the delivery from the subject of the report, and returns the delivery
to its consumer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from pointsman.bus.jetstream.protocol import BusSubscription, ForwardingConnection, WireMessage
from pointsman.bus.jetstream.pull_consumer import PullDelivery
from pointsman.errors import BusUnavailableError
from pointsman.ports.bus import Delivery, StoredMessage
from pointsman.util.lazy_import import structlog
from pointsman_schemas.subjects import Subjects

__all__ = ["Forwarder"]

_log = structlog.get_logger(__name__)

_ACK_PREFIX = "$JS.ACK."
_RETRY_DELAY_S = 0.5  # seconds before the redelivery of a message whose body is unavailable now


class Forwarder:
    """Forwards and receives deliveries for one connection. Call `receive` before `forward`.

    After a receiver was absent, `forward` does not try the receiver for `absence` seconds. `whole` fetches a body that
    is stored separately.
    """

    def __init__(
        self,
        bus: ForwardingConnection,
        namespace: str,
        absence: float,
        whole: Callable[[StoredMessage], Awaitable[StoredMessage]],
    ) -> None:
        self._bus = bus
        self._namespace = namespace
        self._absence_s = absence
        self._resolve = whole
        # this stream exists only if the broker does not have to sync handoffs
        self._unsynced = f".{Subjects(namespace).handoff_stream}."
        self._inbox = bus.new_inbox()
        self._subscription: BusSubscription | None = None
        self._absent: dict[str, float] = {}  # by receiver: the time until which `forward` does not try the receiver
        self._tasks: set[asyncio.Task[None]] = set()

    async def forward(self, name: str, message: WireMessage) -> bool:
        """Return True if the delivery was sent to the receiver `name`. Otherwise the caller settles the delivery."""
        away = not self._bus.connected or self._subscription is None
        if away or self._absent.get(name, 0.0) > asyncio.get_running_loop().time():
            return False
        subject = f"{self._namespace}.handed.{name}{message.subject.removeprefix(self._namespace)}"
        reply = f"{self._inbox}.{name}.{message.reply}"
        await self._bus.send(subject, message.data, reply=reply, headers=message.block or b"")
        return True

    @asynccontextmanager
    async def receive(self, name: str, on_delivery: Callable[[Delivery], None]) -> AsyncIterator[None]:
        prefix = f"{self._namespace}.handed.{name}."

        def arrived(message: WireMessage) -> None:
            place = message.reply.find(_ACK_PREFIX)
            if place < 0:
                return
            subject = f"{self._namespace}.{message.subject[len(prefix) :]}"
            delivery = self._delivery(WireMessage(subject, message.reply[place:], message.data, message.block))
            if delivery.message.body:
                on_delivery(delivery)
            else:
                self._run_in_background(self._resolve_body(delivery, on_delivery))

        if self._subscription is None:
            self._subscription = await self._bus.subscribe(f"{self._inbox}.>", self._on_no_responders)
        inbox = await self._bus.subscribe(f"{prefix}>", arrived)
        try:
            await self._bus.flush()
            if inbox.refused is not None:
                raise inbox.refused
        except BaseException:
            await inbox.unsubscribe()
            raise
        try:
            yield
        finally:
            await inbox.drain()
            await asyncio.gather(*self._tasks)

    async def _resolve_body(self, delivery: PullDelivery, on_delivery: Callable[[Delivery], None]) -> None:
        try:
            delivery.message = await self._resolve(delivery.message)
        except Exception as error:
            unforeseen = None if isinstance(error, BusUnavailableError) else error
            _log.warning("body_fetch_failed", subject=delivery.message.subject, reason=str(error), exc_info=unforeseen)
            await delivery.nak(_RETRY_DELAY_S)
        except BaseException:  # no other code settles this delivery
            await delivery.nak()
            raise
        else:
            on_delivery(delivery)

    def _on_no_responders(self, message: WireMessage) -> None:
        """Return a delivery to its consumer if the server reports by the status 503 that the receiver is absent."""
        if not message.status.startswith("503"):
            return
        name, _, settles = message.subject.removeprefix(f"{self._inbox}.").partition(".")
        self._absent[name] = asyncio.get_running_loop().time() + self._absence_s
        self._run_in_background(self._delivery(WireMessage(message.subject, settles, b"")).nak())

    def _delivery(self, message: WireMessage) -> PullDelivery:
        """Return the delivery. Core NATS stores no messages, so the delivery was made after the last restart."""
        return PullDelivery(self._bus, message, self._bus.restarts if self._unsynced in message.reply else None)

    def _run_in_background(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
