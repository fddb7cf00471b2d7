"""The commands of webhooks: run the service, manage endpoints, list deliveries and send them again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Annotated, NamedTuple, get_args

import typer

from pointsman import app
from pointsman.cli.arguments import Json, Namespace, Url, WithParent
from pointsman.cli.render.output import Code, console, print_json, print_table
from pointsman.cli.support.session import session, settings_for
from pointsman.client.client import Client
from pointsman.errors import ConfigurationError
from pointsman.settings import Settings
from pointsman.webhooks.deliveries import (
    DeliveryState,
    DeliveryStatus,
    list_deliveries,
    read_delivery,
    resend_delivery,
)
from pointsman.webhooks.endpoint_store import EndpointStore
from pointsman.webhooks.endpoints import EVENT_TYPES, Endpoint, EventType

__all__ = ["create", "delete", "deliveries", "disable", "enable", "list_", "resend", "rotate", "run", "show"]

_Id = Annotated[str, typer.Argument(help="The id that `pointsman webhooks list` shows.")]
_Status = Annotated[
    str | None,
    typer.Option(
        metavar="STATUS",
        help="Only deliveries with this status: delivered, retrying, failed or disabled. Default: all.",
        show_default=False,
    ),
]
_MAX_RESENT = 1_000  # deliveries that one command sends again


def run(url: Url = None, namespace: Namespace = None, with_parent: WithParent = False) -> Code:
    """Deliver events to the endpoints until SIGTERM or Ctrl-C.

    Several services share the deliveries.

    Returns:
        The exit code.
    """
    if with_parent:
        from pointsman.util.child_processes import exit_with_parent

        exit_with_parent()
    return Code(app.run(app.webhooks(Settings.load(url=url, namespace=namespace))))


def create(
    address: Annotated[str, typer.Argument(metavar="URL", help="The URL that receives the deliveries.")],
    event: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE", help=f"{', '.join(EVENT_TYPES)}. May be repeated. Default: all types."),
    ] = None,
    team: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A team whose events are sent. May be repeated. Default: all teams."),
    ] = None,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """Create an endpoint and print its secret once.

    Returns:
        The exit code.
    """
    events: list[EventType] = [_event_type(each) for each in event or EVENT_TYPES]
    plain_http = settings_for(url, namespace).webhook_private_networks

    async def change() -> Code:
        async with _open(url, namespace, create=True) as (_, store):
            made = await store.create(address, events=events, teams=team, plain_http=plain_http)
        if json:
            print_json({**_shown(made.endpoint), "secret": made.secret})
        else:
            print(f"{made.endpoint.id} {made.secret}")
        return Code.OK

    return asyncio.run(change())


def list_(url: Url = None, namespace: Namespace = None, json: Json = False) -> Code:
    """List the endpoints, oldest first.

    Returns:
        The exit code.
    """

    async def read() -> Code:
        async with _open(url, namespace) as (_, store):
            found = await store.list()
        if json:
            for each in found:
                print_json(_shown(each))
        elif found:
            _print_endpoints(found)
        else:
            print("There is no endpoint.")
        return Code.OK

    return asyncio.run(read())


def show(id: _Id, url: Url = None, namespace: Namespace = None, json: Json = False) -> Code:
    """Show an endpoint with its newest deliveries.

    Returns:
        The exit code.
    """

    async def read() -> Code:
        async with _open(url, namespace) as (client, store):
            endpoint = await store.get(id)
            newest = await list_deliveries(client.bus, client.subjects, endpoint=id, limit=20)
        if json:
            print_json({**_shown(endpoint), "deliveries": [each.model_dump(mode="json") for each in newest]})
            return Code.OK
        _print_endpoints([endpoint])
        if endpoint.disabled_at is not None:
            print(f"Disabled {endpoint.disabled_at:%Y-%m-%d %H:%M}: {endpoint.disabled_reason}")
        if newest:
            _print_deliveries(newest)
        return Code.OK

    return asyncio.run(read())


def rotate(
    id: _Id,
    overlap: Annotated[
        float, typer.Option(min=0, max=720, help="Hours during which the present secret also signs.")
    ] = 24.0,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """Give an endpoint a new secret and print the secret once.

    Returns:
        The exit code.
    """

    async def change() -> Code:
        async with _open(url, namespace) as (_, store):
            made = await store.rotate(id, overlap=timedelta(hours=overlap))
        print_json({"id": id, "secret": made.secret}) if json else print(made.secret)
        return Code.OK

    return asyncio.run(change())


def disable(id: _Id, url: Url = None, namespace: Namespace = None, json: Json = False) -> Code:
    """Send nothing more to an endpoint. Events are not kept for it.

    Returns:
        The exit code.
    """

    async def change() -> Code:
        async with _open(url, namespace) as (_, store):
            endpoint = await store.disable(id, "disabled by a command")
        print_json(_shown(endpoint)) if json else print(f"The endpoint {id} is disabled.")
        return Code.OK

    return asyncio.run(change())


def enable(id: _Id, url: Url = None, namespace: Namespace = None, json: Json = False) -> Code:
    """Send events to an endpoint again.

    Returns:
        The exit code.
    """

    async def change() -> Code:
        async with _open(url, namespace) as (_, store):
            endpoint = await store.enable(id)
        print_json(_shown(endpoint)) if json else print(f"The endpoint {id} is enabled.")
        return Code.OK

    return asyncio.run(change())


def delete(id: _Id, url: Url = None, namespace: Namespace = None, json: Json = False) -> Code:
    """Delete an endpoint and its secrets.

    Returns:
        The exit code.
    """

    async def change() -> Code:
        async with _open(url, namespace) as (_, store):
            await store.delete(id)
        print_json({"id": id, "deleted": True}) if json else print(f"The endpoint {id} is deleted.")
        return Code.OK

    return asyncio.run(change())


def deliveries(
    id: Annotated[
        str | None, typer.Argument(help="Only of this endpoint. Default: of all.", show_default=False)
    ] = None,
    status: _Status = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="The greatest number of deliveries.")] = 100,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """List deliveries with at least one attempt, the newest change first.

    Returns:
        The exit code.
    """
    chosen = _delivery_status(status)

    async def read() -> Code:
        async with _open(url, namespace) as (client, _):
            found = await list_deliveries(client.bus, client.subjects, endpoint=id, status=chosen, limit=limit)
        if json:
            for each in found:
                print_json(each.model_dump(mode="json"))
        elif found:
            _print_deliveries(found)
        else:
            print("There is no delivery.")
        return Code.OK

    return asyncio.run(read())


def resend(
    id: _Id,
    events: Annotated[
        list[str] | None, typer.Argument(metavar="[EVENT]...", help="Ids of events.", show_default=False)
    ] = None,
    status: _Status = None,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """Send deliveries again, by their events or by their status.

    Returns:
        The exit code.

    Raises:
        ConfigurationError: Neither an event nor a status is given.
    """
    if not events and status is None:
        raise ConfigurationError("no delivery is named; give the ids of events, or --status failed")
    chosen = _delivery_status(status)

    async def order() -> Code:
        async with _open(url, namespace) as (client, store):
            await store.get(id)
            if events:
                found: Sequence[DeliveryState] = [
                    await read_delivery(client.bus, client.subjects, id, each) for each in events
                ]
            else:
                found = await list_deliveries(
                    client.bus, client.subjects, endpoint=id, status=chosen, limit=_MAX_RESENT
                )
            for each in found:
                await resend_delivery(client.bus, client.subjects, each)
        if json:
            print_json({"id": id, "resent": [each.event for each in found]})
        else:
            print(f"Deliveries that are sent again: {len(found)}.")
        return Code.OK

    return asyncio.run(order())


class _Opened(NamedTuple):
    client: Client
    store: EndpointStore


@asynccontextmanager
async def _open(url: str | None, namespace: str | None, *, create: bool = False) -> AsyncIterator[_Opened]:
    async with session(url, namespace, create=create) as client:
        yield _Opened(client, await EndpointStore.open(client.bus, client.subjects))


def _event_type(text: str) -> EventType:
    for each in EVENT_TYPES:
        if each == text:
            return each
    raise ConfigurationError(f"{text!r} is no type of event; choose from: {', '.join(EVENT_TYPES)}")


def _delivery_status(text: str | None) -> DeliveryStatus | None:
    found: DeliveryStatus
    for found in get_args(DeliveryStatus):
        if found == text:
            return found
    if text is None:
        return None
    raise ConfigurationError(f"{text!r} is no status; choose from: {', '.join(get_args(DeliveryStatus))}")


def _shown(endpoint: Endpoint) -> dict[str, object]:
    return endpoint.model_dump(mode="json")


def _print_endpoints(endpoints: Sequence[Endpoint]) -> None:
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for name in ("id", "url", "caller", "events", "teams", "status", "created"):
        table.add_column(name)
    for each in endpoints:
        table.add_row(
            each.id,
            each.url,
            "all" if each.caller is None else each.caller,
            "all" if each.events == EVENT_TYPES else ", ".join(each.events),
            "all" if each.teams is None else ", ".join(each.teams),
            "enabled" if each.disabled_at is None else "disabled",
            f"{each.created_at:%Y-%m-%d %H:%M}",
        )
    print_table(console(), table)


def _print_deliveries(found: Sequence[DeliveryState]) -> None:
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for name in ("endpoint", "event", "type", "status", "attempts", "at", "next", "error"):
        table.add_column(name)
    for each in found:
        table.add_row(
            each.endpoint,
            each.event,
            each.type,
            each.status,
            str(each.attempts),
            f"{each.at:%Y-%m-%d %H:%M:%S}",
            f"{each.next_at:%Y-%m-%d %H:%M:%S}" if each.next_at else "",
            each.error,
        )
    print_table(console(), table)
