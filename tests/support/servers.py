"""Close servers on loopback together with the connections that they have accepted."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

__all__ = ["close_server", "stop_accepting"]

_ACCEPT_TURNS = 10  # turns of the loop; asyncio needs three from the acceptance of a connection to its handler


async def stop_accepting(server: asyncio.Server) -> None:
    """Accept no more connections, and return when each accepted connection has its handler.

    A server that is closed between the acceptance of a connection and the start of its handler leaves the connection
    open. Then a later test, during which the connection is collected, fails by a `ResourceWarning`.
    """
    loop = asyncio.get_running_loop()
    for each in server.sockets:
        loop.remove_reader(each.fileno())
    for _ in range(_ACCEPT_TURNS):
        await asyncio.sleep(0)


async def close_server(server: asyncio.Server, handlers: Collection[asyncio.Task[Any]]) -> None:
    """Close a server, and cancel the handlers of its connections, which `handlers` contains while they run."""
    await stop_accepting(server)
    server.close()
    running = list(handlers)
    for handler in running:
        handler.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await asyncio.sleep(0)  # the closed connections end in the next turn
