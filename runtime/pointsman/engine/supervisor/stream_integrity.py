"""Whether the streams still hold what they once acknowledged, as far as one of them can testify for the other.

A commit is stored before the handoffs that follow from it, and a result before the commit that accepts it. So the
newest handoff vouches for its commit, and the newest commit for its result. Where one is missing, its stream has lost
its end: a disk that failed, a power cut, a store put back from an older copy. The broker itself says nothing then: it
moves consumers that are ahead of their stream back in silence.

A copy of all streams from one earlier moment is consistent. Only a process that remembers a later one can tell, which
is what a running supervisor looks for; see docs/durability.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta

from pointsman.engine.log.reader import read_commit
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
"""How old a commit may be to vouch for its result, of the time for which the work stream keeps that: there is time left
for a look to come late."""
_DAY_S = 86_400.0
_LEADER_CHANGE_PAUSE_S = 2.0
"""Seconds before what looks lost is looked for again: a node that leads no more may not know it yet."""
_CAUSE_PATTERN = re.compile(r"(.+)-(\d+)")


async def stream_bounds(bus: Bus) -> Sequence[str]:
    """The bounds for which what was acknowledged is dropped, or what is to be is refused, as sentences."""
    kinds: Sequence[StreamKind] = ("work", "handoffs", "log") if bus.handoffs_unsynced else ("work", "log")
    return [bound for kind in kinds if (bound := await bus.capacity_problem(kind))]


async def find_lost_log(bus: Bus, subjects: Subjects, clock: Clock, retention_days: float) -> Sequence[str]:
    """What the log must have held and does not, as sentences. `retention_days` is how long it keeps anything."""
    newest = await bus.last("handoffs", f"{subjects.namespace}.handoff.>")
    if newest is None or clock.now() - newest.at > timedelta(days=retention_days):
        return ()
    try:
        envelope, _ = decode(newest.headers, newest.body)
        ours = envelope is not None and envelope.source.startswith(f"/{subjects.namespace}/team/")
        cause = _CAUSE_PATTERN.fullmatch((envelope.causation_id or "") if envelope and ours else "")
        if cause is None:  # somebody else's
            return ()
        workflow, number = cause[1], int(cause[2])
        stored = await bus.last("log", subjects.workflow_log(workflow))
        held = read_commit(stored).number if stored else 0
    except ContractError:  # what cannot be read testifies to nothing
        return ()
    if held >= number:
        return ()
    return (
        f"{newest.subject} was sent after commit {number} of {workflow}, and {subjects.log_stream} holds "
        f"{held or 'none'} of its commits: the stream has lost its end",
    )


async def running_workflows(bus: Bus, subjects: Subjects, team: str) -> Sequence[str]:
    """The workflows of the team that have a log and no outcome, imported ones among them. No message is read: a team
    may have had a hundred thousand."""
    logs = await bus.subjects("log", subjects.team_logs(team))
    ended = {subject.rpartition(".")[2] for subject in await bus.subjects("log", subjects.team_outcomes(team))}
    return tuple(workflow for log in logs if (workflow := log.rpartition(".")[2]) not in ended)


class LogWatch:
    """Remembers the newest commit of a process, and looks whether the log still holds it.

    A process must not go on from memory when what it wrote is gone.
    """

    def __init__(self, bus: Bus, subjects: Subjects, clock: Clock, settings: Settings, team: str) -> None:
        self._bus = bus
        self._subjects = subjects
        self._clock = clock
        self._pause = settings.heartbeat
        self._remembered = min(_DAY_S, settings.retention_days * _DAY_S / 2)  # well before the log itself lets it go
        self._team = team
        self._sequence, self._committed_at = 0, 0.0

    def record_commit(self, sequence: int) -> None:
        """A commit of this process was stored at `sequence`."""
        if sequence > self._sequence:
            self._sequence, self._committed_at = sequence, self._clock.monotonic()

    async def run(self) -> None:
        """Look at every heartbeat, until cancelled. Raises `StreamLostError` when the log has lost what was written."""
        while True:
            await self._clock.sleep(self._pause)
            sequence = self._sequence
            recent = self._clock.monotonic() - self._committed_at < self._remembered
            if sequence == 0 or not recent or await self._still_holds(sequence):
                continue
            await self._clock.sleep(_LEADER_CHANGE_PAUSE_S)
            if not await self._still_holds(sequence):
                raise StreamLostError(
                    f"message {sequence} of {self._subjects.log_stream} was stored by this supervisor and the stream "
                    "ends before it: it was restored from an older copy, recreated, or its disk has lost data; this "
                    "process ends so that the next one begins from what is there; docs/durability.md says more"
                )

    async def _still_holds(self, sequence: int) -> bool:
        try:
            newest = await self._bus.last("log", self._subjects.team_logs(self._team))
        except BusUnavailableError:
            return True  # not known to be gone
        return newest is not None and newest.sequence >= sequence


async def find_lost_work(bus: Bus, subjects: Subjects, team: str, clock: Clock, retention_days: float) -> Sequence[str]:
    """What was to be done and is gone from the work stream, as sentences."""
    stored = await bus.last("log", subjects.team_logs(team))
    if stored is None or clock.now() - stored.at > _WITNESS_SHARE * retention_of("work", retention_days):
        return ()
    workflow = stored.subject.rpartition(".")[2]
    try:
        entries = read_commit(stored).entries
    except ContractError:
        return ()
    for entry in entries:
        if isinstance(entry, TaskSucceeded | AttemptFailed | ReviewRequested) and entry.result is not None:
            subject = subjects.result(team, workflow, entry.result.agent, entry.task_id, entry.attempt)
            if await bus.last("work", subject) is None:
                return (f"{workflow} has accepted {subject}, which {subjects.work_stream} does not hold: "
                        "the stream has lost its end",)  # fmt: skip
    return ()
