"""Read the health of a process over HTTP."""

from __future__ import annotations

import asyncio
import json
from typing import Any

__all__ = ["ask"]


async def ask(port: int, path: str, method: str = "GET") -> tuple[int, Any]:
    """Return the status and the JSON object of a GET for `path`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head, _, body = (await asyncio.wait_for(reader.read(), 5)).partition(b"\r\n\r\n")
    finally:
        writer.close()
        await writer.wait_closed()
    return int(head.split()[1]), json.loads(body) if body else None
