"""A durable consumer of a stream in one process, and the messages that it delivers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from pointsman.bus.jetstream.protocol import (
    DeliveryInfo,
    ForwardingConnection,
    WireMessage,
    error_code,
    error_text,
    to_nanoseconds,
    to_stored_message,
    with_advice,
)
from pointsman.bus.jetstream.pull_request import CLOSED_REASON, PRIORITY_GROUP, PullRequest
from pointsman.bus.jetstream.request_reply import NoRespondersError
from pointsman.errors import BusUnavailableError, ConfigurationError, PermissionDeniedError
from pointsman.ports.bus import StoredMessage
from pointsman.util.lazy_import import structlog

__all__ = ["PullConsumer", "PullDelivery", "ack_waits", "durable_config"]

_log = structlog.get_logger(__name__)

_HOLD_S = 2.0  # seconds after which a message that was not taken returns to the broker
_MAX_WAITING_PULLS = 4096  # number of pull requests that may wait at a consumer; each process of an agent needs two
# Seconds for which a consumer must be unused before its ack deadline is shortened. In this time, all processes that
# start together can request their deadlines.
_IDLE_CONSUMER_S = 1.0
_ACK_WAITS_METADATA = "pointsman-ack-waits"  # a key in a consumer's metadata
_ACK_WAIT_HINT = "the longest value applies; set the same POINTSMAN_ACK_WAIT for all processes, and restart them"
_RETRY_PAUSE_S = 0.5  # seconds between two tries to open a consumer
_ELECTION_S = 5.0  # seconds that a cluster takes to elect the leader of a consumer
# A pull request whose answer shows if a consumer exists. Every consumer refuses the request with status 400, because
# its heartbeat is as long as the request. If the consumer does not exist, the broker answers with status 503, no
# subscriber.
_INVALID_PULL = b'{"batch":1,"expires":1000000000,"idle_heartbeat":1000000000}'


def durable_config(
    name: str, subject: str, ack_wait: float, max_in_flight: int, *, ranked: bool = False
) -> dict[str, Any]:
    """Return the configuration of a durable consumer of `subject` for the broker. Times are in nanoseconds."""
    by_rank = {"priority_groups": [PRIORITY_GROUP], "priority_policy": "prioritized"} if ranked else {}
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
    """Return the ack deadlines in nanoseconds that processes requested; empty if all requested the same deadline."""
    return set(map(int, info.get("config", {}).get("metadata", {}).get(_ACK_WAITS_METADATA, "").split()))


class PullConsumer:
    """A durable consumer in one process; see `ports.Consumer`.

    `config` comes from `durable_config`. `whole` fetches a body that is stored separately. Each time messages are
    taken, `handed_out` is called with their number.

    `forgets` is True if the broker can lose messages of this stream at a restart, and can give their sequences to other
    messages. After a restart, earlier deliveries are not settled, because the settlement could reach another message.
    The broker redelivers the message of such a delivery, or has lost the message.

    `may_create` is False for a process that uses the existing consumer. `has_replicas` returns True on a cluster. While
    a cluster elects the leader of a consumer, the consumer seems to be missing, so the consumer is tried again.
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
        may_create: bool = True,
        has_replicas: Callable[[], bool] = bool,
    ) -> None:
        self._may_create = may_create
        self._has_replicas = has_replicas
        self._refusal = ""  # the broker's reason for not creating the consumer
        self._found = False  # True once this process found an existing consumer
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
        self._withdrawn = False
        self._lost_for = ""
        self._hold: asyncio.TimerHandle | None = None
        self._returning: set[asyncio.Task[None]] = set()

    @property
    def bound(self) -> bool:
        return (
            not self._closed
            and self._bus.connected
            and self._pull is not None
            and self._pull.lost in ("", CLOSED_REASON)
        )

    async def open(self) -> None:
        """Create a missing durable consumer, and subscribe to a new inbox. The call may be repeated.

        A process that is not allowed to create consumers uses the existing consumer.
        """
        if self._may_create:
            await self._create()
        if not self._may_create:
            await self._find()
        await self._renew_pull()

    async def _renew_pull(self) -> None:
        """Subscribe to a new inbox, and leave the old inbox."""
        pull = PullRequest(self._bus, self._stream, self._name)
        pull.on_arrival = self._start_hold_timer
        try:
            await pull.open()
        except BaseException:
            await pull.close()
            raise
        if self._closed:  # closed during the call
            await pull.close()
            return
        old, self._pull = self._pull, pull
        if old is not None:
            if not self._handoffs_unsynced or old.restarts == pull.restarts:
                pull.buffer.extend(old.buffer)
            old.buffer = pull.buffer  # share the buffer, because messages can still arrive at the old inbox
            await old.close()
        self._withdrawn = False

    async def _create(self) -> None:
        created = f"CONSUMER.CREATE.{self._stream}.{self._name}.{self._config['filter_subject']}"
        asked = f"CONSUMER.INFO.{self._stream}.{self._name}"
        try:
            with self._bus.optional_requests(self._bus.api_subject(created), self._bus.api_subject(asked)):
                order = {"stream_name": self._stream, "config": await self._shared_config()}
                answer = await self._bus.api(created, order)
        except PermissionDeniedError as error:
            self._may_create, self._refusal = False, str(error)
            return
        if code := error_code(answer):
            told = f"the consumer {self._name} of {self._stream} cannot be made: {error_text(answer)}"
            raise ConfigurationError(with_advice(told, code))

    async def _find(self) -> None:
        """Check that the consumer exists, with the request `_INVALID_PULL`, which causes no delivery.

        Raises:
            ConfigurationError: The consumer does not exist, and did not exist before.
            BusUnavailableError: The consumer existed, and does not exist now.
            PermissionDeniedError: This process is not allowed to create the missing consumer, or to pull.
        """
        subject = self._bus.api_subject(f"CONSUMER.MSG.NEXT.{self._stream}.{self._name}")
        until = asyncio.get_running_loop().time() + (_ELECTION_S if self._has_replicas() else 0.0)
        while True:
            try:
                await self._bus.ask(subject, _INVALID_PULL)
            except NoRespondersError:
                if self._found:
                    raise BusUnavailableError(
                        f"{self._stream} has lost its consumer {self._name}; run `pointsman provision`"
                    ) from None
                if asyncio.get_running_loop().time() < until:
                    await asyncio.sleep(_RETRY_PAUSE_S)
                    continue
                missing = f"{self._stream} has no consumer {self._name}; run `pointsman provision`"
                if self._refusal:
                    raise PermissionDeniedError(f"{missing} as a user with this permission: {self._refusal}") from None
                raise ConfigurationError(missing) from None
            self._found = True
            return

    async def _shared_config(self) -> dict[str, Any]:
        """Return a configuration with the longest ack deadline of all processes that share the consumer.

        A process that requested a long deadline reports its progress rarely. If a shorter deadline applied, the broker
        would redeliver a message that this process still works on.

        Returns:
            The configuration of this process with the longest deadline. If the deadlines differ, the metadata contains
            all deadlines.
        """
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
                if self._withdrawn:
                    await self._renew_pull()
                    continue
                if pull.lost:
                    await self._recover(pull.lost)
                    continue
                await pull.refill(room, self._rank)
                await pull.wait()
        finally:
            self._taking = False
            if self._pull is not None and self._pull.buffer:
                self._start_hold_timer()

    async def withdraw(self) -> Sequence[PullDelivery]:
        pull = self._pull
        if self._closed or pull is None or pull.lost or not (pull.outstanding or pull.buffer):
            return ()
        self._withdrawn = True
        await pull.close(drain=True)
        self._cancel_hold_timer()
        taken = [self._delivery(pull) for _ in range(len(pull.buffer))]
        self._on_delivered(len(taken))
        return await self._resolve_bodies(taken) if taken else ()

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
        """Return the deliveries with their bodies. A delivery whose body is unavailable now returns to the broker."""
        complete: list[PullDelivery] = []
        try:
            for delivery in taken:
                try:
                    delivery.message = await self._resolve(delivery.message)
                    complete.append(delivery)
                except BusUnavailableError as error:
                    _log.warning("body_fetch_failed", subject=delivery.message.subject, reason=str(error))
                    await delivery.nak(_RETRY_PAUSE_S)
        except BaseException:  # no other code settles these deliveries
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
            if not self._lost_for and self._bus.connected:  # log once; `connection` logs a lost connection
                self._lost_for = reason
                _log.warning("consumer_unavailable", consumer=self._name, stream=self._stream, reason=str(error))
            await asyncio.sleep(_RETRY_PAUSE_S)
            return
        _log.info("consumer_resumed", consumer=self._name, stream=self._stream, reason=self._lost_for or reason)
        self._lost_for = ""

    def _start_hold_timer(self) -> None:
        """Start a timer for messages that no caller takes.

        When the timer ends, close the pull request, so the broker sends no more messages. Then return to the broker the
        messages that have arrived.
        """
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
    """One delivery. A message to its reply subject settles the delivery; the broker sends no answer.

    `since` is the value of `restarts` at the delivery, or None if the broker loses no messages at a restart. With
    `since`, the delivery is neither settled nor forwarded after a restart. While the connection is down, the delivery
    is not settled either, because the client would send the settlement to the broker after the restart.
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
