"""Acknowledge, dead-letter or negatively acknowledge a supervisor's inputs. No input is lost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from pointsman.core.completion.caller_messages import generic_failure
from pointsman.core.model.inputs import ControlReceived
from pointsman.core.model.state import State
from pointsman.core.tasks.child_workflow import PARENT_CONTROL
from pointsman.engine.log.workflow_log import CorruptLogError, WorkflowLog
from pointsman.engine.process.dead_lettering import dead_letter
from pointsman.engine.supervisor.inbound import InboundInput, is_message
from pointsman.engine.supervisor.spans import log_context
from pointsman.errors import BusUnavailableError, ConflictError, PermissionDeniedError, PointsmanError
from pointsman.ports.bus import Bus, Delivery
from pointsman.ports.clock import Clock
from pointsman.telemetry import bind, get_logger
from pointsman.telemetry.error_content import content_text
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import AttemptError, Outcome
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import Subjects

__all__ = ["Acknowledger"]

_MAX_DELIVERIES = 5
"""Number of deliveries of a parent's cancellation to a child that has not started. After the last delivery, the
cancellation is acknowledged, because the child reads it from the stream at its start."""
_RETRY_PAUSE_S = 5.0
"""Delay before the redelivery of an input whose dead letter could not be stored, to avoid a hot loop."""

_log = get_logger(__name__)


class Acknowledger:
    """Settles the inputs of one team's workflows.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        clock: The clock.
        logs: The logs of the team.
        team: The team.
    """

    def __init__(self, bus: Bus, subjects: Subjects, clock: Clock, logs: WorkflowLog, team: str) -> None:
        self._bus = bus
        self._subjects = subjects
        self._clock = clock
        self._logs = logs
        self._team = team

    async def acknowledge(self, workflow: str, inbound: Iterable[InboundInput], state: State | None = None) -> None:
        """Acknowledge processed inputs, after storing a dead letter of each refused input.

        Args:
            workflow: The workflow's id.
            inbound: The inputs.
            state: The workflow's state, for the log lines.
        """
        for inbound_input in inbound:
            if inbound_input.postponed:
                await inbound_input.delivery.nak(_RETRY_PAUSE_S)
                continue
            if inbound_input.refusal is not None:
                with bind(**(log_context(state) if state else {})):
                    await self._store_dead_letter(inbound_input.delivery, workflow, inbound_input.refusal)
            await inbound_input.delivery.ack()

    async def dead_letter_unknown(self, workflow: str, inbound: Sequence[InboundInput]) -> None:
        """Dead-letter the inputs of a workflow without a log.

        Args:
            workflow: The workflow's id.
            inbound: The inputs.
        """
        for inbound_input in inbound:
            if (
                isinstance(inbound_input.input, ControlReceived)
                and inbound_input.event_id == f"{workflow}-{PARENT_CONTROL}"
            ):
                # The child reads this control at a redelivery, or when the child begins.
                await (
                    inbound_input.delivery.nak(1.0)
                    if inbound_input.delivery.delivered < _MAX_DELIVERIES
                    else inbound_input.delivery.ack()
                )
                continue
            if is_message(inbound_input.input) and inbound_input.event_id.startswith(f"{workflow}-"):
                await inbound_input.delivery.ack()  # a control of a parent whose child never began
                continue
            message = "no log of this workflow exists: the workflow was never admitted, or its log was removed"
            await self.dead_letter(inbound_input.delivery, workflow, "unknown_workflow", message)

    async def dead_letter(self, delivery: Delivery, workflow: str | None, kind: str, message: str) -> None:
        """Store a dead letter of an input and end its delivery. If the letter cannot be stored, return the input.

        Args:
            delivery: The delivery.
            workflow: The workflow's id, if it is known.
            kind: The kind of the error.
            message: The error.

        Raises:
            PermissionDeniedError: the broker refuses the dead letter.
        """
        try:
            await self._store_dead_letter(delivery, workflow, AttemptError(kind=kind, message=message))
        except PermissionDeniedError:
            await delivery.nak(_RETRY_PAUSE_S)
            raise
        except PointsmanError as error:
            hint = "the input is redelivered and tried again; `pointsman doctor` checks the dead-letter stream"
            _log.error("dead_letter_store_failed", subject=delivery.message.subject, reason=str(error), hint=hint)
            await delivery.nak(_RETRY_PAUSE_S)
        else:
            await delivery.term(kind)

    async def _store_dead_letter(self, delivery: Delivery, workflow: str | None, cause: AttemptError) -> None:
        _log.warning(
            "input_refused", subject=delivery.message.subject, kind=cause.kind, reason=content_text(cause.message)
        )
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
        """Close a workflow whose log cannot be folded: publish a failed outcome and dead-letter its inputs.

        A log may also be incomplete because retention is deleting it. Then the workflow still has its outcome, because
        retention deletes the outcome last. So a failed outcome is published only if the workflow has no outcome.

        Args:
            workflow: The workflow's id.
            inbound: The inputs.
            error: The fault of the log.
        """
        try:
            over = await self._bus.last("log", self._subjects.outcome(self._team, workflow))
            left = over or await self._bus.last("log", self._subjects.log(self._team, workflow))
            if left and not over:
                await self._publish_failure(workflow, str(error))
        except BusUnavailableError:
            left = None
        if (
            left is None
        ):  # the broker is unavailable, or the log was removed during the read, so the inputs are redelivered
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
