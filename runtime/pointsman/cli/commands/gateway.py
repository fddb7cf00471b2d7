"""The commands of the gateway: gateway, and gateway keys create, list and revoke."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from pointsman import app
from pointsman.cli.arguments import Json, Namespace, Url, WithParent, address_option, exit_with_parent_if, port_option
from pointsman.cli.render.output import Code, print_json, print_list
from pointsman.cli.support.session import Session, broker_command
from pointsman.errors import ConfigurationError
from pointsman.settings import Settings

if TYPE_CHECKING:
    from rich.table import Table

    from pointsman.gateway.keys import ApiKey, KeyStore

__all__ = ["create", "gateway", "list_", "revoke"]


def gateway(
    host: Annotated[str | None, address_option("POINTSMAN_GATEWAY_HOST")] = None,
    port: Annotated[int | None, port_option("POINTSMAN_GATEWAY_PORT, or 8410")] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Host name that requests without a key may use, in addition to IP addresses and localhost. May be "
            "repeated.",
        ),
    ] = None,
    url: Url = None,
    namespace: Namespace = None,
    with_parent: WithParent = False,
) -> Code:
    """Serve teams over HTTP until Ctrl-C. This is the default command.

    On an address that other hosts can reach, each request needs an API key (`pointsman gateway keys create`) or a token
    of the issuer in POINTSMAN_GATEWAY_OIDC_ISSUER.

    Returns:
        The exit code.
    """
    exit_with_parent_if(with_parent)
    settings = Settings.load(url=url, namespace=namespace, gateway_host=host, gateway_port=port)

    def print_address(address: str) -> None:
        print(f"Gateway on {address}  (Ctrl-C stops it)", flush=True)

    return Code(app.run(app.gateway(settings, hosts=allow_host or [], ready=print_address)))


@broker_command
async def create(
    session: Session,
    caller: Annotated[str, typer.Argument(help="The caller: a name of 1 to 64 letters, digits, - and _.")],
    team: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A team that the caller may use. May be repeated. Default: all teams."),
    ] = None,
    operator: Annotated[
        bool, typer.Option("--operator", help="Allow the caller to read all workflows and the dead letters.")
    ] = False,
    requests: Annotated[
        int | None,
        typer.Option(
            min=1, help="Largest number of requests in a minute. Default: the gateway's limit.", show_default=False
        ),
    ] = None,
    running: Annotated[
        int | None,
        typer.Option(
            min=1, help="Largest number of running workflows. Default: the gateway's limit.", show_default=False
        ),
    ] = None,
    calls: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Largest number of model calls in a day (UTC). Default: the gateway's limit.",
            show_default=False,
        ),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            min=0, help="Largest number of tokens in a day (UTC). Default: the gateway's limit.", show_default=False
        ),
    ] = None,
    cost: Annotated[
        float | None,
        typer.Option(
            min=0, help="Largest cost in a day (UTC), in US dollars. Default: the gateway's limit.", show_default=False
        ),
    ] = None,
    days: Annotated[
        float | None,
        typer.Option(min=0.001, max=36_500, help="Days until the key expires. Default: never.", show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """Create an API key and print it once.

    The broker stores a digest of the key, so the key cannot be read again.
    """
    async with _store(session) as store:
        from pointsman.index.callers import CallerLimits

        made = await store.create(
            caller,
            teams=team,
            operator=operator,
            limits=CallerLimits(
                requests_per_minute=requests,
                running=running,
                daily_calls=calls,
                daily_tokens=tokens,
                daily_cost=cost,
            ),
            expires_at=datetime.now(UTC) + timedelta(days=days) if days is not None else None,
        )
    if json:
        print_json({"id": made.key.id, "caller": caller, "key": made.text})
    else:
        print(made.text)


@broker_command
async def list_(session: Session, json: Json = False) -> None:
    """List the API keys, oldest first."""
    async with _store(session) as store:
        keys = await store.list()
    documents = [key.model_dump(mode="json", exclude={"digest"}) for key in keys]
    print_list(documents, lambda _: _key_table(keys), "There is no key.", json=json)


@broker_command
async def revoke(
    session: Session,
    id: Annotated[str, typer.Argument(help="The id that `pointsman gateway keys list` shows.")],
    json: Json = False,
) -> None:
    """Revoke an API key. Each gateway refuses the key as soon as it has read the change."""
    async with _store(session) as store:
        await store.revoke(id)
    print_json({"id": id, "revoked": True}) if json else print(f"The key {id} is revoked.")


@asynccontextmanager
async def _store(session: Session) -> AsyncIterator[KeyStore]:
    if not app.has_gateway():
        raise ConfigurationError("the gateway needs fastapi and pyjwt: pip install 'pointsman[gateway]'")
    from pointsman.gateway.keys import KeyStore

    async with session(create=True) as client:
        yield await KeyStore.open(client.bus, client.subjects)


def _key_table(keys: Sequence[ApiKey]) -> Table:
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for name in ("id", "caller", "teams", "operator", "created", "expires"):
        table.add_column(name)
    for key in keys:
        table.add_row(
            key.id,
            key.caller,
            "all" if key.teams is None else ", ".join(key.teams),
            "yes" if key.operator else "",
            f"{key.created_at:%Y-%m-%d %H:%M}",
            f"{key.expires_at:%Y-%m-%d %H:%M}" if key.expires_at else "never",
        )
    return table
