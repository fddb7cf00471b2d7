"""Decode the deliveries of a team into inputs of workflows.

A cancellation may arrive before its workflow begins. If the workflow has a queued request, the decoder adds the request
to the cancellation, so that the workflow begins and ends. A child workflow has no queued request: when it begins, the
decoder reads its parent's cancellation from the stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pointsman.core.model.inputs import ControlReceived, RequestReceived, RequestRefused, TimerFired
from pointsman.core.tasks.child_workflow import PARENT_CONTROL
from pointsman.engine.log.requests import (
    failed_result_for,
    find_request,
    input_address,
    read_child_request,
    read_input,
    read_request,
)
from pointsman.engine.process.consumers import request_consumer
from pointsman.engine.supervisor.inbound import InboundInput, is_cancellation
from pointsman.errors import ContractError
from pointsman.ports.bus import Bus, Delivery, StoredMessage
from pointsman.ports.clock import Clock
from pointsman.telemetry import get_logger
from pointsman_schemas.events import AttemptError
from pointsman_schemas.subjects import HandoffAddress, ResultAddress, Subjects
from pointsman_schemas.team import Team

__all__ = ["InboundDecoder", "UnreadableInput"]

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class UnreadableInput:
    """A delivery that becomes a dead letter, because no workflow can process it.

    Attributes:
        workflow: The workflow that the subject names; None if the subject names no workflow.
        error: The fault.
    """

    workflow: str | None
    error: ContractError


class InboundDecoder:
    """Decodes the deliveries of one team.

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

    def decode(self, delivery: Delivery) -> tuple[str, InboundInput] | UnreadableInput:
        """Decode a delivery.

        Args:
            delivery: The delivery.

        Returns:
            The workflow's id and the input, or the fault.
        """
        match delivery.message.subject.split(".", 2)[1]:
            case "request":
                return self._decode_request(delivery)
            case "handoff":
                return self._decode_handoff(delivery)
            case _:
                return self._decode_input(delivery)

    def _decode_request(self, delivery: Delivery) -> tuple[str, InboundInput]:
        received = read_request(delivery.message, self._team)
        refusal = received.error if isinstance(received, RequestRefused) else None
        if isinstance(received, RequestReceived) and received.ignored_fields:
            _log.warning(
                "request_fields_ignored",
                workflow_id=received.admission.workflow_id,
                fields=received.ignored_fields,
                hint="a request has no such fields; correct the names, or put data into metadata",
            )
        return received.admission.workflow_id, InboundInput(received, delivery, received.admission.request_id, refusal)

    def _decode_handoff(self, delivery: Delivery) -> tuple[str, InboundInput] | UnreadableInput:
        try:
            received = read_child_request(delivery.message, self._team, self._subjects, self._clock.now())
        except ContractError as error:
            return UnreadableInput(self._parent_workflow(delivery), error)
        return received.admission.workflow_id, InboundInput(received, delivery, received.admission.request_id)

    def _parent_workflow(self, delivery: Delivery) -> str | None:
        """Return the id of the parent workflow from the subject of a handoff; None if the subject is not valid."""
        try:
            return self._subjects.parse(delivery.message.subject, HandoffAddress).workflow
        except ContractError:
            return None

    def _decode_input(self, delivery: Delivery) -> tuple[str, InboundInput] | UnreadableInput:
        try:
            address = input_address(delivery.message.subject, self._subjects)
        except ContractError as error:
            return UnreadableInput(None, error)
        refusal = None
        try:
            received = read_input(delivery.message, self._subjects, address)
        except ContractError as error:
            if not isinstance(address, ResultAddress):
                return UnreadableInput(address.workflow, error)
            received = failed_result_for(delivery.message, address, error)
            refusal = AttemptError(kind=error.kind, message=str(error))
        event_id = received.name if isinstance(received, TimerFired) else received.event_id
        return address.workflow, InboundInput(received, delivery, event_id, refusal)

    async def is_cancelled_while_queued(self, workflow: str, inbound: Sequence[InboundInput]) -> bool:
        """Return True if a workflow is cancelled while its request waits for admission.

        Such a workflow begins and ends in one commit. Its request is acknowledged later, when the broker delivers it.

        Args:
            workflow: The workflow's id.
            inbound: The inputs; the request is added to the cancellation.

        Returns:
            True if a cancellation and a waiting request exist.
        """
        for inbound_input in inbound:
            if isinstance(inbound_input.input, ControlReceived) and is_cancellation(workflow, inbound_input.input):
                request = await self._queued_request(workflow)
                if request is not None:
                    inbound_input.related_inputs = (read_request(request, self._team),)
                return request is not None
        return False

    async def is_queued(self, workflow: str) -> bool:
        """Return True if the request of a workflow waits for admission.

        Args:
            workflow: The workflow's id.

        Returns:
            True if the request waits.
        """
        return await self._queued_request(workflow) is not None

    async def _queued_request(self, workflow: str) -> StoredMessage | None:
        requests = request_consumer(self._subjects, self._team.name)
        depth = await self._bus.depth(requests.name, requests.stream)
        after = depth.settled_through if depth else 0  # waiting requests come after the settled ones
        return await find_request(self._bus, requests.subject, workflow, after=after)

    async def add_parent_cancellation(self, workflow: str, inbound: Sequence[InboundInput]) -> None:
        """Add the cancellation that a parent sent before the child began, if there is one, to the child's request.

        Args:
            workflow: The id of the child workflow.
            inbound: The inputs.
        """
        for inbound_input in inbound:
            received = inbound_input.input
            if not isinstance(received, RequestReceived) or (parent := received.admission.parent) is None:
                continue
            subject = self._subjects.control(self._team.name, workflow, "cancel", parent.team, PARENT_CONTROL)
            if (control := await self._bus.last("controls", subject)) is not None:
                inbound_input.related_inputs = (read_input(control, self._subjects),)
