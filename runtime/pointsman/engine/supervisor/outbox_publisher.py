"""Publish the outbox of a state, idempotently. A message that the broker already has is not published again.

The outcome is published last. So if the broker has the outcome, the broker has all other messages.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable, Sequence, Set
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pointsman.core.model.inputs import CLOCK_SKEW
from pointsman.core.model.lifecycle import TaskStatus
from pointsman.core.model.messages import Message
from pointsman.core.model.state import State, Task
from pointsman.core.outbox import USER_MESSAGES, outbox, retry_schedule
from pointsman.engine.log.reader import gather_batched, round_of_outcome
from pointsman.engine.process.dead_lettering import store_dead_letter
from pointsman.engine.process.fault_injection import fault_point
from pointsman.engine.process.handoff_codec import RESENT_HEADER
from pointsman.engine.supervisor.spans import log_context
from pointsman.engine.supervisor.stale_messages import delete_messages, find_foreign, is_outcome_of
from pointsman.errors import ConflictError, OversizeEventError, PointsmanError
from pointsman.ports.bus import Bus
from pointsman.ports.clock import Clock
from pointsman.telemetry import get_logger, tracing_enabled
from pointsman.telemetry.trace_context import traceparent_of
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import AttemptError, Cancellation, DeadLetter, ErrorKind, Handoff, Outcome, Result
from pointsman_schemas.log import Entry
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import Subjects

__all__ = ["EncodedMessage", "OutboxPublisher"]

_ENDED_SCHEDULE_TTL_S = 60.0
"""Lifetime of a message that only ends a schedule at the broker."""

_log = get_logger(__name__)


@dataclass(slots=True)
class EncodedMessage:
    """A message in its form on the wire.

    Attributes:
        message: The message.
        headers: The headers.
        body: The body.
    """

    message: Message
    headers: dict[str, str]
    body: bytes


class OutboxPublisher:
    """Publishes the outboxes of one team's workflows.

    Every method can raise `BusUnavailableError`. The caller must then publish the whole outbox again.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        clock: The clock.
        team: The team.
    """

    def __init__(self, bus: Bus, subjects: Subjects, clock: Clock, team: str) -> None:
        self._bus = bus
        self._subjects = subjects
        self._clock = clock
        self._source = subjects.source("team", team)
        self._clock_offset = timedelta()  # the broker's time, by which schedules fire, minus the time of this process

    def encode_new(self, state: State, entries: Sequence[Entry]) -> Sequence[EncodedMessage]:
        """Encode the messages that entries add to the outbox, for `publish_new` after their commit.

        Args:
            state: The state after the entries.
            entries: The entries.

        Returns:
            The messages.
        """
        return self._encode(state, outbox(state, self._subjects, _touched_by(entries))) if entries else ()

    async def publish_new(
        self, state: State, entries: Sequence[Entry], prepared: Sequence[EncodedMessage] | None = None
    ) -> None:
        """Publish the messages that entries add to the outbox, after this process committed the entries.

        Args:
            state: The state after the entries.
            entries: The entries.
            prepared: The messages from `encode_new`; None to encode the messages in this call.
        """
        if abandoned := [entry.task_id for entry in entries if entry.kind == "task_abandoned"]:
            await self._cancel_tasks(state, [state.tasks[name] for name in abandoned])
        await self._withdraw_outcome(state)
        await self._publish(state, self.encode_new(state, entries) if prepared is None else prepared)

    async def republish_all(self, state: State, entries: Sequence[Entry] = ()) -> None:
        """Publish the whole outbox of a state, because some of its messages may not have been published.

        Args:
            state: The state.
            entries: The entries of the newest commit.
        """
        if state.ended and not entries:
            *_, ending = self._encode(state, outbox(state, self._subjects, frozenset()))
            found = await self._bus.last("log", ending.message.subject)
            if found is not None and is_outcome_of(found, state, ending.headers):
                return
        await self.cancel_dispatched(state)
        await self._withdraw_outcome(state)
        messages = self._encode(state, outbox(state, self._subjects))
        if self._bus.handoffs_unsynced:
            _mark_resent(messages)
        sent, there = await self._publish(state, messages)
        _log.info("outbox_republished", sent=sent, already_there=there, **log_context(state))

    async def cancel_dispatched(self, state: State) -> None:
        """Cancel the handoffs of all abandoned tasks."""
        await self._cancel_tasks(state, [task for task in state.tasks.values() if task.status is TaskStatus.ABANDONED])

    async def _withdraw_outcome(self, state: State) -> None:
        """Delete the outcome of an earlier round while a resumed workflow runs.

        Otherwise readers would treat the workflow as ended. The log still contains the outcomes of all rounds. A slow
        supervisor may publish the outcome of an earlier round late, so the outcome is checked at each commit of a
        resumed workflow.
        """
        if state.round == 1 or state.ended:
            return
        subject = self._subjects.outcome(state.team, state.workflow_id)
        found = await self._bus.last("log", subject)
        if found is not None and round_of_outcome(found) < state.round:
            await self._bus.trim("log", subject, found.sequence)

    async def broker_clock_changed(self) -> bool:
        """Measure the offset of the broker's clock to this process's clock, and compare it with the last offset.

        Returns:
            True if the clock was set, so schedules must be published again.
        """
        ahead = await self._bus.time() - self._clock.now()
        if abs(ahead - self._clock_offset) <= CLOCK_SKEW:
            return False
        self._clock_offset = ahead
        hint = "deadlines depend on the elapsed time; processes that start from now on use the new time"
        _log.warning("broker_clock_changed", seconds=round(ahead.total_seconds(), 1), hint=hint)
        return True

    async def republish_scheduled(self, state: State) -> None:
        """Publish all schedules of a state again, because the clock of the broker was set."""
        waiting = (message for message in outbox(state, self._subjects) if message.schedule is not None)
        messages = self._encode(state, waiting)
        if self._bus.handoffs_unsynced:
            _mark_resent(messages)
        await self._publish_batch(state, messages)

    def _encode(self, state: State, messages: Iterable[Message]) -> Sequence[EncodedMessage]:
        return [EncodedMessage(message, self._headers(state, message), dump(message.event)) for message in messages]

    async def _publish(self, state: State, messages: Sequence[EncodedMessage]) -> tuple[int, int]:
        """Publish messages. Return the number of new messages, and of messages that the broker already had."""
        if not messages:
            return 0, 0
        if not isinstance(messages[-1].message.event, Outcome):
            new = await self._publish_batch(state, messages)
        else:
            new = await self._publish_batch(state, messages[:-1]) + await self._publish_batch(state, messages[-1:])
            if state.reply_to:
                await self._bus.broadcast(state.reply_to, messages[-1].body, {})
        return new, len(messages) - new

    async def _publish_batch(self, state: State, messages: Sequence[EncodedMessage]) -> int:
        """Publish messages concurrently.

        Afterwards the broker has every message. For a handoff or a result that is too large, the broker has a failed
        result instead. If messages cannot be published for another reason, the first error is raised after all tries.

        Returns:
            The number of new messages.
        """
        under_way = [self._start_publish(each) for each in messages]
        there: list[EncodedMessage] = []  # messages that were published before a crash, or by another supervisor
        failure: PointsmanError | None = None
        try:
            for each, sending in zip(messages, under_way, strict=True):
                try:
                    if await sending is False:
                        there.append(each)
                    fault_point("supervisor.sent")
                except ConflictError:
                    there.append(each)
                except OversizeEventError as error:
                    await self._fail_oversize(state, each.message, error)
                except PointsmanError as error:
                    failure = failure or error
        finally:
            for sending in under_way:
                sending.close()
        put_back = sum(await gather_batched(self._replace_foreign(state, each) for each in there)) if there else 0
        if failure is not None:
            raise failure
        return len(messages) - len(there) + put_back

    def _start_publish(self, ready: EncodedMessage) -> Coroutine[Any, Any, object]:
        message, headers, body = ready.message, ready.headers, ready.body
        if message.schedule is not None and message.due is not None:
            return self._bus.schedule(
                message.schedule, message.due + self._clock_offset, message.subject, body, headers
            )
        if isinstance(message.event, DeadLetter):
            return store_dead_letter(self._bus, message.subject, message.event, headers)
        return self._bus.publish(message.subject, body, headers, expect=0)

    async def _replace_foreign(self, state: State, ready: EncodedMessage) -> bool:
        """Replace a foreign message on the subject of `ready`. Return True if a message was replaced."""
        foreign = await find_foreign(self._bus, state, ready.message, ready.headers, self._clock_offset)
        if foreign is None:
            return False
        with contextlib.suppress(ConflictError):  # another supervisor has replaced the message
            if isinstance(ready.message.event, Handoff) and ready.message.schedule is None:
                await self._bus.replace(foreign.subject, ready.body, ready.headers, expect=foreign.sequence)
                return True
            await delete_messages(self._bus, foreign.subject, ready.message)
            return await self._start_publish(ready) is not False
        return False

    def _headers(self, state: State, message: Message) -> dict[str, str]:
        # Without tracing, the task has no span, so its agent continues the caller's span.
        parent = traceparent_of(state.trace, message.span_id if tracing_enabled() else None)
        return encode(
            Envelope(
                id=message.id,
                type=message.event.event_type,
                source=self._source,
                time=message.at,
                subject=state.workflow_id,
                correlation_id=state.correlation_id,
                causation_id=f"{state.workflow_id}-{message.commit}",
                traceparent=parent,
                tracestate=state.trace.tracestate,
                origin_traceparent=parent,
            )
        )

    async def _fail_oversize(self, state: State, message: Message, error: OversizeEventError) -> None:
        """Publish a failed result in place of an oversize result, or as the answer of an oversize handoff's agent."""
        failure = AttemptError(
            kind=ErrorKind.OVERSIZE, message=f"the {message.event.short_name()} was not sent: {error}"
        )
        now = self._clock.now()
        match message.event:
            case Handoff() as handoff:
                subject, result = (
                    handoff.return_to,
                    Result(
                        workflow_id=handoff.workflow_id,
                        task_id=handoff.task_id,
                        attempt=handoff.attempt,
                        agent=handoff.to_agent,
                        status="failed",
                        error=failure,
                        started_at=now,
                        ended_at=now,
                    ),
                )
            case Result() as given:  # the result of a team for its parent
                changes = {"status": "failed", "output": None, "gaps": (), "error": failure}
                subject, result = message.subject, given.model_copy(update=changes)
            case _:
                _log.error("event_too_large", subject=message.subject, reason=str(error), **log_context(state))
                return
        envelope = Envelope(
            id=f"{message.id}-oversize",
            type=Result.event_type,
            source=self._source,
            time=now,
            subject=state.workflow_id,
            correlation_id=state.correlation_id,
            causation_id=message.id,
        )
        with contextlib.suppress(ConflictError):
            await self._bus.publish(subject, dump(result), encode(envelope), expect=0)

    async def _cancel_tasks(self, state: State, abandoned: Sequence[Task]) -> None:
        """Broadcast the cancellation of abandoned tasks, and replace their queued and scheduled handoffs.

        The broadcast may be lost without harm, because the result of an abandoned task is ignored.
        """
        if handed := [task for task in abandoned if task.attempt]:
            cancelled = Cancellation(
                tasks=tuple(task.id for task in handed), attempts=tuple(task.attempt for task in handed)
            )
            body = dump(cancelled)
            await self._bus.broadcast(self._subjects.cancelled(state.team, state.workflow_id), body, {})
            await asyncio.gather(*(self._replace_handoff(state, task) for task in handed))

    async def _replace_handoff(self, state: State, task: Task) -> None:
        """Replace the task's handoff by a cancellation. The handoff may be queued, scheduled or taken.

        The cancellation remains on the subject of the handoff, so another supervisor cannot store the handoff late.
        """
        if task.not_before is not None:  # any message on the subject of a schedule ends the schedule
            schedule = retry_schedule(state, task, self._subjects)
            await self._bus.replace(schedule, b"", {}, ttl=_ENDED_SCHEDULE_TTL_S)
        subject = self._subjects.handoff(task.agent, state.team, state.workflow_id, task.id, task.attempt)
        name = f"{state.workflow_id}-{task.id}-{task.attempt}-cancelled"
        envelope = Envelope(
            id=name,
            type=Cancellation.event_type,
            source=self._source,
            time=self._clock.now(),
            subject=state.workflow_id,
            correlation_id=state.correlation_id,
            causation_id=f"{state.workflow_id}-{state.commits}",
        )
        body = dump(Cancellation(tasks=(task.id,), attempts=(task.attempt,)))
        await self._bus.replace(subject, body, encode(envelope), message_id=name)


def _mark_resent(messages: Iterable[EncodedMessage]) -> None:
    """Mark handoffs that the broker may have stored and lost."""
    for each in messages:
        if isinstance(each.message.event, Handoff):
            each.headers[RESENT_HEADER] = "true"


def _touched_by(entries: Iterable[Entry]) -> Set[str]:
    """Return the names of the tasks, timers and questions of the entries, in order, for `only` of `outbox`.

    All messages from persons share the name `USER_MESSAGES`.
    """
    return dict.fromkeys(map(_subject_of_entry, entries)).keys()


def _subject_of_entry(entry: Entry) -> str:
    match entry.kind:
        case "timer_armed":
            return entry.name
        case "question_asked":
            return entry.question
        case "message_received":
            return USER_MESSAGES
        case _:
            return getattr(entry, "task_id", "")
