"""Run the official client of AG-UI under Node against a gateway with the teams of `support.agui_teams`.

The command needs Node on the path and the npm packages of `support/agui/package-lock.json` in the folder of its first
argument. Run it with `make conformance-agui`, which installs both.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.settings import Settings
from support import factory
from support.agui_teams import AGENTS, TEAMS
from support.gateway import served_gateway

__all__ = ["main"]

_SCRIPT = Path(__file__).with_name("agui") / "conformance.mjs"
_TIMEOUT_S = 300.0


async def main(folder: Path) -> int:
    """Run the checks of the script, which prints the result of each.

    Args:
        folder: The folder with the npm packages.

    Returns:
        The exit code of the script.
    """
    script = shutil.copy(_SCRIPT, folder)  # Node looks for packages beside the script
    broker = EmbeddedBroker()
    await broker.start()
    settings = Settings(url=broker.url, namespace="conformance", heartbeat=0.5)
    try:
        async with factory.team(TEAMS, AGENTS, on=settings), served_gateway(settings) as address:
            process = await asyncio.create_subprocess_exec("node", script, address)
            async with asyncio.timeout(_TIMEOUT_S):
                return await process.wait()
    finally:
        await broker.stop()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(Path(sys.argv[1]))))
