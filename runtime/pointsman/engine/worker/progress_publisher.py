"""Publish the reports of a running attempt.

Progress is published in the background, and a report of progress may be lost. The publish of a domain event is repeated
until the broker has stored the event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from uuid import uuid4

from pointsman.engine.process.retrying import retry_while_unavailable
from pointsman.engine.worker.executors import run_on_loop
from pointsman.errors import PointsmanError
from pointsman.ports.bus import Bus
from pointsman.ports.clock import Clock
from pointsman.telemetry import current_context, get_logger, metrics, semconv
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import Delta, Progress
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import Subjects

__all__ = ["BusProgressPublisher"]

# Maximum number of one attempt's reports that are being published. Only an endless loop makes more reports.
_MAX_OUTSTANDING = 256
_BATCH_DELAY_S = 0.05  # seconds of text in one broadcast; twenty broadcasts a second look like continuous text
# Seconds between two broadcasts of the whole text, for readers that missed a piece. While no text is written, the
# broadcasts continue for late readers, and the interval doubles each time.
_REPEAT_INTERVAL_S = 1.0
_MAX_REPEATED_CHARS = 100_000  # maximum length of a repeated text; usual answers of models are shorter
_FLUSH_TIMEOUT_S = 1.0  # seconds for which a result waits for earlier reports

_log = get_logger(__name__)


class BusProgressPublisher:
    """`Reporter` of one attempt. Any thread may report.

    All reports are published on the loop that ran when this object was created.
    """

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        *,
        team: str,
        source: str,
        correlation_id: str | None,
        causation_id: str,
        clock: Clock,
    ) -> None:
        self._bus = bus
        self._subjects = subjects
        self._team = team
        self._source = source
        self._correlation_id = correlation_id
        self._causation_id = causation_id
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pending_text: list[Delta] = []
        self._call = ""
        self._written: list[str] = []
        """The pieces of the text that is being written."""
        self._length = 0
        self._last: Delta | None = None
        self._repeating: asyncio.TimerHandle | None = None
        self._pause = _REPEAT_INTERVAL_S
        self._stopped = False
        self._dropped = 0

    def report(self, progress: Progress) -> None:
        try:
            subject = self._subjects.event(self._team, progress.workflow_id, progress.agent, progress.task_id)
            body, headers = dump(progress), self._headers(progress, uuid4().hex)
            self._loop.call_soon_threadsafe(self._publish_best_effort, subject, body, headers)
        except (ValueError, RuntimeError) as error:  # the text cannot be encoded, or the loop of the worker is closed
            _log.debug("report_dropped", kind=progress.kind, error=repr(error))

    def stream_text(self, delta: Delta) -> None:
        with suppress(RuntimeError):  # the loop of the worker is closed
            self._loop.call_soon_threadsafe(self._broadcast_later, delta)

    async def emit(self, event: Progress, event_id: str) -> None:
        subject = self._subjects.event(self._team, event.workflow_id, event.agent, event.name)
        storing = self._store(subject, dump(event), self._headers(event, event_id), event_id)
        await run_on_loop(self._loop, storing)

    def stop(self) -> None:
        """Stop repeating the text, because the attempt has ended."""
        self._stopped = True
        if self._repeating is not None:
            self._repeating.cancel()

    async def flush(self) -> None:
        """Wait a limited time until the reports are stored, and drop the reports that are late."""
        if self._pending_text or (self._last is not None and self._last.offset):
            self._broadcast_whole()  # at the end of the text, for readers that missed a piece
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=_FLUSH_TIMEOUT_S)
            for task in late:
                task.cancel()
            self._dropped += len(late)
        if self._dropped:
            metrics.count(semconv.TELEMETRY_DROPPED, self._dropped, {semconv.SIGNAL: "reports"})
            _log.warning("reports_dropped", count=self._dropped, hint="the result of the attempt is not affected")

    def _broadcast_later(self, delta: Delta) -> None:
        """Add the text to the next broadcast, because models send a few letters at a time, but readers need words."""
        if self._pending_text and self._pending_text[-1].call != delta.call:
            self._broadcast()
        if not self._pending_text:
            self._loop.call_later(_BATCH_DELAY_S, self._broadcast)
        self._pending_text.append(delta)

    def _broadcast(self) -> None:
        """Broadcast the pending text."""
        if not self._pending_text:
            return
        self._send(self._take_pending())
        if self._repeating is None or self._pause > _REPEAT_INTERVAL_S:
            self._repeat_after(_REPEAT_INTERVAL_S)

    def _broadcast_whole(self) -> None:
        """Broadcast the whole text of the model call, including the pending text."""
        newest = self._take_pending() if self._pending_text else self._last
        if newest is None:
            return
        if newest.call and self._length <= _MAX_REPEATED_CHARS:
            newest = newest.model_copy(update={"text": "".join(self._written), "offset": 0})
        elif newest is self._last:
            return
        self._send(newest)

    def _repeat_after(self, pause: float) -> None:
        if self._repeating is not None:
            self._repeating.cancel()
        self._pause, self._repeating = pause, None
        if self._call and self._length <= _MAX_REPEATED_CHARS and not self._stopped:
            self._repeating = self._loop.call_later(pause, self._repeat)

    def _repeat(self) -> None:
        is_new = bool(self._pending_text) or (self._last is not None and self._last.offset > 0)
        self._broadcast_whole()
        self._repeat_after(_REPEAT_INTERVAL_S if is_new else 2 * self._pause)

    def _send(self, whole: Delta) -> None:
        self._last = whole
        body = dump(whole)
        headers = encode(
            Envelope(
                id=uuid4().hex,
                type=Delta.event_type,
                source=self._source,
                time=self._clock.now(),
                subject=whole.workflow_id,
                correlation_id=self._correlation_id,
                causation_id=self._causation_id,
            )
        )
        task = self._loop.create_task(
            self._publish_later(self._subjects.delta(self._team, whole.workflow_id, whole.agent), body, headers)
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _take_pending(self) -> Delta:
        """Return the pending text as one piece, with its offset in the text of the model call."""
        said, self._pending_text = self._pending_text, []
        first, text = said[0], "".join(delta.text for delta in said)
        if first.call != self._call:
            self._call, self._written, self._length = first.call, [], 0
        offset = self._length
        if first.call:
            self._written.append(text)
            self._length += len(text)
        return first.model_copy(update={"text": text, "offset": offset})

    async def _publish_later(self, subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        with suppress(PointsmanError):
            await self._bus.broadcast(subject, body, headers)

    def _publish_best_effort(self, subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        if len(self._tasks) >= _MAX_OUTSTANDING:
            self._dropped += 1
            return
        task = self._loop.create_task(self._publish_once(subject, body, headers))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _publish_once(self, subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        try:
            await self._bus.publish(subject, body, headers)
        except PointsmanError as error:
            _log.debug("report_dropped", subject=subject, error=str(error))

    async def _store(self, subject: str, body: bytes, headers: Mapping[str, str], event_id: str) -> None:
        # If the acknowledgement is lost, the event may be stored. The broker then drops the retry by its message id.
        await retry_while_unavailable(
            lambda: self._bus.publish(subject, body, headers, message_id=event_id), self._clock
        )

    def _headers(self, event: Progress, event_id: str) -> Mapping[str, str]:
        here = current_context()
        traceparent = here.traceparent if here else None
        return encode(
            Envelope(
                id=event_id,
                type=Progress.event_type,
                source=self._source,
                time=self._clock.now(),
                subject=event.workflow_id,
                correlation_id=self._correlation_id,
                causation_id=self._causation_id,
                traceparent=traceparent,
                tracestate=here.tracestate if here else None,
                origin_traceparent=traceparent,
            )
        )
