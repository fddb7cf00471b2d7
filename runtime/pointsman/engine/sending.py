"""What a state owes the bus is sent here, idempotently: a message that is there already is left as it is.

The outcome goes last, so where it is, all the rest is too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence, Set
from datetime import datetime, timedelta

from pointsman.core.inputs import EARLY
from pointsman.core.message import Message
from pointsman.core.outbox import earlier_retry_schedule, outbox, retry_schedule
from pointsman.core.state import State, Task
from pointsman.core.transitions import TaskStatus
from pointsman.engine.burial import store_letter
from pointsman.engine.fault_points import passed
from pointsman.engine.handoffs import RESENT
from pointsman.engine.spans import log_ids, trace_context
from pointsman.errors import Conflict, OversizeEvent
from pointsman.ports import Bus, Clock
from pointsman.telemetry import get_logger, tracing
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import AttemptError, Cancellation, DeadLetter, ErrorKind, Handoff, Outcome, Result, Timer
from pointsman_schemas.log import ApprovalRequested, Entry, TaskAbandoned, TimerArmed
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import Subjects

__all__ = ["Sender"]

_log = get_logger(__name__)


class Sender:
    """Sends what one team's workflows owe the bus. Every method raises `BusUnavailable`: send it all again then."""

    def __init__(self, bus: Bus, subjects: Subjects, clock: Clock, team: str) -> None:
        self._bus = bus
        self._subjects = subjects
        self._clock = clock
        self._source = subjects.source("team", team)
        self.ahead = timedelta()  # the broker's clock, by which schedules fire, before the one here

    async def send_new(self, state: State, entries: Sequence[Entry]) -> None:
        """What `entries`, committed just now and by this process, have added to the outbox of `state`."""
        abandoned = [entry.task_id for entry in entries if isinstance(entry, TaskAbandoned)]
        await self._take_back(state, [state.tasks[name] for name in abandoned])
        if touched := _touched(entries):
            await self._send(state, touched)

    async def send_all(self, state: State, entries: Sequence[Entry] = ()) -> None:
        """The whole outbox of `state`, because what was sent before is not known."""
        if state.ended and not entries:
            ending = self._subjects.outcome(state.team, state.workflow_id)
            if await self._bus.last("log", ending) is not None:
                return
        await self.take_back(state)
        sent, there = await self._send(state, None)
        _log.info("outbox_sent_again", sent=sent, already_there=there, **log_ids(state))

    async def take_back(self, state: State) -> None:
        """Nothing that `state` has abandoned is left to start."""
        await self._take_back(state, [task for task in state.tasks.values() if task.status is TaskStatus.ABANDONED])

    async def reschedule(self, state: State) -> None:
        """Send what waits for its time again, for a broker whose clock has been set."""
        waiting = [message for message in outbox(state, self._subjects) if message.schedule is not None]
        await self._together(state, waiting, again=self._bus.forgets)

    async def _send(self, state: State, only: Set[str] | None) -> tuple[int, int]:
        """How many messages were new, and how many were there already."""
        messages = list(outbox(state, self._subjects, only))
        again = only is None and self._bus.forgets
        rest = [message for message in messages if not isinstance(message.event, Outcome)]
        new = [*await self._together(state, rest, again=again)]
        new += await self._together(state, messages[len(rest) :])
        if state.outcome is not None and state.reply_to:
            await self._bus.broadcast(state.reply_to, dump(state.outcome), {})
        return sum(new), len(new) - sum(new)

    async def _together(self, state: State, messages: Sequence[Message], *, again: bool = False) -> Sequence[bool]:
        if len(messages) == 1:
            return (await self._emit(state, messages[0], again=again),)
        return await asyncio.gather(*(self._emit(state, message, again=again) for message in messages))

    async def _emit(self, state: State, message: Message, *, again: bool) -> bool:
        """Whether it is new; it is on the bus in any case, or its attempt has failed. `again`: the broker may have had
        it, and forgotten it."""
        new = True
        try:
            headers = self._headers(state, message)
            if again and isinstance(message.event, Handoff):
                headers[RESENT] = "true"
            if isinstance(message.event, DeadLetter):
                await store_letter(self._bus, message.subject, message.event, headers)
            elif message.schedule is not None and message.due is not None:
                new = await self._schedule(message, message.schedule, message.due + self.ahead, headers)
            else:
                await self._bus.publish(message.subject, dump(message.event), headers, expect=0)
            passed("supervisor.sent")
        except Conflict:
            new = False  # sent before a crash, or by another supervisor
        except OversizeEvent as error:
            await self._fail_oversize(state, message, error)
        return new

    async def _schedule(self, message: Message, name: str, due: datetime, headers: dict[str, str]) -> bool:
        body, target = dump(message.event), message.subject
        if await self._bus.schedule(name, due, target, body, headers):
            return True
        if not isinstance(message.event, Timer):
            return False
        # What stands there fired, unless it was stored before its time: then somebody else has put it there, and a
        # workflow that took it for its own wake-up would never get that.
        there = await self._bus.last("work", target)
        if there is not None and due - there.at <= EARLY:
            return False
        _log.warning("timer_replaced", subject=target, hint="somebody published it; only the broker may, in its time")
        await self._bus.purge("work", target)
        return await self._bus.schedule(name, due, target, body, headers)

    def _headers(self, state: State, message: Message) -> dict[str, str]:
        # With tracing off here the task's span will never be; its agent goes on from where the caller was.
        traceparent = trace_context(state.trace, message.span_id if tracing() else None).traceparent
        return encode(
            Envelope(
                id=message.id,
                type=message.event.event_type,
                source=self._source,
                time=message.at,
                subject=state.workflow_id,
                correlation_id=state.correlation_id,
                causation_id=f"{state.workflow_id}-{message.commit}",
                traceparent=traceparent,
                tracestate=state.trace.tracestate,
                origin_traceparent=traceparent,
            )
        )

    async def _fail_oversize(self, state: State, message: Message, error: OversizeEvent) -> None:
        """A handoff, or a team's result, that does not fit fails its attempt: a result says so, as from its agent."""
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
            case Result() as given:  # of a team, to its parent
                told = {"status": "failed", "output": None, "gaps": (), "error": failure}
                subject, result = message.subject, given.model_copy(update=told)
            case _:
                _log.error("event_too_large", subject=message.subject, reason=str(error), **log_ids(state))
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
        with contextlib.suppress(Conflict):
            await self._bus.publish(subject, dump(result), encode(envelope), expect=0)

    async def _take_back(self, state: State, abandoned: Sequence[Task]) -> None:
        """Agents at work on what nobody waits for any more are told at once; it does no harm if they miss it. What none
        has begun leaves the queue, and what waits for its time does not come."""
        handed = [task for task in abandoned if task.attempt]
        if not handed:
            return
        body = dump(Cancellation(tasks=tuple(task.id for task in handed)))
        await self._bus.broadcast(self._subjects.live(state.workflow_id, "cancelled"), body, {})
        waiting = [
            name(state, task, self._subjects)
            for task in handed
            if task.not_before is not None
            for name in (retry_schedule, earlier_retry_schedule)
        ]
        await asyncio.gather(*(self._bus.purge("handoffs", name) for name in waiting))
        queued = [self._subjects.handoff(task.agent, state.workflow_id, task.id, task.attempt) for task in handed]
        await asyncio.gather(*(self._bus.purge("handoffs", subject) for subject in queued))


def _touched(entries: Iterable[Entry]) -> Set[str]:
    """The tasks, the timer and the approvals that the entries are about, in their order; the outcome is about its last
    task."""
    return dict.fromkeys(_about(entry) for entry in entries).keys()


def _about(entry: Entry) -> str:
    match entry:
        case TimerArmed():
            return entry.name
        case ApprovalRequested():
            return entry.approval
        case _:
            return getattr(entry, "task_id", "")
