"""A gateway in this process or in another process, and a client for its server-sent events."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2

from pointsman.bus.jetstream.bus import connect
from pointsman.client.client import Client
from pointsman.gateway.server import serve
from pointsman.settings import Settings
from support.processes import Service, System, wait_for

__all__ = ["ServerEvent", "events_of", "gateway_process", "http_client", "read_events", "served_gateway"]

WAIT_S = 30.0  # seconds to wait for an expected event, enough for a busy machine
_ADDRESS = re.compile(r"Gateway on (http://\S+)")


@dataclass(frozen=True, slots=True)
class ServerEvent:
    id: str
    type: str
    data: Any


@asynccontextmanager
async def served_gateway(settings: Settings, **options: Any) -> AsyncIterator[str]:
    """Serve a gateway with its own connection and yield its address. `options` are further settings."""
    chosen = Settings(**{**settings.model_dump(exclude_unset=True), "gateway_port": 0, **options})
    bus = await connect(chosen, name="gateway", wait=WAIT_S, leader_reads=False)
    await bus.set_up()
    stop = asyncio.Event()
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    client = Client(bus, namespace=chosen.namespace)
    serving = asyncio.create_task(serve(client, chosen, hosts=(), stop=stop, ready=address.set_result))
    try:
        waiting: set[asyncio.Future[Any]] = {serving, address}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        yield await address
    finally:
        stop.set()
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(serving, return_exceptions=True)
        await bus.close()


async def gateway_process(system: System, *, port: int = 0) -> tuple[Service, str]:
    """Start a gateway as a process. Return its address when the gateway listens."""
    service = await system.start("gateway", "--port", str(port))

    async def listening() -> re.Match[str] | None:
        return _ADDRESS.search(service.text)

    found = await wait_for(listening, "address of the gateway", seconds=45.0)
    assert found is not None
    return service, found[1]


@asynccontextmanager
async def http_client(address: str, key: str = "", **headers: str) -> AsyncIterator[httpx2.AsyncClient]:
    """Yield an HTTP client of a gateway, with a key if one is given."""
    if key:
        headers["authorization"] = f"Bearer {key}"
    async with httpx2.AsyncClient(base_url=address, headers=headers, timeout=WAIT_S, trust_env=False) as client:
        yield client


async def read_events(response: httpx2.Response) -> AsyncIterator[ServerEvent]:
    """Yield the events of a response as they arrive."""
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if not line:
            if "data" in fields:
                yield ServerEvent(fields.get("id", ""), fields.get("event", ""), json.loads(fields["data"]))
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")


async def events_of(client: httpx2.AsyncClient, workflow: str, **headers: str) -> list[ServerEvent]:
    """Return all events of a workflow, until the stream ends."""
    async with client.stream("GET", f"/v1/workflows/{workflow}/events", headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        return [event async for event in read_events(response)]
