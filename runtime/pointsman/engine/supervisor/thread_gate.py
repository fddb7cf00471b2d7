"""Admit the turns of threads. A request that names a thread starts its workflow when the thread grants the turn."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from pointsman.core.model.inputs import ControlReceived, RequestReceived, RequestRefused
from pointsman.core.model.state import State
from pointsman.core.planning.summary import thread_summary
from pointsman.core.threads.past_turns import bounded_text, history_of
from pointsman.core.threads.turns import (
    LOST,
    TurnAsked,
    TurnRefusal,
    end_turn,
    fold_thread,
    grant_turn,
    request_turn,
    turn_of,
    turns_ahead,
)
from pointsman.core.user_messages import NextTurn, late_turn, next_turn_workflow, unread_turn
from pointsman.engine.log.reader import is_outcome
from pointsman.engine.log.records import THREAD, Records
from pointsman.engine.process.consumers import request_consumer
from pointsman.engine.supervisor.inbound import InboundInput
from pointsman.errors import ConflictError
from pointsman.ports.bus import Bus
from pointsman.ports.clock import Clock
from pointsman.telemetry import get_logger
from pointsman_schemas.envelope import Envelope, decode, encode
from pointsman_schemas.events import AttemptError, Control, ErrorKind, Outcome, Request
from pointsman_schemas.ids import derive_id
from pointsman_schemas.strict_json import dump, parse
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.team import Team
from pointsman_schemas.threads import Thread, ThreadEntry, Turn

__all__ = ["ThreadGate"]

_log = get_logger(__name__)


class ThreadGate:
    """Admits the turns of the threads of one team.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        clock: The clock.
        team: The team.
    """

    def __init__(self, bus: Bus, subjects: Subjects, clock: Clock, team: Team) -> None:
        self._bus = bus
        self._subjects = subjects
        self._clock = clock
        self._team = team
        self._source = subjects.source("team", team.name)
        self._records = Records(THREAD, bus, clock, self._source)

    async def admit(self, inbound: Sequence[InboundInput]) -> bool:
        """Request a turn for each request that names a thread. Add the history of the thread to a granted turn.

        Args:
            inbound: The inputs of a workflow without a log.

        Returns:
            False if the turn waits; the inputs must then be processed later. Otherwise True.
        """
        for each in inbound:
            match each.input:
                case RequestReceived(request=request) as received if request.thread and not received.admission.parent:
                    return await self._admit_turn(each, received, request.thread)
                case _:
                    pass
        return True

    async def record(self, state: State, inbound: Sequence[InboundInput]) -> None:
        """Write the end of a turn to its thread. Then publish the messages that the turn did not read, as a next turn.

        A repeated call has no effect. A request may name a thread although its workflow does not belong to the thread:
        the workflow was cancelled or refused before its admission, or another request with the same id began it. The
        turn of such a request is recorded as lost.

        Args:
            state: The state of the workflow after the inputs.
            inbound: The inputs.
        """
        own = state.thread
        for each in inbound:
            for received in (each.input, *each.related_inputs):
                if not isinstance(received, RequestReceived) or received.admission.parent:
                    continue
                caller, named = received.admission.caller, received.request.thread
                if named and (own is None or (caller, named) != (own.caller, own.thread)):
                    await self._end(caller, named, state.workflow_id, LOST, "")
        if own is not None and state.outcome is not None and state.ended:
            text = thread_summary(state)
            summary = (own.overflow[-1].number, text) if text else None
            answer = bounded_text(state.outcome.answer)
            thread = await self._end(own.caller, own.thread, state.workflow_id, state.outcome.status, answer, summary)
            controls = [each.input for each in inbound if isinstance(each.input, ControlReceived)]
            late = [late_turn(state, each) for each in controls if each.control.action == "tell"]
            for turn in (unread_turn(state), *late):
                if turn is not None:
                    await self._publish_turn(turn, thread)

    async def _end(
        self,
        caller: str,
        thread_id: str,
        workflow: str,
        outcome: str,
        answer: str,
        summary: tuple[int, str] | None = None,
    ) -> Thread | None:
        def decide(thread: Thread | None) -> tuple[ThreadEntry, ...]:
            if thread is None:
                return ()
            return end_turn(thread, workflow, outcome, answer, self._clock.now(), summary)

        return await self._change(caller, thread_id, decide)

    async def _change(
        self, caller: str, thread_id: str, decide: Callable[[Thread | None], tuple[ThreadEntry, ...]]
    ) -> Thread | None:
        return (await self._records.change(self._subjects.thread(self._team.name, caller, thread_id), decide)).state

    async def _publish_turn(self, turn: NextTurn, thread: Thread | None) -> None:
        """Publish a request that continues a thread. A request that is published again starts no second workflow."""
        subject = self._subjects.request(self._team.name, turn.place.caller)
        workflow = next_turn_workflow(self._subjects, self._team.name, turn.place.caller, turn.request_id)
        if thread is None or thread.deleted_at is not None:
            return
        if turn_of(thread, workflow) is not None or workflow in thread.earlier:
            return  # the request was published before
        envelope = Envelope(
            id=turn.request_id,
            type=Request.event_type,
            source=self._source,
            time=self._clock.now(),
            subject=workflow,
            correlation_id=turn.request_id,
        )
        await self._bus.publish(subject, dump(turn.request), encode(envelope))
        _log.info("message_became_turn", thread=turn.place.thread, turn=workflow)

    async def _admit_turn(self, each: InboundInput, received: RequestReceived, thread_id: str) -> bool:
        admission, policy = received.admission, self._team.threads
        asked = TurnAsked(
            team=self._team.name,
            caller=admission.caller,
            thread=thread_id,
            workflow=admission.workflow_id,
            sequence=each.delivery.message.sequence,
            request=bounded_text(received.request.input),
        )
        refusals: list[TurnRefusal] = []

        def ask(thread: Thread | None) -> tuple[ThreadEntry, ...]:
            entries, refusal = request_turn(thread, asked, policy, self._clock.now())
            refusals[:] = [refusal] if refusal else []
            return entries

        thread = await self._change(asked.caller, thread_id, ask)
        if refusals:
            _log.info("turn_refused", thread=thread_id, reason=refusals[0].reason)
            error = AttemptError(kind=ErrorKind.THREAD, message=refusals[0].reason, retryable=refusals[0].retryable)
            each.input = RequestRefused(admission, error, received.request.reply_to)
            return True
        if thread is None or (own := turn_of(thread, asked.workflow)) is None or own.status == "ended":
            return True  # the workflow already has a log, which the commit of this request will detect
        if own.status == "queued":
            thread = await self._grant(thread, asked)
            own = turn_of(thread, asked.workflow)
        if own is None or own.status != "running":
            return False
        place, history = history_of(thread, asked.workflow, policy)
        each.input = replace(received, admission=replace(admission, thread=place, history=history))
        return True

    async def _grant(self, thread: Thread, asked: TurnAsked) -> Thread:
        """Grant a queued turn if all turns ahead have ended. If the policy is `interrupt`, cancel the turns ahead."""
        ended = [end for turn in turns_ahead(thread, asked.workflow) if (end := await self._end_of(turn)) is not None]

        def decide(thread: Thread | None) -> tuple[ThreadEntry, ...]:
            if thread is None:
                return ()
            entries: list[ThreadEntry] = []
            for workflow, outcome, answer in ended:
                entries += end_turn(thread, workflow, outcome, answer, self._clock.now())
            after = fold_thread(thread, entries)
            return (*entries, *grant_turn(after, asked.workflow, self._clock.now()))

        after = await self._change(asked.caller, asked.thread, decide) or thread
        if self._team.threads.busy == "interrupt":
            for turn in turns_ahead(after, asked.workflow):
                await self._interrupt(turn, asked)
        return after

    async def _end_of(self, turn: Turn) -> tuple[str, str, str] | None:
        """Return workflow, outcome and answer of an ended turn that the record shows as open; None if the turn runs."""
        team = self._team.name
        # The queue is read before the log. A request is settled after the first commit of its workflow, so if the
        # request is settled and the log has no commit, no workflow will begin.
        depth = await self._bus.depth(request_consumer(self._subjects, team).name, "requests")
        stored = await self._bus.last("log", self._subjects.outcome(team, turn.workflow_id))
        if stored is not None and is_outcome(stored):
            outcome = parse(Outcome, decode(stored.headers, stored.body)[1])
            return turn.workflow_id, outcome.status, bounded_text(outcome.answer)
        settled = depth is not None and turn.sequence <= depth.settled_through
        if settled and await self._bus.last("log", self._subjects.log(team, turn.workflow_id)) is None:
            _log.warning("turn_lost", workflow_id=turn.workflow_id, hint="the turn's request began no workflow")
            return turn.workflow_id, LOST, ""
        return None

    async def _interrupt(self, turn: Turn, asked: TurnAsked) -> None:
        """Cancel a turn for a later turn. A repeated call has no effect."""
        name = derive_id("interrupt", turn.workflow_id, asked.workflow)
        control = Control(action="cancel", reason="the next turn of its thread interrupted it")
        envelope = Envelope(
            id=name, type=Control.event_type, source=self._source, time=self._clock.now(), subject=turn.workflow_id
        )
        team = self._team.name
        subject = self._subjects.control(team, turn.workflow_id, "cancel", team, name)
        with contextlib.suppress(ConflictError):  # the cancellation was sent before
            await self._bus.publish(subject, dump(control), encode(envelope), expect=0)
