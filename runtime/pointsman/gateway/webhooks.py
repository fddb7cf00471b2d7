"""Manage the endpoints of webhooks, list deliveries, and request new deliveries.

An endpoint of an operator receives the events of all callers. An endpoint of a caller receives the events of the
caller's own workflows, and no other caller can see the endpoint.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import AwareDatetime, BaseModel, Field

from pointsman.errors import ConfigurationError
from pointsman.gateway.callers import Caller
from pointsman.gateway.context import CallerArg, Context, ContextArg
from pointsman.gateway.models import Body
from pointsman.gateway.problems import ProblemError, problems
from pointsman.webhooks.deliveries import (
    DeliveryState,
    DeliveryStatus,
    list_deliveries,
    read_delivery,
    resend_delivery,
)
from pointsman.webhooks.endpoint_store import CallerBounds, EndpointLimitError, EndpointStore
from pointsman.webhooks.endpoints import CALLER_EVENT_TYPES, EVENT_TYPES, Endpoint, EventType
from pointsman_schemas.ids import TOKEN_PATTERN, TeamName

__all__ = ["router"]

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"])

EndpointPath = Annotated[str, Path(pattern=TOKEN_PATTERN, description="The id of the endpoint.")]


class WebhookRequest(Body):
    """A new endpoint."""

    url: Annotated[str, Field(min_length=1, max_length=2_000)] = Field(description="The URL of the receiver.")
    events: list[EventType] | None = Field(
        default=None,
        min_length=1,
        max_length=10,
        description="The types of the events. Default: all types for an operator; all types except dead letters for "
        "other callers.",
    )
    teams: list[TeamName] | None = Field(
        default=None, min_length=1, max_length=100, description="The teams whose events are sent. Default: all teams."
    )


class RotateRequest(Body):
    """A change of the secret."""

    overlap_hours: Annotated[float, Field(ge=0, le=720, allow_inf_nan=False)] = Field(
        default=24.0, description="Hours during which deliveries are also signed with the present secret."
    )


class WebhookView(BaseModel):
    """An endpoint."""

    id: str = Field(description="The id.")
    url: str = Field(description="The URL of the receiver.")
    caller: str | None = Field(
        default=None, description="The caller whose workflows the events are about; null for all callers."
    )
    events: list[str] = Field(description="The types of the events.")
    teams: list[str] | None = Field(default=None, description="The teams; null for all teams.")
    created_at: AwareDatetime = Field(description="Time of the creation. Earlier events are not sent.")
    disabled_at: AwareDatetime | None = Field(
        default=None, description="Time at which the endpoint was disabled. No event is sent after this time."
    )
    disabled_reason: str = Field(description="The reason why the endpoint was disabled.")

    @classmethod
    def of(cls, endpoint: Endpoint) -> WebhookView:
        """Return the view of an endpoint.

        Args:
            endpoint: The endpoint.
        """
        return cls(**endpoint.model_dump(include=set(WebhookView.model_fields)))


class NewWebhookView(WebhookView):
    """A new endpoint, or an endpoint with a new secret."""

    secret: str = Field(description="The secret. Store the secret, because no later response contains it.")


class WebhookPage(BaseModel):
    """The endpoints, oldest first."""

    webhooks: list[WebhookView] = Field(description="The endpoints.")


class DeliveryView(BaseModel):
    """A delivery after its newest attempt."""

    event: str = Field(description="The id of the event: the header `webhook-id`.")
    type: str = Field(description="The type of the event.")
    workflow_id: str | None = Field(default=None, description="The workflow, if there is one.")
    status: DeliveryStatus = Field(description="The status.")
    attempts: int = Field(
        description="Number of attempts since the event, or since the newest request to send the event again."
    )
    code: int | None = Field(default=None, description="The status code of the newest response.")
    error: str = Field(description="The error of the newest attempt.")
    at: AwareDatetime = Field(description="Time of the newest attempt.")
    next_at: AwareDatetime | None = Field(default=None, description="Time of the next attempt.")

    @classmethod
    def of(cls, state: DeliveryState) -> DeliveryView:
        """Return the view of a delivery.

        Args:
            state: The delivery.
        """
        return cls(**state.model_dump(include=set(cls.model_fields)))


class DeliveryPage(BaseModel):
    """Deliveries, the newest change first."""

    deliveries: list[DeliveryView] = Field(description="The deliveries.")


@router.post("", status_code=201, summary="Create a webhook", responses=problems(409))
async def create_webhook(body: WebhookRequest, context: ContextArg, caller: CallerArg) -> NewWebhookView:
    """Create an endpoint, and return its secret once. An endpoint of an operator gets the events of all callers."""
    for team in body.teams or ():
        caller.require_team(team)
    context.charge_change(caller)
    settings = context.settings
    try:
        made = await (await _store(context)).create(
            body.url,
            events=body.events or (EVENT_TYPES if caller.operator else CALLER_EVENT_TYPES),
            teams=body.teams,
            plain_http=settings.webhook_private_networks,
            caller=_owner(caller),
            bounds=CallerBounds(settings.gateway_webhooks, settings.gateway_all_webhooks),
        )
    except EndpointLimitError as error:
        raise ProblemError(409, error.kind, str(error)) from None
    except ConfigurationError as error:
        raise ProblemError(422, "invalid_webhook", str(error)) from None
    return NewWebhookView(**WebhookView.of(made.endpoint).model_dump(), secret=made.secret)


@router.get("", summary="List webhooks", responses=problems())
async def list_webhooks(context: ContextArg, caller: CallerArg) -> WebhookPage:
    """List your endpoints, the oldest first. An operator sees the endpoints of all callers."""
    found = await (await _store(context)).list()
    shown = [each for each in found if caller.operator or each.caller == caller.name]
    return WebhookPage(webhooks=[WebhookView.of(each) for each in shown])


@router.get("/{webhook_id}", summary="Read a webhook", responses=problems(404))
async def get_webhook(webhook_id: EndpointPath, context: ContextArg, caller: CallerArg) -> WebhookView:
    """Read an endpoint, without its secrets."""
    return WebhookView.of(await (await _store(context)).get(webhook_id, caller=_owner(caller)))


@router.post("/{webhook_id}/rotate", summary="Change the secret of a webhook", responses=problems(404, 409))
async def rotate_webhook(
    webhook_id: EndpointPath, body: RotateRequest, context: ContextArg, caller: CallerArg
) -> NewWebhookView:
    """Make a new secret, and return the secret once."""
    store = await _store_of(context, caller, webhook_id)
    context.charge_change(caller)
    made = await store.rotate(webhook_id, overlap=timedelta(hours=body.overlap_hours))
    return NewWebhookView(**WebhookView.of(made.endpoint).model_dump(), secret=made.secret)


@router.post("/{webhook_id}/disable", summary="Disable a webhook", responses=problems(404, 409))
async def disable_webhook(webhook_id: EndpointPath, context: ContextArg, caller: CallerArg) -> WebhookView:
    """Stop sending events to an endpoint."""
    store = await _store_of(context, caller, webhook_id)
    return WebhookView.of(await store.disable(webhook_id, f"disabled by {caller.name}"))


@router.post("/{webhook_id}/enable", summary="Enable a webhook", responses=problems(404, 409))
async def enable_webhook(webhook_id: EndpointPath, context: ContextArg, caller: CallerArg) -> WebhookView:
    """Send events to an endpoint again."""
    return WebhookView.of(await (await _store_of(context, caller, webhook_id)).enable(webhook_id))


@router.delete("/{webhook_id}", status_code=204, summary="Delete a webhook", responses=problems(404))
async def delete_webhook(webhook_id: EndpointPath, context: ContextArg, caller: CallerArg) -> None:
    """Delete an endpoint and its secrets."""
    await (await _store_of(context, caller, webhook_id)).delete(webhook_id)


@router.get("/{webhook_id}/deliveries", summary="List deliveries", responses=problems(404))
async def list_webhook_deliveries(
    webhook_id: EndpointPath,
    context: ContextArg,
    caller: CallerArg,
    status: Annotated[DeliveryStatus | None, Query(description="The status. Default: any status.")] = None,
    limit: Annotated[int, Query(ge=1, le=1_000, description="The greatest number of deliveries.")] = 100,
) -> DeliveryPage:
    """List the deliveries of an endpoint, the newest change first. A delivery is listed after its first attempt."""
    await _store_of(context, caller, webhook_id)
    client = context.client
    found = await list_deliveries(client.bus, client.subjects, endpoint=webhook_id, status=status, limit=limit)
    return DeliveryPage(deliveries=[DeliveryView.of(each) for each in found])


@router.post("/{webhook_id}/deliveries/{event}/resend", status_code=202, summary="Send again", responses=problems(404))
async def resend_webhook_delivery(
    webhook_id: EndpointPath,
    event: Annotated[str, Path(pattern=TOKEN_PATTERN, description="The id of the event.")],
    context: ContextArg,
    caller: CallerArg,
) -> DeliveryView:
    """Request that an event is sent to an endpoint again, with the same id and body."""
    await _store_of(context, caller, webhook_id)
    client = context.client
    state = await read_delivery(client.bus, client.subjects, webhook_id, event)
    await resend_delivery(client.bus, client.subjects, state)
    return DeliveryView.of(state)


def _owner(caller: Caller) -> str | None:
    """Return the owner of the endpoints that a caller may manage; None for an operator, who may manage all of them."""
    return None if caller.operator else caller.name


async def _store_of(context: Context, caller: Caller, id: str) -> EndpointStore:
    """Return the store of endpoints, if the caller may manage the endpoint.

    Raises:
        NotFoundError: There is no such endpoint, or the endpoint belongs to a different caller.
    """
    store = await _store(context)
    await store.get(id, caller=_owner(caller))
    return store


async def _store(context: Context) -> EndpointStore:
    return await EndpointStore.open(context.client.bus, context.client.subjects)
