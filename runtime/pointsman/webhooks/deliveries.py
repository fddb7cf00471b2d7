"""Read the states of deliveries, as the service has written them, and request that events are sent again."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from pointsman.errors import ContractError, NotFoundError
from pointsman.ports.bus import Bus, StoredMessage
from pointsman.webhooks.endpoints import EventType
from pointsman_schemas.ids import Token
from pointsman_schemas.strict_json import parse
from pointsman_schemas.subjects import Subjects

__all__ = [
    "DeliveryState",
    "DeliveryStatus",
    "list_deliveries",
    "parse_state",
    "read_delivery",
    "resend_delivery",
]

DeliveryStatus = Literal["delivered", "retrying", "failed", "disabled"]
"""The status of a delivery. `failed`: all attempts failed. `disabled`: the endpoint was disabled or deleted before
an attempt succeeded."""


class DeliveryState(BaseModel):
    """The state of a delivery after its newest attempt."""

    model_config = ConfigDict(frozen=True)

    endpoint: Token = Field(description="The endpoint.")
    event: Token = Field(description="The id of the event: the header `webhook-id`.")
    type: EventType = Field(description="The type of the event.")
    workflow_id: Token | None = Field(default=None, description="The workflow, if there is one.")
    status: DeliveryStatus = Field(description="The status.")
    attempts: int = Field(
        ge=0, description="Number of attempts since the event, or since the newest request to send the event again."
    )
    code: int | None = Field(default=None, description="The status code of the newest response.")
    error: str = Field(default="", description="The error of the newest attempt; empty without an error.")
    at: AwareDatetime = Field(description="Time of the newest attempt.")
    elapsed: float = Field(default=0.0, description="Duration of the newest attempt in seconds.")
    next_at: AwareDatetime | None = Field(
        default=None, description="Time of the next attempt; None if no further attempt follows."
    )
    order: int = Field(
        description="The sequence number of the message that caused the attempts. The message is the event, or the "
        "newest request to send the event again."
    )


async def list_deliveries(
    bus: Bus,
    subjects: Subjects,
    *,
    endpoint: str | None = None,
    status: DeliveryStatus | None = None,
    limit: int = 100,
) -> Sequence[DeliveryState]:
    """Read the states of deliveries with at least one attempt.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        endpoint: Return only the deliveries to this endpoint. Default: the deliveries to all endpoints.
        status: Return only the deliveries with this status. Default: the deliveries with any status.
        limit: The greatest number of deliveries to return. Default: 100.

    Returns:
        The states. The state that changed last is the first.
    """
    newest: deque[DeliveryState] = deque(maxlen=limit)
    async for stored in bus.read("deliveries", subjects.receipts(endpoint)):
        state = parse_state(stored)
        if state is not None and status in (None, state.status):
            newest.append(state)
    return list(reversed(newest))


async def read_delivery(bus: Bus, subjects: Subjects, endpoint: str, event: str) -> DeliveryState:
    """Read the state of a delivery.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        endpoint: The endpoint.
        event: The id of the event.

    Returns:
        The state.

    Raises:
        NotFoundError: There is no such delivery.
    """
    stored = await bus.last("deliveries", subjects.receipts(endpoint, event=event))
    if stored is None or (state := parse_state(stored)) is None:
        raise NotFoundError(
            f"the endpoint {endpoint!r} has no delivery of {event!r}; `pointsman webhooks deliveries` lists the "
            f"deliveries"
        )
    return state


async def resend_delivery(bus: Bus, subjects: Subjects, state: DeliveryState) -> None:
    """Request that an event is sent again, with the same id and body. A webhook service carries out the request.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        state: The delivery.

    Raises:
        BusUnavailableError: The broker does not answer.
    """
    await bus.publish(subjects.resend(state.endpoint, state.workflow_id, state.event), b"{}", {})


def parse_state(stored: StoredMessage) -> DeliveryState | None:
    """Return the state of a delivery that a message contains; None if the message contains no such state.

    Args:
        stored: The message.
    """
    with suppress(ContractError):
        return parse(DeliveryState, stored.body)
    return None
