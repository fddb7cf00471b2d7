"""The command that manages the users of the dashboard."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pointsman.cli.arguments import Json
from pointsman.cli.render.output import Code, print_json, write_json
from pointsman.errors import ConfigurationError, ContractError
from pointsman.settings import Settings
from pointsman.util.files import expand, read_file
from pointsman.web.users import Role, UsersFile, new_token, token_digest
from pointsman_schemas.ids import token
from pointsman_schemas.strict_json import parse

__all__ = ["dashboard_user"]


def dashboard_user(
    name: Annotated[str, typer.Argument(help="Name of the user: letters, digits, _ and -.")],
    role: Annotated[
        Role, typer.Option(help="`look` sees all pages, `approve` also answers approvals, `operate` does everything.")
    ] = "look",
    file: Annotated[
        Path | None,
        typer.Option(help="The file of users. Default: POINTSMAN_DASHBOARD_USERS.", show_default=False),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the user.")] = False,
    json: Json = False,
) -> Code:
    """Add or remove a user of the dashboard.

    The token is printed once, because the file contains only the digest of the token. An existing user gets the role
    and a new token. The old token and all sessions of the user end when the dashboard restarts.

    Returns:
        The exit code.

    Raises:
        ConfigurationError: No file is named, the file is not a file of users, or the user to remove does not exist.
    """
    path = str(file) if file is not None else Settings.load().dashboard_users
    if path is None:
        raise ConfigurationError("no file of users is named; give --file FILE, or set POINTSMAN_DASHBOARD_USERS")
    token(name, "the user")
    users = _read(path)
    if remove:
        if name not in users.users:
            known = ", ".join(sorted(users.users)) or "none"
            raise ConfigurationError(f"{path} has no user {name!r}; its users are: {known}")
        rest = UsersFile(users={other: entry for other, entry in users.users.items() if other != name})
        write_json(str(expand(path)), rest.model_dump_json(indent=1) + "\n")
        print(f"Removed {name} from {path}. Restart the dashboard.")
        return Code.OK
    secret = new_token()
    write_json(str(expand(path)), users.with_user(name, role, token_digest(secret)).model_dump_json(indent=1) + "\n")
    if json:
        print_json({"name": name, "role": role, "token": secret, "file": path})
    else:
        print(f"Token of {name}, who has the role {role}: {secret}")
        print(f"The token is not shown again. Start the dashboard with POINTSMAN_DASHBOARD_USERS={path}.")
    return Code.OK


def _read(path: str) -> UsersFile:
    if not expand(path).exists():
        return UsersFile(users={})
    try:
        return parse(UsersFile, read_file("--file", path).encode())
    except ContractError as error:
        raise ConfigurationError(f"{path} is not a file of users: {error}; name another --file") from None
