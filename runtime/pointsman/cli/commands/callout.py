"""The command callout, which answers the broker's authorization requests until a signal."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from pointsman import app, telemetry
from pointsman.cli.arguments import Url, WithParent, exit_with_parent_if
from pointsman.cli.render.output import Code
from pointsman.errors import ConfigurationError
from pointsman.settings import Settings

__all__ = ["callout"]


def callout(
    policy: Annotated[Path, typer.Argument(metavar="FILE", help="The policy: API keys, and rules for OIDC tokens.")],
    folder: Annotated[
        Path, typer.Option("--folder", metavar="DIR", help="The folder that `pointsman grants init --callout` made.")
    ] = Path("grants"),
    url: Url = None,
    with_parent: WithParent = False,
) -> Code:
    """Admit users with API keys and OIDC tokens.

    The broker sends an authorization request for each connection whose user is not in the server's configuration.
    Several callout processes may run. Each process answers each request, and the broker uses the first answer.

    Returns:
        The exit code.

    Raises:
        ConfigurationError: A package is missing, the folder was made without `--callout`, or the policy is not valid.
    """
    if missing := [name for name in ("cryptography", "jwt") if find_spec(name) is None]:
        raise ConfigurationError(f"the callout needs {' and '.join(missing)}: pip install 'pointsman[grants]'")
    from pointsman.engine.process.signals import run_until_signal
    from pointsman.grants.callout import AuthCallout, serve_callout
    from pointsman.grants.folder import GrantFolder
    from pointsman.grants.policy import Policy

    exit_with_parent_if(with_parent)
    grants = GrantFolder(folder)
    if not grants.content.callout:
        raise ConfigurationError(
            f"{folder} was made without --callout; make a new folder with `pointsman grants init --callout`"
        )
    users = [user.name for user in grants.content.users]
    decisions = AuthCallout(Policy.load(policy), grants.callout_key(), grants.content.account, users)
    settings = Settings.load(url=url)

    async def main() -> int:
        observed = telemetry.setup("pointsman-callout", settings=settings)
        try:

            async def serve(stop: asyncio.Event) -> None:
                async with serve_callout(settings, decisions):
                    telemetry.get_logger(__name__).info("callout_started", policy=str(policy))
                    await stop.wait()

            return await run_until_signal(serve)
        finally:
            await observed.shutdown()

    return Code(app.run(main()))
