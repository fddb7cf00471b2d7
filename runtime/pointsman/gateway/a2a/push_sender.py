"""Deliver the events of tasks to the receivers of push notifications, in order, with retries.

Only one gateway at a time owns the delivery to a receiver. A gateway acquires the ownership by compare-and-set in the
bucket of the receivers. If this gateway is killed, another gateway continues within a minute, after
the newest event that is recorded as delivered. So each event is delivered at least once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing, suppress
from datetime import timedelta
from uuid import uuid4

from a2a.types.a2a_pb2 import TaskArtifactUpdateEvent
from a2a.utils.errors import TaskNotFoundError
from a2a.utils.proto_utils import to_stream_response
from google.protobuf.json_format import MessageToDict
from pydantic_core import to_json

from pointsman.errors import BusUnavailableError, ConflictError, PointsmanError
from pointsman.gateway.a2a.parts import metadata_of
from pointsman.gateway.a2a.push_store import PushReceiver, PushStore, StoredReceiver, now
from pointsman.gateway.a2a.reading import TaskReader
from pointsman.gateway.a2a.tasks import TERMINAL, TaskEvent
from pointsman.gateway.callers import Caller
from pointsman.gateway.context import Context
from pointsman.gateway.streams import Position
from pointsman.telemetry import get_logger
from pointsman.webhooks.sender import Sender, SendError, jittered

__all__ = ["PushSender"]

_log = get_logger(__name__)

_MAX_DELIVERIES = 200  # maximum number of deliveries that one gateway runs at a time
_MAX_OF_CALLER = _MAX_DELIVERIES // 4  # maximum number of deliveries for one caller, so that other callers do not wait
_OWNERSHIP_S = 40.0  # seconds for which a gateway owns a delivery; renewed with each event, and when idle
_SEARCH_INTERVAL_S = 5.0  # seconds between searches for receivers that no gateway owns
_KEPT_S = 7 * 86_400.0  # seconds from the end of the deliveries to the removal of the receiver
_GONE = 410
_ERROR_CHARS = 300


class _StoppedError(Exception):
    """The delivery ends at this gateway. The receiver was changed or deleted, or another gateway owns the delivery."""


class PushSender:
    """Delivers the push notifications of one gateway.

    Args:
        context: The parts of the gateway.
        store: The receivers.
    """

    def __init__(self, context: Context, store: PushStore) -> None:
        settings = context.settings
        self._context = context
        self._store = store
        self._id = uuid4().hex
        self._pauses = tuple(float(each) for each in settings.webhook_retries.split(","))
        self._sender = Sender(timeout=settings.webhook_timeout, private_networks=settings.webhook_private_networks)
        self._running: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Deliver until cancelled."""
        try:
            while True:
                self._store.changed.clear()
                await self._look()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_SEARCH_INTERVAL_S):
                        await self._store.changed.wait()
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _look(self) -> None:
        """Begin the deliveries that no gateway owns, and remove receivers of tasks that ended long ago."""
        self._running = {key: task for key, task in self._running.items() if not task.done()}
        known = self._store.known
        callers = Counter(known[key].receiver.caller for key in self._running if key in known)
        for key, stored in list(known.items()):
            receiver, at = stored.receiver, now()
            if receiver.status != "active":
                if (at - receiver.changed_at).total_seconds() > _KEPT_S:
                    with suppress(BusUnavailableError):
                        await self._store.delete(key)
                continue
            owned = receiver.owned_until is not None and receiver.owned_until > at and receiver.owner != self._id
            due = receiver.next_at is None or receiver.next_at <= at
            room = len(self._running) < _MAX_DELIVERIES and callers[receiver.caller] < _MAX_OF_CALLER
            if due and not owned and key not in self._running and room:
                callers[receiver.caller] += 1
                self._running[key] = asyncio.create_task(self._guarded(stored))

    async def _guarded(self, stored: StoredReceiver) -> None:
        try:
            await self._deliver(stored)
        except (_StoppedError, ConflictError):
            return
        except PointsmanError as error:
            _log.info(
                "push_interrupted",
                task=stored.receiver.task,
                error=str(error),
                hint="the gateway tries the delivery again",
            )
        except Exception as error:
            _log.error("push_crashed", task=stored.receiver.task, exc_info=error)

    async def _deliver(self, stored: StoredReceiver) -> None:
        """Send the events of a task after the newest delivered event, up to the end of the task or a failure."""
        stored = await self._own(stored)
        receiver = stored.receiver
        reader = TaskReader(self._context, Caller(receiver.caller), receiver.team, receiver.origin)
        try:
            workflow = await reader.find(receiver.task)
        except TaskNotFoundError:
            await self._store.delete(receiver.key)  # retention removed the task, so no event can follow
            return
        position = Position.parse(receiver.position)
        fold = reader.empty(workflow) if position is None else await reader.fold(workflow, up_to=position)
        if fold.task.status.state in TERMINAL:
            await self._change(stored, status="done", owner="", owned_until=None)
            return
        async with aclosing(reader.follow(workflow, fold)) as steps:
            async for events in steps:
                for event in events:
                    if (error := await self._send(stored.receiver, event)) is not None:
                        await self._failed(stored, *error)
                        return
                    if event is not events[-1]:
                        stored = await self._own(stored)
                if not events:
                    stored = await self._own(stored)
                    continue
                # the position is stored after the last event of an entry; after a crash, the whole entry is sent again
                stored = await self._own(
                    stored,
                    position=str(metadata_of(events[-1], "position") or ""),
                    attempts=0,
                    error="",
                    next_at=None,
                    **({"status": "done"} if fold.state in TERMINAL else {}),
                )
        if stored.receiver.status == "active":  # this gateway stops, so release the delivery for another gateway
            await self._change(stored, owner="", owned_until=None)

    async def _send(self, receiver: PushReceiver, event: TaskEvent) -> tuple[str, float, bool] | None:
        """Send one event. Return None after a success; otherwise the error, the requested pause, and True for a 410."""
        body = to_json(MessageToDict(to_stream_response(event)))
        position = str(metadata_of(event, "position") or "")
        part = event.artifact.artifact_id if isinstance(event, TaskArtifactUpdateEvent) else "status"
        headers = {
            "content-type": "application/a2a+json",
            "a2a-version": "1.0",
            "webhook-id": f"{receiver.key}-{position}-{part}",  # equal in each attempt, so the receiver can drop copies
        }
        if receiver.token:
            headers["x-a2a-notification-token"] = receiver.token
        if receiver.credentials:
            headers["authorization"] = f"{receiver.scheme} {receiver.credentials}"
        try:
            response = await self._sender.post(receiver.url, body, headers)
        except SendError as error:
            return str(error), 0.0, False
        if 200 <= response.status < 300:
            return None
        return f"the receiver answered {response.status}", response.retry_after, response.status == _GONE

    async def _failed(self, stored: StoredReceiver, error: str, pause: float, gone: bool) -> None:
        attempts = stored.receiver.attempts + 1
        over = gone or attempts > len(self._pauses)
        _log.warning("push_failed", task=stored.receiver.task, attempts=attempts, error=error, last=over)
        await self._change(
            stored,
            status="failed" if over else "active",
            attempts=attempts,
            error=error[:_ERROR_CHARS],
            next_at=None if over else now() + timedelta(seconds=max(pause, jittered(self._pauses[attempts - 1]))),
            owner="",
            owned_until=None,
        )

    async def _own(self, stored: StoredReceiver, **changes: object) -> StoredReceiver:
        """Acquire or renew the ownership of a delivery, and store `changes` in the same write."""
        until = now() + timedelta(seconds=_OWNERSHIP_S)
        return await self._change(stored, owner=self._id, owned_until=until, **changes)

    async def _change(self, stored: StoredReceiver, **changes: object) -> StoredReceiver:
        receiver = stored.receiver.model_copy(update={**changes, "changed_at": now()})
        return await self._store.write(receiver, stored.revision)
