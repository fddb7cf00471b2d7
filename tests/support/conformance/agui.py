"""Run the official client of AG-UI under Node against a gateway with the teams of `support.agui_teams`."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path

from pointsman.settings import Settings
from support import factory
from support.agui_teams import AGENTS, TEAMS
from support.conformance.npm import PACKAGES, end_process
from support.gateway import served_gateway

__all__ = ["run"]

_SCRIPT = Path(__file__).with_name("agui.mjs")
_TIMEOUT_S = 300.0


async def run(settings: Settings, environment: Mapping[str, str]) -> bool:
    """Run the checks of the script, which prints the result of each.

    Args:
        settings: The settings of the broker.
        environment: The environment with Node.

    Returns:
        True if a check failed.
    """
    script = shutil.copy(_SCRIPT, PACKAGES)  # Node looks for packages beside the script
    async with factory.team(TEAMS, AGENTS, on=settings), served_gateway(settings) as address:
        process = await asyncio.create_subprocess_exec("node", script, address, env=environment)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await process.wait() != 0
        finally:
            await end_process(process)
