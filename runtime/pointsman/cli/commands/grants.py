"""The commands grants, which make users of the broker with the rights of a role, and change or revoke their secrets."""

from __future__ import annotations

import asyncio
import json as json_module
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from pointsman.cli.arguments import Json, Url
from pointsman.cli.render.output import Code, print_json
from pointsman.errors import ConfigurationError
from pointsman.grants.folder import GrantFolder
from pointsman.grants.permissions import ACTIONS, Grant, GrantRole, inbox_prefix, permissions
from pointsman.grants.server_config import permission_lines

__all__ = ["add", "init", "key", "list_", "push", "revoke", "rotate", "show"]

Folder = Annotated[Path, typer.Option("--folder", metavar="DIR", help="The folder of the grants.")]
_DEFAULT_FOLDER = Path("grants")
Role = Annotated[GrantRole, typer.Argument(help="The role.", show_default=False)]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The user.", show_default=False)]
Teams = Annotated[
    list[str] | None,
    typer.Option("--team", metavar="TEAM", help="A team of the user; '*' means all teams. May be repeated."),
]
Agents = Annotated[
    list[str] | None,
    typer.Option("--agent", metavar="AGENT", help="For the role worker: an agent of the user. May be repeated."),
]
Actions = Annotated[
    list[str] | None,
    typer.Option(
        "--action",
        metavar="ACTION",
        help="An action of the role that the user may take: cancel, approve, reject, replay, discard or import. "
        "May be repeated. Default: none.",
    ),
]
Namespaces = Annotated[
    list[str] | None,
    typer.Option("--namespace", metavar="NAME", help="A namespace of the tenant. May be repeated. Default: pointsman."),
]
OneNamespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        metavar="NAME",
        help="The namespace. Default: the first namespace of the tenant.",
        show_default=False,
    ),
]


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to make.")] = _DEFAULT_FOLDER,
    jwt: Annotated[bool, typer.Option("--jwt", help="Use an operator, JWTs and credentials files.")] = False,
    callout: Annotated[
        bool, typer.Option("--callout", help="Use `pointsman callout` for API keys and OIDC tokens.")
    ] = False,
    resolver: Annotated[
        str, typer.Option(metavar="DIR", help="With --jwt: the folder in which a server stores the accounts.")
    ] = "jwt",
    account: Annotated[str, typer.Option(metavar="NAME", help="The account with the streams.")] = "POINTSMAN",
    namespace: Namespaces = None,
    json: Json = False,
) -> Code:
    """Make a folder for the grants of a tenant.

    Without --jwt, the folder gets users with passwords for a nats-server configuration.

    Returns:
        The exit code.
    """
    made = GrantFolder.create(
        folder,
        account=account,
        namespaces=namespace or ["pointsman"],
        jwt=jwt,
        callout=callout,
        resolver=resolver,
    )
    if json:
        print_json({"folder": str(folder), "server_file": str(made.server_file)})
    else:
        print(f"Made {folder}. Add this line to the configuration of nats-server: include {str(made.server_file)!r}")
        print("Next: `pointsman grants add provisioner NAME`, and a user for each process.")
    return Code.OK


def add(
    role: Role,
    name: Name,
    team: Teams = None,
    agent: Agents = None,
    action: Actions = None,
    namespace: OneNamespace = None,
    folder: Folder = _DEFAULT_FOLDER,
    json: Json = False,
) -> Code:
    """Add a user with the rights of a role.

    The files of the user contain the user's secret. Only the owner of these files can read them.

    Returns:
        The exit code.
    """
    grants = GrantFolder(folder)
    files = grants.add(_grant(role, name, team, agent, action), namespace)
    _report(grants, files, json=json)
    return Code.OK


def show(
    role: Role,
    name: Name,
    team: Teams = None,
    agent: Agents = None,
    action: Actions = None,
    namespace: Annotated[str, typer.Option(metavar="NAME", help="The namespace.")] = "pointsman",
    json: Json = False,
) -> Code:
    """Print the rights of a role as the permissions of a user. Nothing is written.

    Returns:
        The exit code.
    """
    grant = _grant(role, name, team, agent, action)
    rights = permissions(grant, namespace)
    if json:
        content = {"publish": rights.publish, "subscribe": rights.subscribe, "inbox_prefix": inbox_prefix(grant)}
        print(json_module.dumps(content))
    else:
        print("permissions: {", *(f"  {line}" for line in permission_lines(rights)), "}", sep="\n")
    return Code.OK


def list_(folder: Folder = _DEFAULT_FOLDER, json: Json = False) -> Code:
    """List the users.

    Returns:
        The exit code.
    """
    for user in GrantFolder(folder).content.users:
        if json:
            print_json(
                user.model_dump(mode="json", include={"name", "role", "namespace", "teams", "agents", "actions"})
            )
            continue
        limits = [("team", user.teams), ("agent", user.agents), ("action", user.actions)]
        shown = [f"{kind} {' '.join(values)}" for kind, values in limits if values]
        print("  ".join([user.name, user.role, user.namespace, *shown]))
    return Code.OK


def rotate(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The user.", show_default=False)] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Give each user a new secret. If the folder uses JWTs, also replace the signing keys of the roles.",
        ),
    ] = False,
    folder: Folder = _DEFAULT_FOLDER,
    json: Json = False,
) -> Code:
    """Give a user a new secret. The server refuses the old secret after the server has read the change.

    Returns:
        The exit code.

    Raises:
        ConfigurationError: Neither a user nor --all is given, or both.
    """
    if (name is None) is not everything:
        raise ConfigurationError("give the name of a user, or --all")
    grants = GrantFolder(folder)
    files = grants.rotate_all() if name is None else grants.rotate(name)
    _report(grants, files, json=json)
    return Code.OK


def revoke(name: Name, folder: Folder = _DEFAULT_FOLDER, json: Json = False) -> Code:
    """Remove a user. The server refuses the user after the server has read the change.

    Returns:
        The exit code.
    """
    grants = GrantFolder(folder)
    grants.revoke(name)
    _report(grants, [], json=json)
    return Code.OK


def push(url: Url = None, folder: Folder = _DEFAULT_FOLDER, json: Json = False) -> Code:
    """Send the accounts of a folder with JWTs to the running servers.

    Returns:
        The exit code.

    Raises:
        ConfigurationError: The folder does not use JWTs, so there are no accounts to send.
    """
    from pointsman.grants.push import push_accounts
    from pointsman.settings import Settings

    grants = GrantFolder(folder)
    if grants.content.mode != "jwt":
        raise ConfigurationError(
            f"{folder} does not use JWTs: its users are in a configuration file of the server; reload the server "
            "instead: nats-server --signal reload"
        )
    settings = Settings.load(url=url)
    count = asyncio.run(push_accounts(grants, settings.url))
    print_json({"accounts": count}) if json else print(f"The server at {settings.servers} has {count} new accounts.")
    return Code.OK


def key(json: Json = False) -> Code:
    """Make an API key for `pointsman callout`, and print the key and its hash.

    Returns:
        The exit code.
    """
    from pointsman.grants.policy import new_api_key

    made, digest = new_api_key()
    if json:
        print_json({"key": made, "sha256": digest})
    else:
        print(f"Key, for POINTSMAN_TOKEN of the user: {made}")
        print(f'Hash, for the policy file: sha256 = "{digest}"')
    return Code.OK


def _grant(
    role: GrantRole, name: str, team: list[str] | None, agent: list[str] | None, action: list[str] | None
) -> Grant:
    chosen = tuple(action or ())
    if "all" in chosen:
        chosen = ACTIONS.get(role, ())
    return Grant(role, name, tuple(team or ()), tuple(agent or ()), chosen)


def _report(grants: GrantFolder, files: Sequence[Path], *, json: bool) -> None:
    if json:
        print_json({"files": [str(path) for path in files], "server_file": str(grants.server_file)})
        return
    for path in files:
        print(f"Wrote {path}")
    if grants.content.mode == "config":
        print(f"Wrote {grants.server_file}. Reload the server: nats-server --signal reload")
    else:
        print(f"Wrote {grants.server_file}. Send the accounts to the servers: pointsman grants push")
