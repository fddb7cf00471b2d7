"""How a supervisor's inputs end: acknowledged when they are dealt with, a dead letter when nobody can deal with them,
handed back when that cannot be stored now. None is lost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from pointsman.core.completion.caller_messages import generic_failure
from pointsman.core.model.inputs import ControlReceived
from pointsman.core.model.state import State
from pointsman.core.tasks.child_workflow import PARENT_CONTROL
from pointsman.engine.log.workflow_log import CorruptLogError, WorkflowLog
from pointsman.engine.process.dead_lettering import dead_letter
from pointsman.engine.supervisor.inbound import InboundInput
from pointsman.engine.supervisor.spans import log_context
from pointsman.errors import BusUnavailableError, ConflictError, PermissionDeniedError, PointsmanError
from pointsman.ports.bus import Bus, Delivery
from pointsman.ports.clock import Clock
from pointsman.telemetry import bind, get_logger
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import AttemptError, Outcome
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import Subjects

__all__ = ["Acknowledger"]

_MAX_DELIVERIES = 5
"""Deliveries of a parent's word to a child that has not begun, before it is left for that child to look for."""
_RETRY_PAUSE_S = 5.0
"""Seconds before an input that could not be stored as a dead letter comes again: it is kept, and not in a hot loop."""

_log = get_logger(__name__)


class Acknowledger:
    """Settles the inputs of one team's workflows."""

    def __init__(self, bus: Bus, subjects: Subjects, clock: Clock, logs: WorkflowLog, team: str) -> None:
        self._bus = bus
        self._subjects = subjects
        self._clock = clock
        self._logs = logs
        self._team = team

    async def acknowledge(self, workflow: str, inbound: Iterable[InboundInput], state: State | None = None) -> None:
        for inbound_input in inbound:
            if inbound_input.refusal is not None:
                with bind(**(log_context(state) if state else {})):
                    await self._store_dead_letter(inbound_input.delivery, workflow, inbound_input.refusal)
            await inbound_input.delivery.ack()

    async def dead_letter_unknown(self, workflow: str, inbound: Sequence[InboundInput]) -> None:
        for inbound_input in inbound:
            if (
                isinstance(inbound_input.input, ControlReceived)
                and inbound_input.event_id == f"{workflow}-{PARENT_CONTROL}"
            ):
                # Its child is about to begin, or will look for this when it does.
                await (
                    inbound_input.delivery.nak(1.0)
                    if inbound_input.delivery.delivered < _MAX_DELIVERIES
                    else inbound_input.delivery.ack()
                )
                continue
            message = "no log of this workflow exists: it was never admitted here, or its log has aged out"
            await self.dead_letter(inbound_input.delivery, workflow, "unknown_workflow", message)

    async def dead_letter(self, delivery: Delivery, workflow: str | None, kind: str, message: str) -> None:
        """Make a dead letter of an input and settle it; what cannot be stored now is handed back, not lost."""
        try:
            await self._store_dead_letter(delivery, workflow, AttemptError(kind=kind, message=message))
        except PermissionDeniedError:
            await delivery.nak(_RETRY_PAUSE_S)
            raise
        except PointsmanError as error:
            hint = "the input is kept and tried again; `pointsman doctor` looks at the dead letters' stream"
            _log.error("dead_letter_store_failed", subject=delivery.message.subject, reason=str(error), hint=hint)
            await delivery.nak(_RETRY_PAUSE_S)
        else:
            await delivery.term(kind)

    async def _store_dead_letter(self, delivery: Delivery, workflow: str | None, cause: AttemptError) -> None:
        _log.warning("input_refused", subject=delivery.message.subject, kind=cause.kind, reason=cause.message)
        await dead_letter(
            self._bus,
            self._subjects,
            self._clock,
            delivery.message,
            origin=self._team,
            cause=cause,
            attempts=delivery.delivered,
            team=self._team,
            workflow=workflow,
        )

    async def close_corrupt(self, workflow: str, inbound: Sequence[InboundInput], error: CorruptLogError) -> None:
        """A log that cannot be folded is never guessed at: its caller is told, and its inputs become dead letters. One
        that is being removed since its workflow ended has told its caller: its outcome goes last of it."""
        try:
            over = await self._bus.last("log", self._subjects.outcome(self._team, workflow))
            left = over or await self._bus.last("log", self._subjects.log(self._team, workflow))
            if left and not over:
                await self._publish_failure(workflow, str(error))
        except BusUnavailableError:
            left = None
        if left is None:  # the broker is away, or the log was removed while it was read: they come again
            for inbound_input in inbound:
                await inbound_input.delivery.nak(1.0)
        else:
            for inbound_input in inbound:
                await self.dead_letter(inbound_input.delivery, workflow, error.kind, str(error))

    async def _publish_failure(self, workflow: str, reason: str) -> None:
        now = self._clock.now()
        correlation_id, trace_id = await self._logs.origin(workflow)
        outcome = Outcome(
            workflow_id=workflow,
            team=self._team,
            status="failed",
            answer=generic_failure(workflow),
            reason=reason,
            correlation_id=correlation_id or workflow,
            trace_id=trace_id,
            started_at=now,
            ended_at=now,
            elapsed=0.0,
            sequential=0.0,
        )
        envelope = Envelope(
            id=f"{workflow}-outcome",
            type=Outcome.event_type,
            source=self._subjects.source("team", self._team),
            time=now,
            subject=workflow,
            correlation_id=correlation_id,
        )
        subject = self._subjects.outcome(self._team, workflow)
        with contextlib.suppress(ConflictError):
            await self._bus.publish(subject, dump(outcome), encode(envelope), expect=0)
