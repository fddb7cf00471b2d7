"""Pull consumers: one long-lived request kept open, refilled at half, and never more asked for than there is room."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from pointsman.bus.jetstream.protocol import (
    Arrival,
    Connection,
    HandingConnection,
    Inbox,
    Meta,
    as_stored,
    error_code,
    nanoseconds,
    said,
)
from pointsman.errors import BusUnavailable, ConfigurationError
from pointsman.ports.bus import Stored
from pointsman.util.lazy_import import structlog

__all__ = ["Pull", "PullConsumer", "PullDelivery", "ack_waits", "durable"]

_log = structlog.get_logger(__name__)

_EXPIRES = 30.0  # seconds one pull request stays open at the broker
_HEARTBEAT = 2.0  # seconds between signs of life of an idle pull; two missing ones mean that it is lost. When the node
# that led a consumer dies nobody tells its pulls: work waits for 4 to 6 s then (with 5 s here it was 11)
_HOLD = 2.0  # seconds a message nobody takes may stay here before it is handed back
_WAITING = 4096  # pull requests that may wait on one consumer: two for every process that serves an agent
_GROUP = "ranked"  # whose pulls the broker serves by their rank
_UNATTENDED = 1.0  # seconds for which nobody asks of a consumer before its ack deadline is shortened: all who start
# together have asked by then
_ACK_WAITS = "pointsman-ack-waits"  # in a consumer's metadata
_CLOSED = "closed"  # lost, but by our own will
_SAME = "the longest counts; give all processes that share it the same POINTSMAN_ACK_WAIT, and start them anew"
_RETRY = 0.5  # seconds before a consumer that could not be opened is tried again


class Pull:
    """One inbox at which the broker delivers for a pull consumer, and the count of messages it still may send there.

    `asked` falls with every message, and by what an expired pull request says it left undelivered. Whatever makes that
    count doubtful (a lost connection, a new leader, silence) sets `lost`: the inbox is then given up for a new one, and
    the broker drops the requests that wait on it.
    """

    def __init__(self, bus: Connection, stream: str, consumer: str) -> None:
        self.buffer: deque[Arrival] = deque()
        self.since = bus.restarts
        self.asked = 0
        self.lost = ""
        self._bus = bus
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox = bus.new_inbox()
        self._subscription: Inbox | None = None
        self._loop = asyncio.get_running_loop()
        self._stirred = asyncio.Event()
        self._heard = self._loop.time()
        self._watchdog = self._loop.call_later(_HEARTBEAT, self._watch)
        self.on_arrival: Callable[[], None] | None = None

    async def open(self) -> None:
        self._subscription = await self._bus.hear(self._inbox, self._arrived)
        self._bus.listeners.add(self._disconnected)

    async def refill(self, room: int, rank: int | None = None) -> None:
        """Ask for what is missing to `room`, once half of it is: one request then serves many messages. A ranked
        consumer takes no request without a `rank`, and no other one with it."""
        outstanding = self.asked + len(self.buffer)
        if self.lost or 2 * outstanding > room or room == 0:
            return
        self.asked += room - outstanding
        self._heard = self._loop.time()
        await self._bus.send(
            self._subject,
            b'{"batch":%d,"expires":%d,"idle_heartbeat":%d%s}'
            % (
                room - outstanding,
                nanoseconds(_EXPIRES),
                nanoseconds(_HEARTBEAT),
                b"" if rank is None else b',"group":"%s","priority":%d' % (_GROUP.encode(), rank),
            ),
            reply=self._inbox,
        )

    async def wait(self) -> None:
        """Return when something came, or the pull was lost."""
        self._stirred.clear()
        if not self.buffer and not self.lost:
            await self._stirred.wait()

    def lose(self, reason: str) -> None:
        self.lost = self.lost or reason
        self._stirred.set()

    def _disconnected(self) -> None:
        self.lose("disconnected")

    async def close(self, *, drain: bool = False) -> None:
        """Give the inbox up. With `drain`, what the broker sent before it noticed still arrives in the buffer."""
        self._watchdog.cancel()
        self._bus.listeners.discard(self._disconnected)
        self.lose(_CLOSED)
        if (subscription := self._subscription) is not None:
            self._subscription = None
            await (subscription.drain() if drain else subscription.drop())

    def _arrived(self, message: Arrival) -> None:
        self._heard = self._loop.time()
        if message.reply:
            self.asked = max(0, self.asked - 1)
            self.buffer.append(message)
            if self.on_arrival is not None:
                self.on_arrival()
        else:
            status = message.status
            if status.startswith("100"):
                return
            left = message.headers.get("Nats-Pending-Messages")
            if status.startswith(("404", "408")) and left is not None:
                self.asked = max(0, self.asked - int(left))
            else:
                self.lost = self.lost or status
        self._stirred.set()

    def _watch(self) -> None:
        if self.asked and self._loop.time() - self._heard > 2 * _HEARTBEAT:
            self.lose("no heartbeat")
        if not self.lost:
            self._watchdog = self._loop.call_later(_HEARTBEAT, self._watch)


def durable(name: str, subject: str, ack_wait: float, max_in_flight: int, *, ranked: bool = False) -> dict[str, Any]:
    """What a durable consumer of `subject` is made of at the broker. Times are in nanoseconds."""
    by_rank = {"priority_groups": [_GROUP], "priority_policy": "prioritized"} if ranked else {}
    return by_rank | {
        "durable_name": name,
        "name": name,
        "filter_subject": subject,
        "ack_policy": "explicit",
        "deliver_policy": "all",
        "replay_policy": "instant",
        "ack_wait": nanoseconds(ack_wait),
        "max_deliver": -1,
        "max_ack_pending": max_in_flight,
        "max_waiting": _WAITING,
    }


def ack_waits(info: Mapping[str, Any]) -> set[int]:
    """The ack deadlines, in nanoseconds, that those have asked for who share the consumer, where they differ."""
    return set(map(int, info.get("config", {}).get("metadata", {}).get(_ACK_WAITS, "").split()))


class PullConsumer:
    """A durable consumer as one process sees it; see `ports.Consumer`. Its `config` is that of a `durable`; `whole`
    fetches the body of a message that came without.

    `forgets`: a broker that is started anew may have less in this stream than it had, and give its numbers to other
    messages. What was delivered before is then not settled: it comes again, or is gone.
    """

    def __init__(
        self,
        bus: HandingConnection,
        stream: str,
        config: dict[str, Any],
        on_close: Callable[[PullConsumer], None],
        handed_out: Callable[[int], None],
        whole: Callable[[Stored], Awaitable[Stored]],
        *,
        forgets: bool = False,
    ) -> None:
        self._rank = 0 if "priority_groups" in config else None
        self._forgets = forgets
        self._on_close = on_close
        self._handed_out = handed_out
        self._whole = whole
        self._bus = bus
        self._stream = stream
        self._name = config["name"]
        self._config = config
        self._pull: Pull | None = None
        self._taking = False
        self._closed = False
        self._lost_for = ""
        self._hold: asyncio.TimerHandle | None = None
        self._returning: set[asyncio.Task[None]] = set()

    @property
    def bound(self) -> bool:
        return not self._closed and self._bus.connected and self._pull is not None and self._pull.lost in ("", _CLOSED)

    async def open(self) -> None:
        """Make the durable if it is missing, and listen at a new inbox. Idempotent at the broker."""
        answer = await self._bus.api(
            f"CONSUMER.CREATE.{self._stream}.{self._name}.{self._config['filter_subject']}",
            {"stream_name": self._stream, "config": await self._agreed()},
        )
        if error_code(answer):
            raise ConfigurationError(f"the consumer {self._name} of {self._stream} cannot be made: {said(answer)}")
        pull = Pull(self._bus, self._stream, self._name)
        pull.on_arrival = self._hold_for_a_while
        await pull.open()
        if self._closed:  # meanwhile
            await pull.close()
            return
        old, self._pull = self._pull, pull
        if old is not None:
            if not self._forgets or old.since == pull.since:
                pull.buffer.extend(old.buffer)
            old.buffer = pull.buffer  # for what still arrives at the old inbox
            await old.close()

    async def _agreed(self) -> dict[str, Any]:
        """The config that serves all who share the consumer: with the longest of their ack deadlines. With a shorter
        one the work of those with a longer one, who report their progress less often, would be begun a second time."""
        mine = self._config["ack_wait"]
        for last in (False, True):
            answer = await self._bus.api(f"CONSUMER.INFO.{self._stream}.{self._name}")
            there = answer.get("config", {}).get("ack_wait", mine)
            attended = answer.get("num_waiting", 0) + answer.get("num_ack_pending", 0) > 0
            asked = {mine, there} | (ack_waits(answer) if self._pull else set())
            if (attended or self._pull) and len(asked) > 1:
                shown = [wait / nanoseconds(1) for wait in sorted(asked)]
                _log.warning("ack_waits_differ", consumer=self._name, seconds=shown, hint=_SAME)
                told = " ".join(map(str, sorted(asked)))
                return {**self._config, "ack_wait": max(asked), "metadata": {_ACK_WAITS: told}}
            if there <= mine or last:
                break
            await asyncio.sleep(_UNATTENDED)
        return self._config

    async def take(self, room: int) -> Sequence[PullDelivery]:
        self._taking = True
        self._stop_holding()
        try:
            while True:
                if self._closed or self._pull is None:
                    raise BusUnavailable(f"the consumer {self._name} is closed; open it again")
                pull = self._pull
                if pull.buffer:
                    if taken := await self._hand_out(pull, room):
                        return taken
                    continue
                if pull.lost:
                    await self._recover(pull.lost)
                    continue
                await pull.refill(room, self._rank)
                await pull.wait()
        finally:
            self._taking = False
            if self._pull is not None and self._pull.buffer:
                self._hold_for_a_while()

    def set_rank(self, rank: int) -> None:
        if self._rank is not None:
            self._rank = rank

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._on_close(self)
        await self._hand_back()

    async def _hand_out(self, pull: Pull, room: int) -> list[PullDelivery]:
        taken = [self._delivery(pull) for _ in range(min(room, len(pull.buffer)))]
        self._handed_out(len(taken))
        await pull.refill(room - len(taken), self._rank)
        if all(delivery.message.body for delivery in taken):
            return taken
        return await self._complete(taken)

    def _delivery(self, pull: Pull) -> PullDelivery:
        return PullDelivery(self._bus, pull.buffer.popleft(), pull.since if self._forgets else None)

    async def _complete(self, taken: Sequence[PullDelivery]) -> list[PullDelivery]:
        """Those that are whole, or never will be. What cannot be fetched now is handed back, to come again."""
        complete: list[PullDelivery] = []
        try:
            for delivery in taken:
                try:
                    delivery.message = await self._whole(delivery.message)
                    complete.append(delivery)
                except BusUnavailable as error:
                    _log.warning("body_not_fetched", subject=delivery.message.subject, reason=str(error))
                    await delivery.nak(_RETRY)
        except BaseException:  # nobody will settle them
            for delivery in taken:
                await delivery.nak()
            raise
        return complete

    async def _recover(self, reason: str) -> None:
        try:
            await self.open()
        except (BusUnavailable, ConfigurationError) as error:
            if self._bus.closed:
                raise BusUnavailable(f"the bus of the consumer {self._name} was closed") from error
            if not self._lost_for and self._bus.connected:  # one line; a lost connection has its own
                self._lost_for = reason
                _log.warning("consumer_waits", consumer=self._name, stream=self._stream, reason=str(error))
            await asyncio.sleep(_RETRY)
            return
        _log.info("consumer_resumed", consumer=self._name, stream=self._stream, reason=self._lost_for or reason)
        self._lost_for = ""

    def _hold_for_a_while(self) -> None:
        """Nobody may be taking any more: then what came is handed back, and the broker is told to send no more."""
        if not self._taking and self._hold is None:
            self._hold = asyncio.get_running_loop().call_later(_HOLD, self._let_go)

    def _stop_holding(self) -> None:
        if self._hold is not None:
            self._hold.cancel()
            self._hold = None

    def _let_go(self) -> None:
        self._hold = None
        if not self._taking and self._pull is not None and self._pull.buffer:
            task = asyncio.ensure_future(self._hand_back())
            self._returning.add(task)
            task.add_done_callback(self._returning.discard)

    async def _hand_back(self) -> None:
        self._stop_holding()
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

    def __init__(self, bus: HandingConnection, message: Arrival, since: int | None = None) -> None:
        meta = Meta(message.reply)
        self._bus = bus
        self._arrival = message
        self._since = since
        self._reply = message.reply
        self.delivered = meta.delivered
        self.message = as_stored(message, meta)

    async def ack(self) -> None:
        await self._settle(b"+ACK")

    async def nak(self, delay: float = 0.0) -> None:
        await self._settle(b'-NAK {"delay": %d}' % nanoseconds(delay) if delay > 0 else b"-NAK")

    async def term(self, reason: str) -> None:
        await self._settle(f"+TERM {reason}".encode("utf-8", "replace"))

    async def in_progress(self) -> None:
        await self._settle(b"+WPI")

    async def hand_on(self, name: str) -> bool:
        return self._current and await self._bus.hand_on(name, self._arrival)

    @property
    def _current(self) -> bool:
        return self._since is None or (self._bus.connected and self._since == self._bus.restarts)

    async def _settle(self, word: bytes) -> None:
        if self._current:
            await self._bus.send(self._reply, word)
