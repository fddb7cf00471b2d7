"""Detect streams that lost acknowledged messages, by comparing the streams with each other.

A commit is stored before its handoffs. A result is stored before the commit that accepts the result. So the newest
handoff proves that its commit was stored, and the newest commit proves that its result and the handoff of the result
were stored. If such a message is missing, its stream has lost its end: a disk failed, the power failed, or the store
was restored from an older copy. The broker does not report the loss, and moves a consumer that is ahead of its stream
back to the end of the stream.

If all streams were restored from one older copy, the streams agree with each other. Only a process that remembers a
newer message can detect this loss, so a running supervisor remembers its newest commit. See docs/durability.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta

from pointsman.engine.log.reader import is_imported, read_commit
from pointsman.engine.supervisor.retention import retention_of
from pointsman.errors import BusUnavailableError, ContractError, StreamLostError
from pointsman.ports.bus import Bus, StreamKind
from pointsman.ports.clock import Clock
from pointsman.settings import Settings
from pointsman_schemas.envelope import decode
from pointsman_schemas.log import AttemptFailed, ReviewRequested, TaskSucceeded
from pointsman_schemas.subjects import Subjects

__all__ = ["LogWatch", "find_lost_log", "find_lost_work", "running_workflows", "stream_bounds"]

_WITNESS_SHARE = 6 / 7
"""Maximum age of a commit whose result must still be stored, as a share of the retention of results. Retention may have
removed the result of an older commit. The share is less than 1, to leave a margin."""
_DAY_S = 86_400.0
_LEADER_CHANGE_PAUSE_S = 2.0
"""Seconds before a second check of a missing message. A former leader of the stream, which lacks the newest messages,
may have answered the first check."""
_CAUSE_PATTERN = re.compile(r"(.+)-(\d+)")


async def stream_bounds(bus: Bus) -> Sequence[str]:
    """Return the limits because of which streams drop acknowledged messages or refuse new messages.

    Args:
        bus: The bus.

    Returns:
        One sentence for each limit.
    """
    kinds: list[StreamKind] = ["requests", "controls", "results", "work", "log"]
    if bus.handoffs_unsynced:
        kinds.append("handoffs")
    return [bound for kind in kinds if (bound := await bus.capacity_problem(kind))]


async def find_lost_log(bus: Bus, subjects: Subjects, clock: Clock, retention_days: float) -> Sequence[str]:
    """Find commits that were stored and that the log has lost.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        clock: The clock.
        retention_days: The retention of logs, in days.

    Returns:
        One sentence for each loss.
    """
    newest = await bus.last("handoffs", f"{subjects.namespace}.handoff.>")
    if newest is None or clock.now() - newest.at > timedelta(days=retention_days):
        return ()
    try:
        envelope, _ = decode(newest.headers, newest.body)
        ours = envelope is not None and envelope.source.startswith(f"/{subjects.namespace}/team/")
        cause = _CAUSE_PATTERN.fullmatch((envelope.causation_id or "") if envelope and ours else "")
        if cause is None:  # another program sent the handoff
            return ()
        workflow, number = cause[1], int(cause[2])
        stored = await bus.last("log", subjects.workflow_log(workflow))
        held = read_commit(stored).number if stored else 0
    except ContractError:  # an unreadable message proves nothing
        return ()
    if held >= number:
        return ()
    return (
        f"{newest.subject} was sent after commit {number} of {workflow}, but {subjects.log_stream} has "
        f"{held or 'none'} of its commits; the end of the stream is lost",
    )


async def running_workflows(bus: Bus, subjects: Subjects, team: str) -> Sequence[str]:
    """Find the workflows of a team that have a log and no outcome, including imported workflows.

    The search reads only subjects and no messages, because a team may have a hundred thousand workflows.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        team: The team.

    Returns:
        The ids.
    """
    logs = await bus.subjects("log", subjects.team_logs(team))
    ended = {subject.rpartition(".")[2] for subject in await bus.subjects("log", subjects.team_outcomes(team))}
    return tuple(workflow for log in logs if (workflow := log.rpartition(".")[2]) not in ended)


class LogWatch:
    """Checks that the log still contains the newest commit of this process.

    A process whose commits are lost must not continue with its state in memory.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        clock: The clock.
        settings: The settings.
        team: The team.
    """

    def __init__(self, bus: Bus, subjects: Subjects, clock: Clock, settings: Settings, team: str) -> None:
        self._bus = bus
        self._subjects = subjects
        self._clock = clock
        self._pause = settings.heartbeat
        # Shorter than the retention of the log, because a commit that retention removes is not lost.
        self._remembered = min(_DAY_S, settings.retention_days * _DAY_S / 2)
        self._team = team
        self._sequence, self._committed_at = 0, 0.0

    def record_commit(self, sequence: int) -> None:
        """Record that a commit of this process was stored at `sequence`."""
        if sequence > self._sequence:
            self._sequence, self._committed_at = sequence, self._clock.monotonic()

    async def run(self) -> None:
        """Check at every heartbeat, until cancelled.

        Raises:
            StreamLostError: the log has lost the newest commit of this process.
        """
        while True:
            await self._clock.sleep(self._pause)
            sequence = self._sequence
            recent = self._clock.monotonic() - self._committed_at < self._remembered
            if sequence == 0 or not recent or await self._still_holds(sequence):
                continue
            await self._clock.sleep(_LEADER_CHANGE_PAUSE_S)
            if not await self._still_holds(sequence):
                raise StreamLostError(
                    f"this supervisor stored message {sequence} of {self._subjects.log_stream}, but the stream ends "
                    "before this message: the stream was restored from an older copy, was recreated, or its disk has "
                    "lost data; this process ends, and the next process starts from the present log; see "
                    "docs/durability.md"
                )

    async def _still_holds(self, sequence: int) -> bool:
        try:
            newest = await self._bus.last("log", self._subjects.team_logs(self._team))
        except BusUnavailableError:
            return True  # without an answer, the commit does not count as lost
        return newest is not None and newest.sequence >= sequence


async def find_lost_work(bus: Bus, subjects: Subjects, team: str, clock: Clock, retention_days: float) -> Sequence[str]:
    """Find results and handoffs that were stored and that their streams have lost.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        team: The team.
        clock: The clock.
        retention_days: The retention of logs, in days.

    Returns:
        One sentence for each loss.
    """
    stored = await bus.last("log", subjects.team_logs(team))
    if stored is None or is_imported(stored):  # an import does not store the results of its commits
        return ()
    if clock.now() - stored.at > _WITNESS_SHARE * retention_of("results", retention_days):
        return ()
    workflow = stored.subject.rpartition(".")[2]
    try:
        entries = read_commit(stored).entries
    except ContractError:
        return ()
    for entry in entries:
        if isinstance(entry, TaskSucceeded | AttemptFailed | ReviewRequested) and entry.result is not None:
            agent = entry.result.agent
            result = subjects.attempt_results(team, agent, workflow, entry.task_id, entry.attempt)
            if await bus.last("results", result) is None:
                return (_loss(workflow, result, subjects.result_stream),)
            handoff = subjects.handoff(agent, team, workflow, entry.task_id, entry.attempt)
            if not bus.handoffs_unsynced and await bus.last("handoffs", handoff) is None:
                return (_loss(workflow, handoff, subjects.work_stream),)
    return ()


def _loss(workflow: str, subject: str, stream: str) -> str:
    return f"{workflow} has accepted a result, but {stream} has lost {subject}; the end of {stream} is lost"
