"""A process reports its liveness and readiness over HTTP."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog
from support.cluster import free_ports
from support.crew import CREW
from support.health import ask
from support.processes import Service, System, wait_for
from support.proxy import Proxy
from support.waiting import quickly

from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.engine.process.health import serve_health
from pointsman.errors import ConfigurationError
from pointsman.settings import Settings

pytestmark = pytest.mark.timeout(120)

CONSUMERS = ["request-crew", "control-crew", "result-crew", "timer-crew", "agent-crew"]


async def text(port: int, path: str) -> str:
    """Return the body of the answer to `path`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        answer = await asyncio.wait_for(reader.read(), 5)
    finally:
        writer.close()
        await writer.wait_closed()
    return answer.partition(b"\r\n\r\n")[2].decode()


async def until_ready(ports: list[int], ready: bool, *, seconds: float) -> None:
    async def so() -> bool:
        statuses = {(await ask(port, "/readyz"))[0] for port in ports}
        return statuses == {200 if ready else 503}

    await wait_for(so, f"/readyz that says {ready}", seconds=seconds)


async def port_of(service: Service) -> int:
    return int((await service.logged("health_served"))["port"])


@asynccontextmanager
async def serving(*waiting_for: str) -> AsyncIterator[int]:
    async with serve_health("127.0.0.1", 0, lambda: waiting_for) as port:
        yield port


async def test_health_names_what_the_process_waits_for() -> None:
    async with serving("result-crew") as port:
        assert await ask(port, "/healthz") == (200, {"alive": True})
        assert await ask(port, "/readyz") == (503, {"ready": False, "waiting_for": ["result-crew"]})
    async with serving() as port:
        assert await ask(port, "/readyz?verbose") == (200, {"ready": True, "waiting_for": []})


async def test_non_health_requests_are_refused_without_harm() -> None:
    async with serving() as port:
        assert (await ask(port, "/"))[0] == 404
        assert (await ask(port, "/readyz", "POST"))[0] == 405
        assert await ask(port, "/readyz", "HEAD") == (200, None)
        for rubbish in (b"\0" * 20_000, b"GET", b""):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(rubbish)
            writer.close()
        assert (await ask(port, "/readyz"))[0] == 200


async def test_metrics_are_served_only_if_they_are_enabled() -> None:
    async with serving() as port:
        status, body = await ask(port, "/metrics")
    async with serve_health("127.0.0.1", 0, list, lambda: b"1") as port:
        assert await ask(port, "/metrics") == (200, 1)

    assert (status, "pointsman[prometheus]" in body["hint"]) == (404, True)


async def test_a_port_that_is_taken_is_named() -> None:
    async with serving() as port:
        with pytest.raises(ConfigurationError, match=f"{port}.*POINTSMAN_HEALTH_PORT"):
            async with serve_health("127.0.0.1", port, list):
                pass


async def test_readiness_goes_with_the_broker_and_comes_back_with_it(tmp_path: Path) -> None:
    store = tmp_path / "broker"
    [number] = free_ports(1)
    broker = EmbeddedBroker(store, port=number)
    await broker.start()
    try:
        async with Proxy("127.0.0.1", number) as proxy:
            settings = Settings(url=proxy.url, ack_wait=1.0, heartbeat=0.5, health_port=0)
            async with System(tmp_path / "processes", settings) as system:
                services = await asyncio.gather(system.supervisor(CREW), system.worker(CREW))
                ports = [await port_of(service) for service in services]
                await until_ready(ports, True, seconds=10)

                async def told() -> bool:
                    lines = (await text(ports[0], "/metrics")).splitlines()
                    return any(
                        line.startswith("pointsman_queue_depth{") and 'pointsman_queue="result-crew"' in line
                        for line in lines
                    )

                await wait_for(told, "queue of the team in /metrics")

                assert broker.pid is not None
                os.kill(broker.pid, signal.SIGKILL)
                await broker.stop()
                await quickly(until_ready(ports, False, seconds=60), 3)
                status, body = await ask(ports[0], "/readyz")
                alive = [(await ask(port, "/healthz"))[0] for port in ports]
                broker = EmbeddedBroker(store, port=number)
                await broker.start()
                await until_ready(ports, True, seconds=20)

                proxy.black_hole()
                await quickly(until_ready(ports, False, seconds=60), 8)
                proxy.heal()
                await until_ready(ports, True, seconds=20)

                proxy.black_hole(upward=False)
                await quickly(until_ready(ports, False, seconds=60), 8)
                proxy.heal()
                await until_ready(ports, True, seconds=20)
    finally:
        await broker.stop()

    assert (status, body) == (
        503,
        {"ready": False, "waiting_for": ["request-crew", "control-crew", "result-crew", "timer-crew", "agent-crew"]},
    )
    assert alive == [200, 200]


async def test_process_without_a_broker_is_alive_and_waits(tmp_path: Path) -> None:
    async with EmbeddedBroker(tmp_path / "broker") as broker:
        settings = Settings(url=broker.url, health_port=0)
        async with System(tmp_path / "processes", settings) as system:
            system.environment["POINTSMAN_URL"] = "nats://127.0.0.1:9"
            service = await system.start("worker", CREW)
            port = await port_of(service)

            assert (await ask(port, "/healthz"))[0] == 200
            assert await ask(port, "/readyz") == (503, {"ready": False, "waiting_for": ["broker"]})


@pytest.mark.parametrize(("host", "warns"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)])
async def test_a_health_port_that_others_can_reach_is_named(host: str, warns: bool) -> None:
    with structlog.testing.capture_logs() as lines:
        async with serve_health(host, 0, list):
            pass

    assert [line["host"] for line in lines if line["event"] == "health_reachable"] == [host] * warns
