"""Create and change endpoints of webhooks over HTTP, and resend deliveries, with the same calls as the commands."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import Response

from pointsman.client.client import Client
from pointsman.errors import ConfigurationError, ContractError, NotFoundError
from pointsman.web.auth import actor_of
from pointsman.web.responses import json_response, read_json_object
from pointsman.webhooks.deliveries import DeliveryStatus, list_deliveries, read_delivery, resend_delivery
from pointsman.webhooks.endpoint_store import EndpointLimitError, EndpointStore
from pointsman.webhooks.endpoints import EVENT_TYPES, EventType
from pointsman_schemas.ids import token

__all__ = ["WebhookActions"]

_MAX_RESENT = 1_000  # largest number of deliveries that one action sends again
_OVERLAP = timedelta(hours=24)  # time during which deliveries are also signed with the previous secret


class WebhookActions:
    """The actions of the page of webhooks.

    Args:
        client: The client of the dashboard.
        private_networks: Also accept URLs with `http`, because the webhook services may send to private networks.
        refresh: Function that reads the endpoints again. Called after an action.
    """

    def __init__(self, client: Client, *, private_networks: bool, refresh: Callable[[], None]) -> None:
        self._client = client
        self._plain_http = private_networks
        self._refresh = refresh

    async def create(self, request: Request) -> Response:
        """Create an endpoint.

        Returns:
            The id and the secret. The secret is returned only here.

        Raises:
            ContractError: The URL, an event or a team is not valid.
        """
        given = await read_json_object(request, ("url", "events", "teams"))
        events: Collection[EventType] = [_event(each) for each in _texts(given.get("events"), "events")] or EVENT_TYPES
        teams = _texts(given.get("teams"), "teams") or None
        try:
            made = await (await self._store()).create(
                str(given.get("url", "")), events=events, teams=teams, plain_http=self._plain_http
            )
        except EndpointLimitError as error:
            return json_response({"error": str(error), "kind": error.kind}, 409)
        except ConfigurationError as error:
            raise ContractError(str(error)) from None
        self._refresh()
        return json_response({"id": made.endpoint.id, "secret": made.secret})

    async def act(self, request: Request) -> Response:
        """Enable, disable or delete an endpoint, or make a new secret for the endpoint.

        Returns:
            The id; with a new secret, also the secret, which is returned only here.

        Raises:
            NotFoundError: There is no such action, or no such endpoint.
        """
        await read_json_object(request)
        id, store = token(request.path_params["id"], "endpoint"), await self._store()
        answer: dict[str, Any] = {"id": id}
        match request.path_params["action"]:
            case "enable":
                await store.enable(id)
            case "disable":
                await store.disable(id, f"disabled by {actor_of(request)}")
            case "rotate":
                answer["secret"] = (await store.rotate(id, overlap=_OVERLAP)).secret
            case "delete":
                await store.delete(id)
            case other:
                raise NotFoundError(f"{other!r} is not an action; expected enable, disable, rotate or delete")
        self._refresh()
        return json_response(answer)

    async def resend(self, request: Request) -> Response:
        """Send one delivery of an endpoint again, or all deliveries with a status.

        Returns:
            The number of deliveries that are sent again.

        Raises:
            ContractError: The body has neither an event nor a known status.
        """
        given = await read_json_object(request, ("event", "status"))
        id, bus, subjects = token(request.path_params["id"], "endpoint"), self._client.bus, self._client.subjects
        await (await self._store()).get(id)
        if (event := given.get("event")) is not None:
            found = [await read_delivery(bus, subjects, id, token(str(event), "event"))]
        else:
            status = _status(given.get("status"))
            found = list(await list_deliveries(bus, subjects, endpoint=id, status=status, limit=_MAX_RESENT))
        for each in found:
            await resend_delivery(bus, subjects, each)
        return json_response({"resent": len(found)})

    async def _store(self) -> EndpointStore:
        return await EndpointStore.open(self._client.bus, self._client.subjects)


def _texts(given: Any, name: str) -> Collection[str]:
    if given is None:
        return ()
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given) or len(given) > 100:
        raise ContractError(f"`{name}` is not a list of at most 100 texts")
    return given


def _event(given: str) -> EventType:
    for each in EVENT_TYPES:
        if each == given:
            return each
    raise ContractError(f"{given[:64]!r} is not a type of event; expected {', '.join(EVENT_TYPES)}")


def _status(given: Any) -> DeliveryStatus:
    found: DeliveryStatus
    for found in get_args(DeliveryStatus):
        if found == given:
            return found
    expected = ", ".join(get_args(DeliveryStatus))
    raise ContractError(f"the body has no `event`, and its `status` is not one of {expected}")
