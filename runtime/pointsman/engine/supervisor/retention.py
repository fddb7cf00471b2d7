"""Retention: delete messages of ended workflows after their retention period, but never unsettled messages.

The streams of requests, controls, results, work and logs have no maximum age. Otherwise the broker would delete a
request that no supervisor has admitted, or the log of a workflow that waits for a person. Supervisors delete expired
messages instead. Messages of teams without a supervisor stay.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from pointsman.core.schedules.state import is_live, open_runs
from pointsman.core.threads.turns import open_turns
from pointsman.engine.log.reader import (
    as_async_generator,
    is_imported,
    is_outcome,
    read_commit,
    read_workflow_started,
    round_of_outcome,
)
from pointsman.engine.log.records import SCHEDULE, THREAD, RecordKind
from pointsman.engine.log.requests import workflow_of_request
from pointsman.engine.process.consumers import DurableConsumer, input_consumers, request_consumer
from pointsman.engine.supervisor.object_retention import remove_objects
from pointsman.errors import ContractError, NotFoundError, PointsmanError
from pointsman.ports.bus import Bus, StoredMessage, StreamKind
from pointsman.ports.clock import Clock
from pointsman.telemetry import get_logger
from pointsman_schemas.ids import child_id_for, is_token
from pointsman_schemas.schedules import Schedule
from pointsman_schemas.subjects import HandoffAddress, Subjects
from pointsman_schemas.threads import Thread

__all__ = ["RetentionJob", "oldest_message", "retention_of"]

_WORK_RETENTION = timedelta(days=7)
"""Retention of processed requests, controls, results and work. While a message is stored, a second copy of the message
is refused. A sender may send the second copy only after a long weekend, so this time is longer than a weekend."""
_BODY_RETENTION = timedelta(days=3)
"""Maximum time by which a body may be older than a message that refers to the body. A body may be one day old when its
message is sent. A schedule may publish the message one day later. The third day is a margin."""
_INTERVAL_S = 3600.0
_BATCH_SIZE = 500
"""Number of messages that one call of the broker deletes. The number is small, because the stream stores no new message
during the deletion."""

_WORKING_STREAMS: Sequence[StreamKind] = ("requests", "controls", "results", "work", "handoffs")
_DISTANT_PAST, _NEVER = (moment.replace(tzinfo=UTC) for moment in (datetime.min, datetime.max))

_log = get_logger(__name__)

RecordT = TypeVar("RecordT", Thread, Schedule)


def retention_of(stream: StreamKind, retention_days: float) -> timedelta:
    """Return the retention period of a stream. A log stays at least as long as the messages of its workflow.

    Args:
        stream: The stream.
        retention_days: The configured retention, in days.
    """
    kept = timedelta(days=retention_days)
    return min(_WORK_RETENTION, kept) if stream in _WORKING_STREAMS else kept


async def oldest_message(bus: Bus, stream: StreamKind) -> StoredMessage | None:
    """Read the first message of a stream.

    Args:
        bus: The bus.
        stream: The stream.

    Returns:
        The message; None if the stream is empty.
    """
    async with aclosing(as_async_generator(bus.read(stream, ">"))) as messages:
        return await anext(messages, None)


class RetentionJob:
    """Deletes expired messages of a team, and of all teams that received a request. Several jobs may run in parallel.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        clock: The clock.
        team: The team.
        retention_days: The retention of logs, in days.
        thread_ttl: Seconds from the last change of a thread to its deletion; None to keep a thread as long as a log.
    """

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        clock: Clock,
        team: str,
        retention_days: float,
        thread_ttl: float | None = None,
    ) -> None:
        self._bus = bus
        self._subjects = subjects
        self._clock = clock
        self._team = team
        self._retention = retention_days
        self._thread_ttl = thread_ttl
        self._began = clock.now()
        self._ends: dict[str, datetime] = {}
        self._teams: dict[str, bool] = {}

    async def run(self, first: Callable[[], bool]) -> None:
        """Apply retention after each hour if `first` returns True. Never returns.

        Args:
            first: Returns True if this supervisor applies retention, because one supervisor of a team is enough.
        """
        while True:
            await self._clock.sleep(_INTERVAL_S)
            if not first():
                continue
            try:
                await self.apply()
            except PointsmanError as error:
                hint = "expired messages stay for another hour; give supervisors the right to purge streams"
                _log.warning("retention_failed", error=str(error), hint=hint)

    async def apply(self) -> None:
        """Delete expired messages in all streams. Bodies are deleted after the messages that refer to the bodies.

        Raises:
            BusUnavailableError: the broker did not answer. The next run deletes the remaining messages.
            PeerError: the broker does not allow this process to delete messages.
        """
        # Read the time before the queues. If a queue is empty, only the age of a message decides about its deletion. So
        # a message that arrives after the queue was read must be newer than this time.
        self._began, self._ends, self._teams = self._clock.now(), {}, {}
        ns, subjects = self._subjects.namespace, self._subjects
        asked = await self._bus.subjects("requests", subjects.requests)
        teams = sorted({self._team, *(subject.split(".")[2] for subject in asked)})
        for team in teams:
            requests = f"{ns}.request.{team}.*"
            untaken = await self._first_unsettled(request_consumer(subjects, team)) if is_token(team) else sys.maxsize
            await self._trim_subject("requests", requests, untaken=untaken)
            await self._keep_unsettled_requests(requests, untaken)
        # Results are deleted after handoffs, because a worker that receives a handoff again searches for its result.
        await self._trim_subject("handoffs", f"{ns}.schedule.*.*.handoff.*")
        await self._trim_subject("handoffs", f"{ns}.handoff.>")
        await self._trim_subject("work", f"{ns}.schedule.*.*.timer.*")
        await self._trim_subject("results", f"{ns}.step.>")
        for team in filter(is_token, teams):
            for inputs in input_consumers(subjects, team):
                untaken = await self._first_unsettled(inputs)
                await self._trim_subject(inputs.stream, inputs.subject, untaken=untaken)
        kept = timedelta(days=self._retention)  # the period of the log, because these messages are read with the log
        await self._trim_subject("results", f"{ns}.event.>", kept=kept)
        await self._trim_subject("controls", f"{ns}.audit.>", kept=kept)
        await self._remove_threads()
        await self._trim_subject("log", ">")
        await self._remove_unreferenced_bodies()

    async def _first_unsettled(self, consumer: DurableConsumer) -> int:
        """Return the sequence of a consumer's first unsettled message.

        Returns:
            The sequence; `sys.maxsize` if all messages are settled, and 0 if the consumer does not exist.
        """
        depth = await self._bus.depth(consumer.name, consumer.stream)
        if depth is None:
            return 0
        return depth.settled_through + 1 if depth.pending + depth.in_flight else sys.maxsize

    async def _keep_unsettled_requests(self, requests: str, untaken: int) -> None:
        """Keep all messages of workflows whose requests are unsettled.

        Without these messages, a redelivered request would start the work again.

        A request of an ended workflow is unsettled if its supervisor crashed at the end of the workflow, or if a caller
        sent the request twice.
        """
        if untaken < sys.maxsize:
            async for stored in self._bus.read("requests", requests, after=max(0, untaken - 1)):
                self._ends[workflow_of_request(stored)] = _NEVER

    async def _trim_subject(
        self, stream: StreamKind, subject: str, *, untaken: int = sys.maxsize, kept: timedelta | None = None
    ) -> None:
        """Delete messages of `subject` up to the first message that must stay.

        A message stays in three cases: it has not expired, its sequence is `untaken` or greater because a consumer has
        not settled the message, or its workflow runs or ended less than the retention period ago.
        """
        until = self._began - (kept or retention_of(stream, self._retention))
        over = last = 0
        async with aclosing(as_async_generator(self._bus.read(stream, subject))) as messages:
            async for stored in messages:
                if stored.at >= until:
                    break
                since = _NEVER if stored.sequence >= untaken else await self._ended_at(stored.subject)
                if since == _NEVER:
                    hint = "the message stays until its workflow ends; if an agent is missing, see `pointsman doctor`"
                    _log.info("retention_deferred", subject=stored.subject, since=str(stored.at), hint=hint)
                if since >= until:
                    break
                over, last = over + 1, stored.sequence
                if over % _BATCH_SIZE == 0:
                    await self._bus.trim(stream, subject, last)
        if over % _BATCH_SIZE:
            await self._bus.trim(stream, subject, last)
        if over:
            _log.info("retention_applied", stream=self._bus.stream_name(stream), subject=subject, messages=over)

    async def _ended_at(self, subject: str) -> datetime:
        """Return the end of a message's workflow: `_NEVER` for a log without an outcome, `_DISTANT_PAST` without a log.

        Each run reads the end of a workflow once, because many messages belong to one workflow.
        """
        match self._subjects.kind_of(subject):
            case "thread":
                return await self._thread_changed_at(subject)
            case "cron":
                return await self._schedule_changed_at(subject)
            case _:
                pass
        workflow = self._subjects.workflow_of(subject)
        if workflow.startswith("sc_") and self._subjects.kind_of(subject) == "schedule":
            return _NEVER  # the timer of a schedule stays until it fires, which is within a day
        if not workflow:  # another program published the message
            return _DISTANT_PAST
        since = await self._cached_end(workflow)
        if self._subjects.kind_of(subject) != "handoff":
            return since
        with suppress(ContractError):  # another program published the message
            asked = self._subjects.parse(subject, HandoffAddress)
            if not await self._has_logs(asked.agent):
                return since
            child = child_id_for(asked.agent, asked.workflow, asked.task, asked.attempt)
            return max(since, await self._cached_end(child))
        return since

    async def _thread_changed_at(self, subject: str) -> datetime:
        """Return the time of a thread's last change; `_NEVER` while a turn is open, which needs the thread's record."""
        return await self._changed_at(THREAD, subject, lambda thread: bool(open_turns(thread)))

    async def _schedule_changed_at(self, subject: str) -> datetime:
        """Return the time of a schedule's last change; `_NEVER` if it may still fire, or if one of its runs is open."""
        return await self._changed_at(SCHEDULE, subject, lambda each: is_live(each) or bool(open_runs(each)))

    async def _changed_at(
        self, kind: RecordKind[RecordT, Any], subject: str, is_open: Callable[[RecordT], bool]
    ) -> datetime:
        try:
            state = (await kind.read(self._bus, subject)).state
        except ContractError:  # another program published the message
            return _DISTANT_PAST
        if state is None:
            return _DISTANT_PAST
        return _NEVER if is_open(state) else state.changed_at

    async def _cached_end(self, workflow: str) -> datetime:
        if workflow not in self._ends:
            self._ends[workflow] = await self._read_end(workflow)
        return self._ends[workflow]

    async def _has_logs(self, agent: str) -> bool:
        """Return True if `agent` is a team with logs. A child workflow of such a team may outlive its parent."""
        if agent not in self._teams:
            self._teams[agent] = await self._bus.last("log", self._subjects.team_logs(agent)) is not None
        return self._teams[agent]

    async def _read_end(self, workflow: str) -> datetime:
        outcome = await self._bus.last("log", self._subjects.workflow_outcome(workflow))
        if outcome is not None and is_outcome(outcome) and not await self._was_resumed(workflow, outcome):
            return outcome.at
        newest = await self._bus.last("log", self._subjects.workflow_log(workflow))
        if newest is None or is_imported(newest):
            return _DISTANT_PAST
        try:
            await read_workflow_started(self._bus, self._subjects, newest.subject)
        except NotFoundError:  # the log has only a late commit, which was stored after the log was deleted
            return _DISTANT_PAST
        except ContractError:  # the log cannot be read; the next supervisor that reads it closes the workflow
            return _NEVER
        return _NEVER

    async def _was_resumed(self, workflow: str, outcome: StoredMessage) -> bool:
        """Return True if the log continues after `outcome`. A supervisor will then soon withdraw this outcome."""
        newest = await self._bus.last("log", self._subjects.workflow_log(workflow))
        try:
            return newest is not None and read_commit(newest).round > round_of_outcome(outcome)
        except ContractError:  # a supervisor closed the workflow, because it could not read the log
            return False

    async def _remove_threads(self) -> None:
        """Delete the records of threads after their time to live. A thread with a running turn stays."""
        if self._thread_ttl is None:
            return
        until = self._began - timedelta(seconds=self._thread_ttl)
        for subject in await self._bus.subjects("log", self._subjects.threads(self._team)):
            stored = await self._bus.last("log", subject)
            if stored is None or stored.at >= until:
                continue
            with suppress(ContractError):  # the retention of logs removes a message of another program
                thread = (await THREAD.read(self._bus, subject)).state
                if thread is not None and not open_turns(thread):
                    await self._bus.trim("log", subject, stored.sequence)
                    _log.info("thread_expired", thread=thread.thread, caller=thread.caller, team=thread.team)

    async def _remove_unreferenced_bodies(self) -> None:
        """Delete bodies and files that are so much older than every stored message that no message refers to them."""
        referring: Sequence[StreamKind] = (*_WORKING_STREAMS, "log", "dead")
        oldest = [first.at for stream in referring if (first := await oldest_message(self._bus, stream))]
        until = min((self._began, *oldest)) - _BODY_RETENTION
        await remove_objects(self._bus, self._subjects, until)
