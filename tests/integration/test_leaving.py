"""Processes exit in time after SIGTERM, even if the network became silent shortly before."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.crew import CREW, steps
from support.processes import System, wait_for
from support.proxy import Proxy

from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.settings import Settings

pytestmark = pytest.mark.timeout(90)


@pytest.mark.parametrize("upward", [True, False], ids=["both ways", "answers only"])
@pytest.mark.parametrize("since", [0.2, 3.0], ids=["just now", "three seconds ago"])
async def test_processes_leave_in_time_after_the_network_turned_black(
    tmp_path: Path, since: float, upward: bool
) -> None:
    async with (
        EmbeddedBroker(tmp_path / "broker") as broker,
        Proxy("127.0.0.1", int(broker.url.rpartition(":")[2])) as proxy,
    ):
        settings = Settings(url=broker.url, ack_wait=2.0, heartbeat=0.5, shutdown_grace=1.0)
        async with System(tmp_path / "processes", settings) as system:
            system.environment["POINTSMAN_URL"] = proxy.url
            services = await asyncio.gather(system.supervisor(CREW), system.worker(CREW), system.worker(CREW))
            workflow = await system.client.submit("crew", steps("a", seconds=30))
            await wait_for(
                lambda: system.client.bus.last("work", f"pointsman.handoff.worker.crew.{workflow.id}.>"), "a task"
            )
            for _ in range(10):  # the supervisor processes some of these requests when the network becomes silent
                await system.client.submit("crew", steps("a", seconds=30))

            proxy.black_hole(upward=upward)
            await asyncio.sleep(since)
            loop = asyncio.get_running_loop()
            asked = loop.time()

            async def leave(service: object) -> float:
                assert await service.stop(seconds=30) == 0  # type: ignore[attr-defined]
                return loop.time() - asked

            took = await asyncio.gather(*map(leave, services))

    assert max(took) < settings.shutdown_grace + 2.0 + 3.0  # three extra seconds for a busy machine
