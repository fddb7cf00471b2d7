"""Compare a W1 over HTTP with the same W1 over NATS: `python -m benchmarks.gateway`.

Broker, supervisor, agents and gateway are processes. The two clients run in this process, in turns and one workflow at
a time, so both clients run under the same load of the machine.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import statistics
import tempfile
import time
from pathlib import Path
from time import perf_counter

from benchmarks.machine import Children
from benchmarks.real import RealSystem
from pointsman.bus.embedded_server import EmbeddedBroker

ROUNDS = 300
WARM_UP = 20
_START_TIMEOUT_S = 30.0


class RestClient:
    """A client that reuses one connection and waits for the end of each workflow."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)

    def submit(self, shape: str) -> None:
        """Run a workflow of this shape to its end."""
        body = json.dumps({"team": "bench", "input": shape})
        headers = {"content-type": "application/json", "prefer": "wait=60"}
        self._connection.request("POST", "/v1/workflows", body, headers)
        response = self._connection.getresponse()
        view = json.loads(response.read())
        if view.get("status") != "completed":
            raise RuntimeError(f"the gateway answered {response.status}: {view}")


async def main() -> None:
    """Print percentiles for HTTP and for NATS, and the median of the differences, in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        async with (
            EmbeddedBroker(Path(folder) / "broker") as broker,
            Children(Path(folder)) as children,
            RealSystem("gw", broker.url, children, {}).running() as system,
        ):
            await system.start("gateway", "gateway", "--port", "0")
            rest = RestClient(await asyncio.to_thread(_address, Path(folder) / "gw-gateway.log"))
            pid = children.pids["gw-gateway"]
            nats, over_http = [], []
            used = 0.0
            for number in range(WARM_UP + ROUNDS):
                if number == WARM_UP:
                    used = _cpu_ms(pid)
                began = perf_counter()
                workflow = await system.client.submit("bench", "W1")
                await workflow.outcome(60)
                between = perf_counter()
                await asyncio.to_thread(rest.submit, "W1")
                if number >= WARM_UP:
                    nats.append((between - began) * 1000)
                    over_http.append((perf_counter() - between) * 1000)
            used = _cpu_ms(pid) - used
    for name, times in (("NATS", nats), ("HTTP", over_http)):
        parts = statistics.quantiles(times, n=100)
        print(f"{name}: p5 {parts[4]:.2f} ms, p50 {parts[49]:.2f} ms, p99 {parts[98]:.2f} ms")
    paired = statistics.median(one - other for one, other in zip(over_http, nats, strict=True))
    print(f"CPU of the gateway: {used / ROUNDS:.2f} ms for a W1 over HTTP and a W1 over NATS (the gateway reads both)")
    ratio = statistics.median(one / other for one, other in zip(over_http, nats, strict=True))
    print(f"HTTP - NATS: {paired:.2f} ms, HTTP / NATS: {ratio:.3f} (medians of {ROUNDS} pairs)")


def _address(log: Path) -> str:
    """Return the address that the gateway prints at its start."""
    until = perf_counter() + _START_TIMEOUT_S
    while perf_counter() < until:
        if found := re.search(r"Gateway on (http://\S+)", log.read_text()):
            return found[1]
        time.sleep(0.05)
    raise RuntimeError(f"the gateway does not listen after {_START_TIMEOUT_S:g} s: {log.read_text()}")


def _cpu_ms(pid: int) -> float:
    """Return the CPU time of a process, in milliseconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    asyncio.run(main())
