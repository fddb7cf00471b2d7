"""The commands for webhooks, which run the service, manage endpoints, list deliveries and send deliveries again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, NamedTuple, get_args

import typer

from pointsman import app
from pointsman.cli.arguments import Json, Namespace, Url, WithParent
from pointsman.cli.render.output import Code, console, print_json, print_list, print_table
from pointsman.cli.support.session import Session, broker_command, session, settings_for
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

if TYPE_CHECKING:
    from rich.table import Table

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
_MAX_RESENT = 1_000  # largest number of deliveries that one command sends again


def run(url: Url = None, namespace: Namespace = None, with_parent: WithParent = False) -> Code:
    """Deliver events to the endpoints until SIGTERM or Ctrl-C.

    Several processes of this service may run. Each delivery is then sent by one of them.

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
        typer.Option(
            metavar="TYPE",
            help=f"A type of events to send: {', '.join(EVENT_TYPES)}. May be repeated. Default: all types.",
        ),
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
        async with _open(partial(session, url, namespace), create=True) as (_, store):
            made = await store.create(address, events=events, teams=team, plain_http=plain_http)
        if json:
            print_json({**_shown(made.endpoint), "secret": made.secret})
        else:
            print(f"{made.endpoint.id} {made.secret}")
        return Code.OK

    return asyncio.run(change())


@broker_command
async def list_(session: Session, json: Json = False) -> None:
    """List the endpoints, oldest first."""
    async with _open(session) as (_, store):
        found = await store.list()
    documents = [_shown(each) for each in found]
    print_list(documents, lambda _: _endpoint_table(found), "There is no endpoint.", json=json)


@broker_command
async def show(session: Session, id: _Id, json: Json = False) -> None:
    """Show an endpoint with its newest deliveries."""
    async with _open(session) as (client, store):
        endpoint = await store.get(id)
        newest = await list_deliveries(client.bus, client.subjects, endpoint=id, limit=20)
    if json:
        print_json({**_shown(endpoint), "deliveries": [each.model_dump(mode="json") for each in newest]})
        return
    print_table(console(), _endpoint_table([endpoint]))
    if endpoint.disabled_at is not None:
        print(f"Disabled {endpoint.disabled_at:%Y-%m-%d %H:%M}: {endpoint.disabled_reason}")
    if newest:
        print_table(console(), _delivery_table(newest))


@broker_command
async def rotate(
    session: Session,
    id: _Id,
    overlap: Annotated[
        float,
        typer.Option(min=0, max=720, help="Number of hours for which deliveries are also signed with the old secret."),
    ] = 24.0,
    json: Json = False,
) -> None:
    """Give an endpoint a new secret and print the secret once."""
    async with _open(session) as (_, store):
        made = await store.rotate(id, overlap=timedelta(hours=overlap))
    print_json({"id": id, "secret": made.secret}) if json else print(made.secret)


@broker_command
async def disable(session: Session, id: _Id, json: Json = False) -> None:
    """Stop sending events to an endpoint. New events are not stored."""
    async with _open(session) as (_, store):
        endpoint = await store.disable(id, "disabled by a command")
    print_json(_shown(endpoint)) if json else print(f"The endpoint {id} is disabled.")


@broker_command
async def enable(session: Session, id: _Id, json: Json = False) -> None:
    """Send events to an endpoint again."""
    async with _open(session) as (_, store):
        endpoint = await store.enable(id)
    print_json(_shown(endpoint)) if json else print(f"The endpoint {id} is enabled.")


@broker_command
async def delete(session: Session, id: _Id, json: Json = False) -> None:
    """Delete an endpoint and its secrets."""
    async with _open(session) as (_, store):
        await store.delete(id)
    print_json({"id": id, "deleted": True}) if json else print(f"The endpoint {id} is deleted.")


@broker_command
async def deliveries(
    session: Session,
    id: Annotated[
        str | None, typer.Argument(help="List only deliveries to this endpoint. Default: to all.", show_default=False)
    ] = None,
    status: _Status = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="The largest number of deliveries.")] = 100,
    json: Json = False,
) -> None:
    """List deliveries that were tried, most recently changed first."""
    chosen = _delivery_status(status)
    async with _open(session) as (client, _):
        found = await list_deliveries(client.bus, client.subjects, endpoint=id, status=chosen, limit=limit)
    documents = [each.model_dump(mode="json") for each in found]
    print_list(documents, lambda _: _delivery_table(found), "There is no delivery.", json=json)


@broker_command
async def resend(
    session: Session,
    id: _Id,
    events: Annotated[
        list[str] | None, typer.Argument(metavar="[EVENT]...", help="Ids of events.", show_default=False)
    ] = None,
    status: _Status = None,
    json: Json = False,
) -> None:
    """Send deliveries again, selected by event or by status.

    Raises:
        ConfigurationError: Neither an event nor a status is given.
    """
    if not events and status is None:
        raise ConfigurationError("no delivery is named; give the ids of events, or --status failed")
    chosen = _delivery_status(status)
    async with _open(session) as (client, store):
        await store.get(id)
        if events:
            found: Sequence[DeliveryState] = [
                await read_delivery(client.bus, client.subjects, id, each) for each in events
            ]
        else:
            found = await list_deliveries(client.bus, client.subjects, endpoint=id, status=chosen, limit=_MAX_RESENT)
        for each in found:
            await resend_delivery(client.bus, client.subjects, each)
    if json:
        print_json({"id": id, "resent": [each.event for each in found]})
    else:
        print(f"Deliveries that are sent again: {len(found)}.")


class _Opened(NamedTuple):
    client: Client
    store: EndpointStore


@asynccontextmanager
async def _open(session: Session, *, create: bool = False) -> AsyncIterator[_Opened]:
    async with session(create=create) as client:
        yield _Opened(client, await EndpointStore.open(client.bus, client.subjects))


def _event_type(text: str) -> EventType:
    for each in EVENT_TYPES:
        if each == text:
            return each
    raise ConfigurationError(f"{text!r} is not a type of event; choose from: {', '.join(EVENT_TYPES)}")


def _delivery_status(text: str | None) -> DeliveryStatus | None:
    found: DeliveryStatus
    for found in get_args(DeliveryStatus):
        if found == text:
            return found
    if text is None:
        return None
    raise ConfigurationError(f"{text!r} is not a status; choose from: {', '.join(get_args(DeliveryStatus))}")


def _shown(endpoint: Endpoint) -> dict[str, object]:
    return endpoint.model_dump(mode="json")


def _endpoint_table(endpoints: Sequence[Endpoint]) -> Table:
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
    return table


def _delivery_table(found: Sequence[DeliveryState]) -> Table:
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
    return table
