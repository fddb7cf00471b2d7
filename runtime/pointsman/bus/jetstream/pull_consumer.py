"""Pull consumers: one long-lived request kept open, refilled at half, and never more asked for than there is room."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from pointsman.bus.jetstream.protocol import (
    BusSubscription,
    Connection,
    DeliveryInfo,
    ForwardingConnection,
    WireMessage,
    error_code,
    error_text,
    to_nanoseconds,
    to_stored_message,
    with_advice,
)
from pointsman.bus.jetstream.refusals import Refusal
from pointsman.errors import BusUnavailableError, ConfigurationError, PermissionDeniedError
from pointsman.ports.bus import StoredMessage
from pointsman.util.lazy_import import structlog

__all__ = ["PullConsumer", "PullDelivery", "PullRequest", "ack_waits", "durable_config"]

_log = structlog.get_logger(__name__)

_REQUEST_EXPIRY_S = 30.0  # seconds one pull request stays open at the broker
_IDLE_HEARTBEAT_S = (
    2.0  # seconds between signs of life of an idle pull; two missing ones mean that it is lost. When the node
)
# that led a consumer dies nobody tells its pulls: work waits for 4 to 6 s then (with 5 s here it was 11)
_HOLD_S = 2.0  # seconds a message nobody takes may stay here before it is handed back
_MAX_WAITING_PULLS = 4096  # pull requests that may wait on one consumer: two for every process that serves an agent
_PRIORITY_GROUP = "ranked"  # whose pulls the broker serves by their rank
_IDLE_CONSUMER_S = (
    1.0  # seconds for which nobody asks of a consumer before its ack deadline is shortened: all who start
)
# together have asked by then
_ACK_WAITS_METADATA = "pointsman-ack-waits"  # in a consumer's metadata
_CLOSED_REASON = "closed"  # lost, but by our own will
_ACK_WAIT_HINT = "the longest counts; give all processes that share it the same POINTSMAN_ACK_WAIT, and start them anew"
_RETRY_PAUSE_S = 0.5  # seconds before a consumer that could not be opened is tried again


class PullRequest:
    """One inbox at which the broker delivers for a pull consumer, and the count of messages it still may send there.

    `asked` falls with every message, and by what an expired pull request says it left undelivered. Whatever makes that
    count doubtful (a lost connection, a new leader, silence) sets `lost`: the inbox is then given up for a new one, and
    the broker drops the requests that wait on it.
    """

    def __init__(self, bus: Connection, stream: str, consumer: str) -> None:
        self.buffer: deque[WireMessage] = deque()
        self.restarts = bus.restarts
        self.outstanding = 0
        self.lost = ""
        self.denied: PermissionDeniedError | None = None
        """Set when the broker refuses what this consumer needs: to ask, to be answered, or to acknowledge."""
        self._bus = bus
        self._subject = bus.api_subject(f"CONSUMER.MSG.NEXT.{stream}.{consumer}")
        self._acknowledged = f".{stream}.{consumer}."
        self._inbox = bus.new_inbox()
        self._subscription: BusSubscription | None = None
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._last_message_at = self._loop.time()
        self._watchdog = self._loop.call_later(_IDLE_HEARTBEAT_S, self._check_heartbeat)
        self.on_arrival: Callable[[], None] | None = None

    async def open(self) -> None:
        self._subscription = await self._bus.subscribe(self._inbox, self._on_message)
        self._bus.listeners.add(self._on_disconnected)
        self._bus.refusal_listeners.add(self._refused)

    async def refill(self, room: int, rank: int | None = None) -> None:
        """Ask for what is missing to `room`, once half of it is: one request then serves many messages. A ranked
        consumer takes no request without a `rank`, and no other one with it."""
        outstanding = self.outstanding + len(self.buffer)
        if self.lost or 2 * outstanding > room or room == 0:
            return
        self.outstanding += room - outstanding
        self._last_message_at = self._loop.time()
        await self._bus.send(
            self._subject,
            b'{"batch":%d,"expires":%d,"idle_heartbeat":%d%s}'
            % (
                room - outstanding,
                to_nanoseconds(_REQUEST_EXPIRY_S),
                to_nanoseconds(_IDLE_HEARTBEAT_S),
                b"" if rank is None else b',"group":"%s","priority":%d' % (_PRIORITY_GROUP.encode(), rank),
            ),
            reply=self._inbox,
        )

    async def wait(self) -> None:
        """Return when something came, or the pull was lost."""
        self._changed.clear()
        if not self.buffer and not self.lost:
            await self._changed.wait()

    def mark_lost(self, reason: str) -> None:
        self.lost = self.lost or reason
        self._changed.set()

    def _on_disconnected(self) -> None:
        self.mark_lost("disconnected")

    def _refused(self, refusal: Refusal, error: PermissionDeniedError) -> None:
        acknowledgement = refusal.subject.startswith("$JS.ACK.") and self._acknowledged in refusal.subject
        if acknowledgement or refusal.concerns(self._subject, self._inbox):
            self.denied = error
            self.mark_lost(refusal.said)

    async def close(self, *, drain: bool = False) -> None:
        """Give the inbox up. With `drain`, what the broker sent before it noticed still arrives in the buffer."""
        self._watchdog.cancel()
        self._bus.listeners.discard(self._on_disconnected)
        self._bus.refusal_listeners.discard(self._refused)
        self.mark_lost(_CLOSED_REASON)
        if (subscription := self._subscription) is not None:
            self._subscription = None
            await (subscription.drain() if drain else subscription.unsubscribe())

    def _on_message(self, message: WireMessage) -> None:
        self._last_message_at = self._loop.time()
        if message.reply:
            self.outstanding = max(0, self.outstanding - 1)
            self.buffer.append(message)
            if self.on_arrival is not None:
                self.on_arrival()
        else:
            status = message.status
            if status.startswith("100"):
                return
            left = message.headers.get("Nats-Pending-Messages")
            if status.startswith(("404", "408")) and left is not None:
                self.outstanding = max(0, self.outstanding - int(left))
            else:
                self.lost = self.lost or status
        self._changed.set()

    def _check_heartbeat(self) -> None:
        if self.outstanding and self._loop.time() - self._last_message_at > 2 * _IDLE_HEARTBEAT_S:
            self.mark_lost("no heartbeat")
        if not self.lost:
            self._watchdog = self._loop.call_later(_IDLE_HEARTBEAT_S, self._check_heartbeat)


def durable_config(
    name: str, subject: str, ack_wait: float, max_in_flight: int, *, ranked: bool = False
) -> dict[str, Any]:
    """What a durable consumer of `subject` is made of at the broker. Times are in nanoseconds."""
    by_rank = {"priority_groups": [_PRIORITY_GROUP], "priority_policy": "prioritized"} if ranked else {}
    return by_rank | {
        "durable_name": name,
        "name": name,
        "filter_subject": subject,
        "ack_policy": "explicit",
        "deliver_policy": "all",
        "replay_policy": "instant",
        "ack_wait": to_nanoseconds(ack_wait),
        "max_deliver": -1,
        "max_ack_pending": max_in_flight,
        "max_waiting": _MAX_WAITING_PULLS,
    }


def ack_waits(info: Mapping[str, Any]) -> set[int]:
    """The ack deadlines, in nanoseconds, that those have asked for who share the consumer, where they differ."""
    return set(map(int, info.get("config", {}).get("metadata", {}).get(_ACK_WAITS_METADATA, "").split()))


class PullConsumer:
    """A durable consumer as one process sees it; see `ports.Consumer`. Its `config` is that of a `durable_config`;
    `whole` fetches the body of a message that came without.

    `forgets`: a broker that is started anew may have less in this stream than it had, and give its numbers to other
    messages. What was delivered before is then not settled: it comes again, or is gone.
    """

    def __init__(
        self,
        bus: ForwardingConnection,
        stream: str,
        config: dict[str, Any],
        on_close: Callable[[PullConsumer], None],
        handed_out: Callable[[int], None],
        whole: Callable[[StoredMessage], Awaitable[StoredMessage]],
        *,
        forgets: bool = False,
    ) -> None:
        self._rank = 0 if "priority_groups" in config else None
        self._handoffs_unsynced = forgets
        self._on_close = on_close
        self._on_delivered = handed_out
        self._resolve = whole
        self._bus = bus
        self._stream = stream
        self._name = config["name"]
        self._config = config
        self._pull: PullRequest | None = None
        self._taking = False
        self._closed = False
        self._lost_for = ""
        self._hold: asyncio.TimerHandle | None = None
        self._returning: set[asyncio.Task[None]] = set()

    @property
    def bound(self) -> bool:
        return (
            not self._closed
            and self._bus.connected
            and self._pull is not None
            and self._pull.lost in ("", _CLOSED_REASON)
        )

    async def open(self) -> None:
        """Make the durable if it is missing, and listen at a new inbox. Idempotent at the broker."""
        answer = await self._bus.api(
            f"CONSUMER.CREATE.{self._stream}.{self._name}.{self._config['filter_subject']}",
            {"stream_name": self._stream, "config": await self._shared_config()},
        )
        if code := error_code(answer):
            told = f"the consumer {self._name} of {self._stream} cannot be made: {error_text(answer)}"
            raise ConfigurationError(with_advice(told, code))
        pull = PullRequest(self._bus, self._stream, self._name)
        pull.on_arrival = self._start_hold_timer
        await pull.open()
        if self._closed:  # meanwhile
            await pull.close()
            return
        old, self._pull = self._pull, pull
        if old is not None:
            if not self._handoffs_unsynced or old.restarts == pull.restarts:
                pull.buffer.extend(old.buffer)
            old.buffer = pull.buffer  # for what still arrives at the old inbox
            await old.close()

    async def _shared_config(self) -> dict[str, Any]:
        """The config that serves all who share the consumer: with the longest of their ack deadlines. With a shorter
        one the work of those with a longer one, who report their progress less often, would be begun a second time."""
        mine = self._config["ack_wait"]
        for last in (False, True):
            answer = await self._bus.api(f"CONSUMER.INFO.{self._stream}.{self._name}")
            there = answer.get("config", {}).get("ack_wait", mine)
            attended = answer.get("num_waiting", 0) + answer.get("num_ack_pending", 0) > 0
            asked = {mine, there} | (ack_waits(answer) if self._pull else set())
            if (attended or self._pull) and len(asked) > 1:
                shown = [wait / to_nanoseconds(1) for wait in sorted(asked)]
                _log.warning("ack_waits_differ", consumer=self._name, seconds=shown, hint=_ACK_WAIT_HINT)
                told = " ".join(map(str, sorted(asked)))
                return {**self._config, "ack_wait": max(asked), "metadata": {_ACK_WAITS_METADATA: told}}
            if there <= mine or last:
                break
            await asyncio.sleep(_IDLE_CONSUMER_S)
        return self._config

    async def take(self, room: int) -> Sequence[PullDelivery]:
        self._taking = True
        self._cancel_hold_timer()
        try:
            while True:
                if self._closed or self._pull is None:
                    raise BusUnavailableError(f"the consumer {self._name} is closed; open it again")
                pull = self._pull
                if pull.buffer:
                    if taken := await self._take_from(pull, room):
                        return taken
                    continue
                if pull.denied is not None:
                    raise PermissionDeniedError(str(pull.denied))
                if pull.lost:
                    await self._recover(pull.lost)
                    continue
                await pull.refill(room, self._rank)
                await pull.wait()
        finally:
            self._taking = False
            if self._pull is not None and self._pull.buffer:
                self._start_hold_timer()

    def set_rank(self, rank: int) -> None:
        if self._rank is not None:
            self._rank = rank

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._on_close(self)
        await self._return_buffered()

    async def _take_from(self, pull: PullRequest, room: int) -> list[PullDelivery]:
        taken = [self._delivery(pull) for _ in range(min(room, len(pull.buffer)))]
        self._on_delivered(len(taken))
        await pull.refill(room - len(taken), self._rank)
        if all(delivery.message.body for delivery in taken):
            return taken
        return await self._resolve_bodies(taken)

    def _delivery(self, pull: PullRequest) -> PullDelivery:
        return PullDelivery(self._bus, pull.buffer.popleft(), pull.restarts if self._handoffs_unsynced else None)

    async def _resolve_bodies(self, taken: Sequence[PullDelivery]) -> list[PullDelivery]:
        """Those that are whole, or never will be. What cannot be fetched now is handed back, to come again."""
        complete: list[PullDelivery] = []
        try:
            for delivery in taken:
                try:
                    delivery.message = await self._resolve(delivery.message)
                    complete.append(delivery)
                except BusUnavailableError as error:
                    _log.warning("body_fetch_failed", subject=delivery.message.subject, reason=str(error))
                    await delivery.nak(_RETRY_PAUSE_S)
        except BaseException:  # nobody will settle them
            for delivery in taken:
                await delivery.nak()
            raise
        return complete

    async def _recover(self, reason: str) -> None:
        try:
            await self.open()
        except PermissionDeniedError:
            raise
        except (BusUnavailableError, ConfigurationError) as error:
            if self._bus.closed:
                raise BusUnavailableError(f"the bus of the consumer {self._name} was closed") from error
            if not self._lost_for and self._bus.connected:  # one line; a lost connection has its own
                self._lost_for = reason
                _log.warning("consumer_unavailable", consumer=self._name, stream=self._stream, reason=str(error))
            await asyncio.sleep(_RETRY_PAUSE_S)
            return
        _log.info("consumer_resumed", consumer=self._name, stream=self._stream, reason=self._lost_for or reason)
        self._lost_for = ""

    def _start_hold_timer(self) -> None:
        """Nobody may be taking any more: then what came is handed back, and the broker is told to send no more."""
        if not self._taking and self._hold is None:
            self._hold = asyncio.get_running_loop().call_later(_HOLD_S, self._release_buffer)

    def _cancel_hold_timer(self) -> None:
        if self._hold is not None:
            self._hold.cancel()
            self._hold = None

    def _release_buffer(self) -> None:
        self._hold = None
        if not self._taking and self._pull is not None and self._pull.buffer:
            task = asyncio.ensure_future(self._return_buffered())
            self._returning.add(task)
            task.add_done_callback(self._returning.discard)

    async def _return_buffered(self) -> None:
        self._cancel_hold_timer()
        if (pull := self._pull) is None:
            return
        await pull.close(drain=True)
        while pull.buffer and (self._closed or not self._taking):
            await self._delivery(pull).nak()


class PullDelivery:
    """One delivery; settling it is a message to its reply subject, sent and not waited for.

    With `since`, none is sent, nor is it handed on, once the broker has been restarted more often than that, nor
    while it may have been: what is written then is kept for whichever broker comes.
    """

    __slots__ = ("_arrival", "_bus", "_reply", "_since", "delivered", "message")

    def __init__(self, bus: ForwardingConnection, message: WireMessage, since: int | None = None) -> None:
        meta = DeliveryInfo(message.reply)
        self._bus = bus
        self._arrival = message
        self._since = since
        self._reply = message.reply
        self.delivered = meta.delivered
        self.message = to_stored_message(message, meta)

    async def ack(self) -> None:
        await self._settle(b"+ACK")

    async def nak(self, delay: float = 0.0) -> None:
        await self._settle(b'-NAK {"delay": %d}' % to_nanoseconds(delay) if delay > 0 else b"-NAK")

    async def term(self, reason: str) -> None:
        await self._settle(f"+TERM {reason}".encode("utf-8", "replace"))

    async def in_progress(self) -> None:
        await self._settle(b"+WPI")

    async def forward(self, name: str) -> bool:
        return self._is_current and await self._bus.forward(name, self._arrival)

    @property
    def _is_current(self) -> bool:
        return self._since is None or (self._bus.connected and self._since == self._bus.restarts)

    async def _settle(self, word: bytes) -> None:
        if self._is_current:
            await self._bus.send(self._reply, word)
