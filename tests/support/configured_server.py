"""Start a nats-server on loopback with a given configuration, such as TLS, accounts, permissions or leaf nodes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from support.cluster import free_ports, nats_server

__all__ = ["configured_server", "pid_of"]

_START_S = 20.0
_STOP_S = 10.0


@asynccontextmanager
async def configured_server(
    folder: Path, config: str, *, port: int | None = None, jetstream: str = "{}", name: str = "server"
) -> AsyncIterator[int]:
    """Run a server with `config` and yield its port. The server stops when the block ends.

    Args:
        folder: An existing folder for the store, the configuration and the log.
        config: Lines of a nats-server configuration, without `listen` and `jetstream`.
        port: The port to listen on; by default a free one.
        jetstream: The block `jetstream` without its store, or an empty string for a server without JetStream.
        name: Name of the server and of its files.
    """
    port = port or free_ports(1)[0]
    file, log = folder / f"{name}.conf", folder / f"{name}.log"
    store = f"jetstream {{ store_dir: {str(folder / name)!r}, {jetstream.strip().strip('{}')} }}" if jetstream else ""
    file.write_text(f"server_name: {name}\nlisten: 127.0.0.1:{port}\n{store}\n{config}\n")
    log.write_text("")
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            nats_server(), "-c", str(file), stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output
        )
    (folder / f"{name}.pid").write_text(str(process.pid))
    try:
        async with asyncio.timeout(_START_S):
            while not re.search(r"Server is ready", log.read_text(errors="replace")):
                if process.returncode is not None:
                    raise RuntimeError(f"nats-server ended: {log.read_text(errors='replace')[-2000:]}")
                await asyncio.sleep(0.01)
        yield port
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()


def pid_of(folder: Path, name: str = "server") -> int:
    """Return the process id of a server that runs in `folder`."""
    return int((folder / f"{name}.pid").read_text())
