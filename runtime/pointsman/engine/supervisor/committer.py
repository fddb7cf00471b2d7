"""Turn inputs into a commit of their workflow's log: decide, claim probes, commit. Repeat this after a conflict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import NamedTuple

from pointsman.core.decide import make_decision
from pointsman.core.decision import Decision, DecisionContext
from pointsman.core.model.inputs import ControlReceived, ResultReceived
from pointsman.core.model.state import State, copy_with
from pointsman.core.replay.decision_context import AgentCards, record_context, summarize_cards
from pointsman.core.results import late_result
from pointsman.core.resume import expires_soon, resume_refusal
from pointsman.engine.log.workflow_log import LogHead, WorkflowLog
from pointsman.engine.process.fault_injection import fault_point
from pointsman.engine.supervisor.agent_load import AgentLoads
from pointsman.engine.supervisor.circuit_breaker import CircuitBreaker
from pointsman.engine.supervisor.inbound import InboundInput, is_request, refuse_oversized
from pointsman.engine.supervisor.outbox_publisher import EncodedMessage
from pointsman.engine.supervisor.stream_integrity import LogWatch
from pointsman.errors import (
    BusUnavailableError,
    ConflictError,
    InvariantError,
    OversizeEventError,
    PublishOutcomeUnknownError,
)
from pointsman.ports.bus import Bus
from pointsman.ports.clock import Clock
from pointsman.telemetry import get_logger, metrics, semconv
from pointsman_schemas.card import AgentCard
from pointsman_schemas.events import AttemptError
from pointsman_schemas.log import Entry

__all__ = ["CommitResult", "Committer", "refuse_late"]

_UNKNOWN_OUTCOME_PAUSE_S = 0.05
"""Delay before an unanswered commit is searched in the log. After this delay, a cluster has finished pending publishes.
"""
_MAX_RACES = 100
"""Number of times that one commit is tried. A try fails if another process has written to the log first. After so many
failures, another cause is more likely, so the commit ends with an error."""

_log = get_logger(__name__)


class CommitResult(NamedTuple):
    """The result of a commit.

    Attributes:
        head: The head of the log after the inputs.
        entries: The entries that were committed for the inputs.
        to_publish: The messages that the entries require.
        had_conflict: True if another supervisor might have committed, and stopped before it published its messages.
    """

    head: LogHead
    entries: tuple[Entry, ...] = ()
    to_publish: Sequence[EncodedMessage] = ()
    had_conflict: bool = False


class Committer:
    """Commits to the logs of one team.

    Args:
        bus: The bus.
        clock: The clock.
        logs: The logs of the team.
        watch: Records each commit, to detect later if the log has lost the commit.
        circuits: The circuits, which record each commit.
        loads: The loads of agents, which record each commit.
        prepare: Encodes the messages that the entries require, while the broker stores the commit.
        retention: The retention period of logs after the end of their workflow.
    """

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        logs: WorkflowLog,
        watch: LogWatch,
        circuits: CircuitBreaker,
        loads: AgentLoads,
        prepare: Callable[[State, Sequence[Entry]], Sequence[EncodedMessage]],
        retention: timedelta | None = None,
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._logs = logs
        self._watch = watch
        self._circuits = circuits
        self._loads = loads
        self._prepare = prepare
        self._retention = retention
        self._live_cards: tuple[tuple[AgentCard, ...], AgentCards] = ((), ())

    async def commit(self, workflow: str, head: LogHead, inbound: Sequence[InboundInput]) -> CommitResult:
        """Decide on inputs and commit the entries.

        Args:
            workflow: The workflow's id.
            head: The known head of the log.
            inbound: The inputs.

        Returns:
            The new head, the entries and the messages to publish.

        Raises:
            InvariantError: the commit had too many conflicts.
            PublishOutcomeUnknownError: the broker did not answer.
        """
        raced = False
        unanswered = any(each.delivery.delivered > 1 and is_request(each.input) for each in inbound)
        for _ in range(_MAX_RACES):
            cards = tuple(await self._bus.registry.cards())
            now, bound = self._clock.now(), self._bus.max_body
            around = DecisionContext(
                now, cards, self._circuits.open_circuits, bound, self._loads.known, self._retention
            )
            inputs = [
                each for inbound_input in inbound for each in (inbound_input.input, *inbound_input.related_inputs)
            ]
            draft = make_decision(head.state, inputs, around)
            entries, state = tuple(draft.entries), draft.current
            if not entries or state is None:
                if head.state is not None and head.state.ended and unanswered:
                    # This process, or a process that died, may have sent a commit for these inputs that begins the log,
                    # and that commit may still be on its way to the broker. If it arrived after retention removed the
                    # log, it would begin the log again, and no supervisor would continue that log. So send a commit
                    # that begins the log, too. The broker refuses it if the log exists. After the broker's answer, no
                    # older commit of this kind can arrive.
                    head, raced, unanswered = LogHead(), True, False
                    continue
                if head.state is not None and head.state.ended:
                    refuse_late(draft, inbound, uncertain=raced)
                    return CommitResult(head, had_conflict=raced)  # only a resume can follow the end
                # Only a commit proves that `head` is the end of the log. Here no commit follows, so read the log again.
                # For example, a fired timer has no effect on the known state, if another supervisor armed the timer
                # after this process had read that state.
                newer = await self._logs.load(workflow, head)
                if newer.sequence == head.sequence:
                    return CommitResult(head, had_conflict=raced)
                head, raced = newer, True
                continue
            if draft.loads_consulted and await self._loads.refresh(draft.loads_consulted):
                continue  # decide again with the measured loads
            if draft.probes and not await self._circuits.claim_probes(draft.probes, draft.now):
                continue  # decide again, because another supervisor claimed the probe
            alive = self._card_summaries(cards)
            given = record_context(draft, alive if alive != head.agents else None)
            self._loads.record_decision(entries)  # after `record_context`, because the decision used the old loads
            owed: list[EncodedMessage] = []

            def prepare(
                committed: State, entries: tuple[Entry, ...] = entries, owed: list[EncodedMessage] = owed
            ) -> None:
                owed += self._prepare(committed, entries)

            try:
                after = await self._logs.commit(head, workflow, entries, state, inbound[0].event_id, given, prepare)
            except (ConflictError, PublishOutcomeUnknownError) as error:
                metrics.count(semconv.COMMIT_CONFLICTS, attributes={"error.type": error.kind})
                _log.info("commit_rejected", workflow_id=workflow, reason=error.kind)
                raced = True
                if isinstance(error, PublishOutcomeUnknownError):
                    unanswered = unanswered or head.sequence == 0
                    await self._clock.sleep(_UNKNOWN_OUTCOME_PAUSE_S)
                after = await self._reload(workflow, head, error)
                if isinstance(error, ConflictError) or after.state != copy_with(state, commits=state.commits + 1):
                    head = after
                    continue
                # The unanswered commit was stored: the newest commit of the log is this commit.
            except OversizeEventError as error:
                if len(inbound) == 1:
                    refuse_oversized(inbound[0], error)
                    continue
                apart: tuple[Entry, ...] = ()
                for inbound_input in inbound:
                    committed = await self.commit(workflow, head, [inbound_input])
                    head, apart = committed.head, apart + committed.entries
                return CommitResult(
                    head, apart, self._prepare(head.state, apart) if head.state else (), had_conflict=True
                )
            self._watch.record_commit(after.sequence)
            self._circuits.record(head.state, workflow, entries)
            self._loads.record_commit(head.state, entries)
            fault_point("supervisor.committed")
            return CommitResult(after, entries, owed, raced)
        raise InvariantError(f"a commit of {workflow} had {_MAX_RACES} conflicts in a row")

    def _card_summaries(self, cards: tuple[AgentCard, ...]) -> AgentCards:
        if cards is not self._live_cards[0]:  # the cards are compared once for each heartbeat
            self._live_cards = cards, self._live_cards[1] if cards == self._live_cards[0] else summarize_cards(cards)
        return self._live_cards[1]

    async def _reload(self, workflow: str, head: LogHead, error: ConflictError | PublishOutcomeUnknownError) -> LogHead:
        """Load the log after `head`. If the log does not contain `head` any more, the log was rolled back."""
        newer = await self._logs.load(workflow, head)
        if isinstance(error, PublishOutcomeUnknownError) or newer.sequence != head.sequence:
            return newer
        whole = await self._logs.load(workflow)
        if whole.sequence == head.sequence:
            raise BusUnavailableError(
                f"the broker refused a commit to the log of {workflow}, but the log has no newer commit; the commit is "
                "repeated"
            )
        _log.error("log_rolled_back", sequence=head.sequence, hint="messages that the broker had stored are lost")
        return whole


def refuse_late(decision: Decision, inbound: Sequence[InboundInput], *, uncertain: bool = False) -> None:
    """Set the refusal of each input that an ended workflow cannot use: a resume that is not possible, or a late result.

    Args:
        decision: The decision, which has no entries.
        inbound: The inputs.
        uncertain: True if an earlier commit for these inputs may still arrive at the broker.
    """
    for each in inbound:
        match each.input:
            case ControlReceived() as control if control.control.action == "resume":
                reason = resume_refusal(decision, control) if _is_new(decision, each) else ""
                # An earlier delivery of this command may have led to a commit that is still on its way to the broker.
                # So the command is postponed until this is clear. If the commit arrives, the new round has begun. If
                # not, retention deletes the log.
                each.postponed = bool(reason) and expires_soon(decision) and (uncertain or each.delivery.delivered > 1)
                if reason and not each.postponed:
                    each.refusal = AttemptError(kind="not_resumable", message=reason)
            case ResultReceived() as received if reason := late_result(decision.state, received):
                each.refusal = AttemptError(kind="late_result", message=reason)
            case _:
                pass


def _is_new(decision: Decision, each: InboundInput) -> bool:
    return each.event_id not in decision.state.ignored_events
