"""Serve the team of the compliance kit of A2A, until the process is stopped.

Run it with `make serve-a2a-kit PORT=9999`. Then run the kit against the URL that the command prints.
"""

from __future__ import annotations

import asyncio
import sys

from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.settings import Settings
from support import factory
from support.a2a_teams import AGENTS, TEAMS
from support.gateway import http_client, served_gateway

__all__ = ["serve"]


async def serve(port: int) -> None:
    """Serve the team on loopback.

    The kit reuses message ids for different tasks, so this gateway starts a new task for each message.

    Args:
        port: The port; 0 for any free port.
    """
    broker = EmbeddedBroker()
    await broker.start()
    settings = Settings(
        url=broker.url, namespace="kit", heartbeat=0.5, gateway_a2a_reused_message_ids=True,
        webhook_private_networks=True,
    )  # fmt: skip
    try:
        async with (
            factory.team(TEAMS, AGENTS, on=settings),
            served_gateway(settings, gateway_port=port) as address,
        ):
            async with http_client(address) as http:  # load the SDK, which may exceed the kit's timeout of 5 s
                (await http.get("/a2a/kit/.well-known/agent-card.json")).raise_for_status()
            sys.stdout.write(f"The agent for the kit is at {address}/a2a/kit/1.0\n")
            sys.stdout.flush()
            await asyncio.Event().wait()
    finally:
        await broker.stop()


if __name__ == "__main__":
    try:
        asyncio.run(serve(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
    except KeyboardInterrupt:
        sys.exit(0)
