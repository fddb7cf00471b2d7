"""What is over is removed after its time. What somebody is still owed is not, however long that takes.

The streams of work and of logs have no age at which the broker drops anything: it cannot know a request that nobody has
taken yet, or the log of a workflow that waits for a person. Supervisors know, and remove the rest. What nobody
supervises stays.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta

from pointsman.engine.log.reader import as_async_generator, is_imported, is_outcome, read_workflow_started
from pointsman.engine.log.requests import workflow_of_request
from pointsman.errors import ContractError, NotFoundError, PointsmanError
from pointsman.ports.bus import Bus, StoredMessage, StreamKind
from pointsman.ports.clock import Clock
from pointsman.telemetry import get_logger
from pointsman_schemas.ids import child_id_for, is_token
from pointsman_schemas.subjects import Subjects

__all__ = ["RetentionJob", "oldest_message", "retention_of"]

_WORK_RETENTION = timedelta(days=7)
"""How long what was done is kept in the work stream, to refuse a second copy: a weekend and its Monday fit."""
_BODY_RETENTION = timedelta(days=3)
"""How much older than a message the body may be that it refers to: one is written anew after a day, what refers to it
may be scheduled for a day later, and a day to spare."""
_INTERVAL_S = 3600.0
_BATCH_SIZE = 500
"""Messages that are removed together. The stream takes no other while it removes them."""

_DISTANT_PAST, _NEVER = (moment.replace(tzinfo=UTC) for moment in (datetime.min, datetime.max))

_WORKFLOW_TOKEN_INDEX = {"handoff": 1, "inbox": 1, "log": 1, "outcome": 1, "event": 0, "schedule": 0, "step": 0}
"""Which token behind the kind of a subject is the workflow."""

_log = get_logger(__name__)


def retention_of(stream: StreamKind, retention_days: float) -> timedelta:
    """How long a stream keeps what is over. The log that tells of it is there for no shorter than what was done."""
    kept = timedelta(days=retention_days)
    return min(_WORK_RETENTION, kept) if stream in ("work", "handoffs") else kept


async def oldest_message(bus: Bus, stream: StreamKind) -> StoredMessage | None:
    """The first message that a stream holds."""
    async with aclosing(as_async_generator(bus.read(stream, ">"))) as messages:
        return await anext(messages, None)


class RetentionJob:
    """Removes from the streams of a namespace what is over, of `team` and all that were sent a request. Any number of
    them may be at it at once."""

    def __init__(self, bus: Bus, subjects: Subjects, clock: Clock, team: str, retention_days: float) -> None:
        self._bus = bus
        self._subjects = subjects
        self._clock = clock
        self._team = team
        self._retention = retention_days
        self._began = clock.now()
        self._ends: dict[str, datetime] = {}
        self._teams: dict[str, bool] = {}

    async def run(self, first: Callable[[], bool]) -> None:
        """Trim every hour while this is the `first` of those who could. Never returns."""
        while True:
            await self._clock.sleep(_INTERVAL_S)
            if not first():
                continue
            try:
                await self.apply()
            except PointsmanError as error:
                hint = "nothing is lost, what is over stays another hour; see that the broker lets supervisors purge"
                _log.warning("retention_failed", error=str(error), hint=hint)

    async def apply(self) -> None:
        """Remove what is over in all streams: bodies last, for what refers to them goes before they do.

        Raises:
            BusUnavailableError: the broker did not answer. What was not removed is found again.
            PeerError: it does not let this process remove anything.
        """
        # What comes from now on is not old, and may be taken by nobody though nothing was left to take a moment before.
        self._began, self._ends, self._teams = self._clock.now(), {}, {}
        ns = self._subjects.namespace
        asked = await self._bus.subjects("work", self._subjects.requests)
        teams = sorted({self._team, *(subject.rpartition(".")[2] for subject in asked)})
        for team in teams:
            requests, untaken = f"{ns}.request.{team}", await self._first_unsettled("request", team)
            await self._trim_subject("work", requests, untaken=untaken)
            await self._keep_unsettled_requests(requests, untaken)
        # Results go after the handoffs they answer, and the steps of those: who is given one again looks for them.
        await self._trim_subject("handoffs", f"{ns}.schedule.*.try.*")
        await self._trim_subject("handoffs", f"{ns}.handoff.>")
        await self._trim_subject("work", f"{ns}.schedule.*.*")
        await self._trim_subject("work", f"{ns}.step.>")
        for team in teams:
            await self._trim_subject("work", f"{ns}.inbox.{team}.>", untaken=await self._first_unsettled("inbox", team))
        await self._trim_subject("log", ">")
        await self._remove_unreferenced_bodies()

    async def _first_unsettled(self, kind: str, team: str) -> int:
        """The first sequence that the team's consumer may not have settled; 0 where it has never been there."""
        if not is_token(team):  # no team may have such a name, and take it
            return sys.maxsize
        depth = await self._bus.depth(f"{kind}-{team}", "work")
        if depth is None:
            return 0
        return depth.settled_through + 1 if depth.pending + depth.in_flight else sys.maxsize

    async def _keep_unsettled_requests(self, requests: str, untaken: int) -> None:
        """A request that was not settled comes again, and would be done again if nothing told that it was: its
        supervisor may have died as the workflow had ended, or somebody asks for the same twice."""
        if untaken < sys.maxsize:
            async for stored in self._bus.read("work", requests, after=max(0, untaken - 1)):
                self._ends[workflow_of_request(stored)] = _NEVER

    async def _trim_subject(self, stream: StreamKind, subject: str, *, untaken: int = sys.maxsize) -> None:
        """Remove what `subject` holds, up to the first that is not old enough, or is owed to somebody: to who has not
        settled what is `untaken` from that sequence on, or to a workflow that runs or has ended since."""
        until = self._began - retention_of(stream, self._retention)
        over = last = 0
        async with aclosing(as_async_generator(self._bus.read(stream, subject))) as messages:
            async for stored in messages:
                if stored.at >= until:
                    break
                since = _NEVER if stored.sequence >= untaken else await self._ended_at(stored.subject)
                if since == _NEVER:
                    hint = "it stays until that has ended; `pointsman doctor` says who is missing"
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
        """When the workflow ended that it is of: never, as long as it has a log and no outcome; long ago, where nothing
        tells of one. Asked once in each turn: many are of one."""
        kind, *tokens = subject.split(".")[1:]
        workflow = "".join(tokens[_WORKFLOW_TOKEN_INDEX.get(kind, 9) :][:1])
        if not is_token(workflow):  # or somebody else put it there
            return _DISTANT_PAST
        since = await self._cached_end(workflow)
        if kind != "handoff" or not await self._has_logs(tokens[0]):
            return since
        with suppress(ContractError):  # or somebody else put it there
            asked = self._subjects.parse_handoff(subject)
            child = child_id_for(asked.agent, asked.workflow, asked.task, asked.attempt)
            return max(since, await self._cached_end(child))
        return since

    async def _cached_end(self, workflow: str) -> datetime:
        if workflow not in self._ends:
            self._ends[workflow] = await self._read_end(workflow)
        return self._ends[workflow]

    async def _has_logs(self, agent: str) -> bool:
        """Whether it is a team, and has begun what it was handed: that goes on though nobody waits for it any more."""
        if agent not in self._teams:
            self._teams[agent] = await self._bus.last("log", self._subjects.team_logs(agent)) is not None
        return self._teams[agent]

    async def _read_end(self, workflow: str) -> datetime:
        outcome = await self._bus.last("log", self._subjects.workflow_outcome(workflow))
        if outcome is not None and is_outcome(outcome):
            return outcome.at
        newest = await self._bus.last("log", self._subjects.workflow_log(workflow))
        if newest is None or is_imported(newest):
            return _DISTANT_PAST
        try:
            await read_workflow_started(self._bus, self._subjects, newest.subject)
        except NotFoundError:  # what came late, after an outcome that has been removed
            return _DISTANT_PAST
        except ContractError:  # it is closed when somebody has to read it
            return _NEVER
        return _NEVER

    async def _remove_unreferenced_bodies(self) -> None:
        """Remove the bodies that nothing refers to any more: those older than every message there is."""
        referring: Sequence[StreamKind] = ("work", "handoffs", "log", "dead")
        oldest = [first.at for stream in referring if (first := await oldest_message(self._bus, stream))]
        until = min((self._began, *oldest)) - _BODY_RETENTION
        last = 0
        async with aclosing(as_async_generator(self._bus.read("artifacts", self._subjects.objects))) as descriptions:
            async for stored in descriptions:
                if stored.at >= until:
                    break
                last = stored.sequence
        if last:
            await self._bus.trim("artifacts", ">", last)
