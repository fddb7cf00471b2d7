"""A workflow's log as its supervisor uses it: loaded once, then extended by compare-and-set commits.

Whoever commits knows the sequence at which the log ended; the broker refuses the commit if somebody else wrote first.
That is the whole of the coordination between supervisors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pydantic import ValidationError

from pointsman.core.evolve import apply_commit
from pointsman.core.model.state import State, copy_with, from_snapshot, to_snapshot
from pointsman.core.replay.decision_context import AgentCards
from pointsman.engine.log.reader import ImportedLogError, is_imported, read_commit
from pointsman.errors import ContractError, InvariantError, OversizeEventError, PeerError, describe_error
from pointsman.ports.bus import Bus, StoredMessage
from pointsman.ports.clock import Clock
from pointsman.telemetry import parse_traceparent
from pointsman.telemetry.trace_context import traceparent_of
from pointsman_schemas.envelope import Envelope, decode, encode
from pointsman_schemas.log import Commit, Entry, RecordedContext
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import Subjects

__all__ = ["CorruptLogError", "LogHead", "TruncatedLogError", "WorkflowLog"]

SNAPSHOT_EVERY = 64
"""Commits between two snapshots: loading then reads at most that many, some tens of milliseconds."""
_MAX_ENTRIES_PER_COMMIT = 128
"""Tasks from which on there are twice as many commits between two, from twice as many tasks on four times as many, and
so on: a snapshot holds all tasks, and takes as much as the commits that added to them."""


class CorruptLogError(PeerError):
    """A log holds something that cannot be read or cannot follow. Its workflow is closed; the others go on."""

    kind = "corrupt_log"


class TruncatedLogError(CorruptLogError):
    """The beginning of a log is gone. Supervisors remove it long after the end; a bound of the stream's own, at any
    time."""

    kind = "truncated_log"


@dataclass(frozen=True, slots=True)
class LogHead:
    """Where a workflow's log stands: the state it folds to, its last sequence (0: no log yet), its newest snapshot.

    `foreign_messages` says that another process has written to it, and may not have sent all that its commits owe.
    `agents` are those that its commits last named as alive, None where that was not read."""

    state: State | None = None
    sequence: int = 0
    snapshot_sequence: int | None = None
    foreign_messages: bool = False
    agents: AgentCards | None = None


class WorkflowLog:
    """Loads and extends the logs of one team's workflows."""

    def __init__(self, bus: Bus, subjects: Subjects, clock: Clock, team: str) -> None:
        self._bus = bus
        self._subjects = subjects
        self._clock = clock
        self._team = team
        self._source = subjects.source("team", team)

    async def load(self, workflow: str, known: LogHead | None = None) -> LogHead:
        """The head of the log, read from the newest snapshot on, or from `known` on.

        Raises:
            CorruptLogError: a message of it cannot be read or does not follow the one before.
            ImportedLogError: it is not this namespace's own.
            BusUnavailableError: the broker did not answer.
        """
        subject = self._subjects.log(self._team, workflow)
        head = known or LogHead()
        if known is None:
            last = await self._bus.last("log", subject)
            if last is None:
                return head
            commit = self._read_stored(last)
            if commit.snapshot is not None:
                return self._apply_commit(LogHead(), last, commit)
            if commit.number == 1:
                return self._apply_commit(LogHead(), last, commit)
            after = (commit.snapshot_sequence or 1) - 1
        else:
            after = known.sequence
        async for stored in self._bus.read("log", subject, after=after):
            head = self._apply_commit(head, stored, self._read_stored(stored))
        return head

    async def origin(self, workflow: str) -> tuple[str | None, str]:
        """The correlation id and the trace id that the log's newest message names, whether or not it can be folded."""
        last = await self._bus.last("log", self._subjects.log(self._team, workflow))
        try:
            envelope = decode(last.headers, b"{}")[0] if last else None
        except ContractError:
            envelope = None
        parent = parse_traceparent(envelope.traceparent) if envelope else None
        return envelope.correlation_id if envelope else None, parent.trace_id if parent else ""

    async def commit(
        self,
        head: LogHead,
        workflow: str,
        entries: Sequence[Entry],
        state: State,
        cause: str,
        grounds: RecordedContext | None = None,
        meanwhile: Callable[[State], object] = lambda _: None,
    ) -> LogHead:
        """Append `entries`, which lead from `head` to `state`, as one commit caused by the event `cause` and decided
        upon `decision_context`. What can be done for the state it leads to while the broker stores it, `meanwhile`
        does.

        Raises:
            ConflictError: somebody else has written since `head`. Nothing was stored: load, decide again.
            PublishOutcomeUnknownError: it may have been stored. Load, decide again.
            OversizeEventError: the entries do not fit into one message.
        """
        number = state.commits + 1
        committed = copy_with(state, commits=number)
        plain = Commit(
            number=number,
            entries=tuple(entries),
            snapshot_sequence=head.snapshot_sequence,
            pending_approvals=tuple(state.approvals),
            decision_context=grounds,
        )
        due = number % (SNAPSHOT_EVERY << (len(committed.tasks) // _MAX_ENTRIES_PER_COMMIT).bit_length()) == 0
        commit = plain.model_copy(update={"snapshot": to_snapshot(committed)}) if due else plain
        headers = encode(
            Envelope(
                id=f"{workflow}-{number}",
                type=Commit.event_type,
                source=self._source,
                time=self._clock.now(),
                subject=workflow,
                correlation_id=committed.correlation_id,
                causation_id=cause,
                traceparent=traceparent_of(committed.trace),
            )
        )
        subject = self._subjects.log(self._team, workflow)
        try:
            storing = self._bus.publish(subject, dump(commit), headers, expect=head.sequence)
            try:
                await asyncio.sleep(0)  # what is under way goes out when this turn of the loop is over, and not before
                meanwhile(committed)
                sequence = await storing
            finally:
                storing.close()
        except OversizeEventError:
            # Without this snapshot a log is only slower to load; what a commit rests on is for `replay` alone.
            for leaner in (plain, plain.model_copy(update={"decision_context": None})):
                with suppress(OversizeEventError):
                    sequence = await self._bus.publish(subject, dump(leaner), headers, expect=head.sequence)
                    commit = leaner
                    break
            else:
                raise
        snapshot = sequence if commit.snapshot is not None else head.snapshot_sequence
        return LogHead(committed, sequence, snapshot, head.foreign_messages, _live_agents(head, commit))

    def _read_stored(self, stored: StoredMessage) -> Commit:
        if is_imported(stored):
            raise ImportedLogError(f"the log on {stored.subject} was imported to be looked at; nothing acts on it")
        try:
            return read_commit(stored)
        except ContractError as error:
            raise _corrupt_log(stored, error) from None

    def _apply_commit(self, head: LogHead, stored: StoredMessage, commit: Commit) -> LogHead:
        if head.state is None and commit.number > 1 and commit.snapshot is None:
            raise TruncatedLogError(
                f"what is left of the log on {stored.subject} begins with commit {commit.number}: what came before was "
                "removed, as the workflow ended long ago, or for a bound of the stream; `pointsman doctor` tells of one"
            )
        try:
            if commit.snapshot is not None and (head.state is None or commit.number != head.state.commits + 1):
                agents = _live_agents(LogHead(), commit)  # what was named before may have changed in what is missing
                return LogHead(from_snapshot(commit.snapshot), stored.sequence, stored.sequence, agents=agents)
            state = apply_commit(head.state, commit)
        except (InvariantError, ValidationError) as error:
            raise _corrupt_log(stored, error) from None
        snapshot = stored.sequence if commit.snapshot is not None else head.snapshot_sequence
        return LogHead(state, stored.sequence, snapshot, agents=_live_agents(head, commit))


def _live_agents(before: LogHead, commit: Commit) -> AgentCards | None:
    return (
        commit.decision_context.agents
        if commit.decision_context and commit.decision_context.agents is not None
        else before.agents
    )


def _corrupt_log(stored: StoredMessage, error: Exception) -> CorruptLogError:
    return CorruptLogError(
        f"message {stored.sequence} on {stored.subject} cannot be folded: {describe_error(error)}; the workflow "
        "is closed, look at it with `pointsman show` of the release that wrote it"
    )
