"""The log of a workflow for its supervisor, which loads the log once and extends the log by compare-and-set commits.

With each commit, a supervisor sends the sequence of the last log message that it has read. The broker refuses the
commit if the log has a newer message, because another process wrote first. Supervisors need no other coordination.
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
"""Number of commits between two snapshots of a workflow with few tasks. To load such a workflow, a supervisor reads at
most this many commits, which takes some tens of milliseconds."""
_TASKS_PER_DOUBLING = 128
"""If a workflow has this number of tasks, the number of commits between two snapshots is doubled. Each further doubling
of the tasks doubles it again, because a snapshot contains all tasks and so grows with their number."""


class CorruptLogError(PeerError):
    """A log has a message that cannot be read or applied. Its workflow ends as failed; other workflows continue."""

    kind = "corrupt_log"


class TruncatedLogError(CorruptLogError):
    """The beginning of a log was removed: by retention, long after the workflow ended, or by a limit of the stream."""

    kind = "truncated_log"


@dataclass(frozen=True, slots=True)
class LogHead:
    """The end of a workflow's log: the state, the sequence of the last message, and that of the newest snapshot.

    Attributes:
        state: The state after the last commit; None without a log.
        sequence: The sequence of the last message; 0 without a log.
        snapshot_sequence: The sequence of the newest commit with a snapshot.
        foreign_messages: True if another process has written to the log. That process might have stopped before it
            published all messages that its commits require.
        agents: The agents that the commits last named as live; None if these names were not read.
    """

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
        """Return the head of the log. Read only the commits after `known`; without `known`, start at the last snapshot.

        Raises:
            CorruptLogError: A message cannot be read or does not follow from the message before it.
            ImportedLogError: The log was imported.
            BusUnavailableError: The broker did not answer.
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
        """Return the correlation id and the trace id of the log's newest message.

        The call reads only the headers, so it also works if the body cannot be read.
        """
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
        decision_context: RecordedContext | None = None,
        meanwhile: Callable[[State], object] = lambda _: None,
    ) -> LogHead:
        """Append `entries` as one commit.

        Args:
            head: The end of the log on which the entries were decided.
            workflow: The workflow's id.
            entries: The entries, which lead from `head` to `state`.
            state: The state after the entries.
            cause: The id of the event that caused the commit.
            decision_context: The other inputs of the decision, for `replay`.
            meanwhile: Called with the new state while the broker stores the commit.

        Returns:
            The new head.

        Raises:
            ConflictError: Another process has written after `head`. Nothing was stored. Load and decide again.
            PublishOutcomeUnknownError: The commit may have been stored. Load and decide again.
            OversizeEventError: The entries do not fit into one message.
        """
        number = state.commits + 1
        committed = copy_with(state, commits=number)
        plain = Commit(
            number=number,
            entries=tuple(entries),
            snapshot_sequence=head.snapshot_sequence,
            open_questions=tuple(state.questions),
            round=state.round,
            decision_context=decision_context,
        )
        due = number % (SNAPSHOT_EVERY << (len(committed.tasks) // _TASKS_PER_DOUBLING).bit_length()) == 0
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
                await asyncio.sleep(0)  # let the loop send the publish before `meanwhile` takes CPU time
                meanwhile(committed)
                sequence = await storing
            finally:
                storing.close()
        except OversizeEventError:
            # Leave out the snapshot, without which the log only loads more slowly. If the commit is still too large,
            # also leave out the decision context, which only `replay` reads.
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
            raise ImportedLogError(f"the log on {stored.subject} was imported for reading only; no process acts on it")
        try:
            return read_commit(stored)
        except ContractError as error:
            raise _corrupt_log(stored, error) from None

    def _apply_commit(self, head: LogHead, stored: StoredMessage, commit: Commit) -> LogHead:
        if head.state is None and commit.number > 1 and commit.snapshot is None:
            raise TruncatedLogError(
                f"the log on {stored.subject} begins with commit {commit.number}: earlier commits were removed, "
                "because the workflow ended long ago or the stream has a limit, which `pointsman doctor` reports"
            )
        try:
            if commit.snapshot is not None and (head.state is None or commit.number != head.state.commits + 1):
                agents = _live_agents(LogHead(), commit)  # a missing commit may have named other agents than `head`
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
        "is closed; read the log with `pointsman show` of the release that wrote the message"
    )
