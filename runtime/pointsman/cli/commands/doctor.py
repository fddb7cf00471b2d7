"""The command doctor, which runs the checks and prints the findings."""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated

import typer
from rich.text import Text

from pointsman.app import load_team
from pointsman.cli.arguments import Json, Namespace, Url
from pointsman.cli.render.output import Code, console, one_line, print_event, print_hint, print_json
from pointsman.cli.support.checks import run_checks
from pointsman.cli.support.session import settings_for
from pointsman.errors import ConfigurationError
from pointsman.grants.permissions import GrantRole
from pointsman_schemas.ids import TOKEN_PATTERN
from pointsman_schemas.team import Team

__all__ = ["doctor"]

_NAME_WIDTH = 13  # characters for the name of a check
_TEXT_COLUMN = 6 + _NAME_WIDTH  # characters before the text of a check: `ok` or `BAD`, and the name


def doctor(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[TEAM]",
            help="A team, as a name or module:name. The processes of the team are also checked. Default: no team.",
            show_default=False,
        ),
    ] = None,
    url: Url = None,
    namespace: Namespace = None,
    role: Annotated[
        GrantRole | None,
        typer.Option(
            help="Check that the user of this process has the rights of this role. Default: no check, except if "
            "POINTSMAN_INBOX_PREFIX belongs to a grant. Then the role with the fewest missing rights is checked, if "
            "less than half of its rights are missing.",
            show_default=False,
        ),
    ] = None,
    agent: Annotated[
        list[str] | None,
        typer.Option("--agent", metavar="AGENT", help="With --role worker: an agent of the worker. May be repeated."),
    ] = None,
    json: Json = False,
) -> Code:
    """Check the broker, the agents and the configuration.

    The command prints advice for each problem, and one line for each missing right of the role. The exit code is 1 if
    there is a problem.

    Returns:
        The exit code.
    """
    settings = settings_for(url, namespace, log_level="error")
    team = _resolve_team(target) if target else None

    async def run() -> Code:
        terminal, healthy = console(), True
        async with aclosing(
            run_checks(settings, team, role=role, agents=agent or [])
        ) as checks:  # closes the connection even if a pipe is closed
            async for check in checks:
                healthy = healthy and check.ok
                if json:
                    print_json(replace(check, advice="") if check.ok else check)
                    continue
                prefix = Text("ok   " if check.ok else "BAD  ", style="green" if check.ok else "red")
                prefix.append(f"{check.name:<{_NAME_WIDTH}} ", style="bold")
                print_event(terminal, prefix, Text(one_line(check.finding, limit=400)), _TEXT_COLUMN, whole=True)
                if check.advice and not check.ok:
                    print_hint(terminal, f"{'':<{_TEXT_COLUMN}}{one_line(check.advice, limit=400)}", "yellow")
        return Code.OK if healthy else Code.FAILED

    return asyncio.run(run())


def _resolve_team(target: str) -> Team | str:
    """Return the team that the target defines, or the target itself if the target is a name.

    Raises:
        ConfigurationError: The target is a module that cannot be imported.
    """
    try:
        return load_team(target)
    except ConfigurationError as error:
        cause = error.__cause__
        missing = cause is None or (isinstance(cause, ModuleNotFoundError) and cause.name == target)
        if missing and re.fullmatch(TOKEN_PATTERN, target):
            return target
        raise
