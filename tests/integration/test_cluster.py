"""The shipped team runs on three nodes with the configuration of docker-compose.yml, even if one node is killed."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

import pytest
from support.cluster import NatsCluster
from support.processes import System, wait_for

from pointsman.bus.jetstream.bus import JetStreamBus
from pointsman.errors import BusUnavailableError
from pointsman.settings import Settings
from pointsman_agents.customer_service import SAMPLE_REQUEST

pytestmark = pytest.mark.timeout(180)

TEAM = "customer-service"
PACKAGE = f"pointsman_agents.{TEAM.replace('-', '_')}"


async def test_team_answers_without_and_after_the_stream_leader_node(tmp_path: Path) -> None:
    async with NatsCluster(tmp_path) as cluster:
        settings = Settings(url=cluster.url, namespace=f"t{secrets.token_hex(4)}", replicas=3, ack_wait=2.0)
        async with System(tmp_path / "processes", settings) as system:
            bus = system.client.bus
            assert isinstance(bus, JetStreamBus)
            services = await asyncio.gather(
                system.supervisor(PACKAGE),
                system.worker("pointsman_agents.planner", "pointsman_agents.synthesizer"),
                system.worker(*(f"{PACKAGE}.{name}" for name in ("billing", "technical", "account"))),
            )
            whole = await system.ask(TEAM, SAMPLE_REQUEST, seconds=60)
            placed = await _placed(bus, system.client.subjects.work_stream)
            leader = cluster.names.index(placed[0])

            running = await system.client.submit(TEAM, SAMPLE_REQUEST)
            await cluster.kill(leader)
            through_it = await running.outcome(60)
            without = await system.ask(TEAM, SAMPLE_REQUEST, seconds=60)
            await cluster.start(leader)
            await wait_for(lambda: _all_current(bus, system.client.subjects.work_stream), "replica that has caught up")
            again = await system.ask(TEAM, SAMPLE_REQUEST, seconds=60)

            assert all(service.alive for service in services)

    assert sorted(placed) == cluster.names
    assert {outcome.status for outcome in (whole, through_it, without, again)} == {"completed"}
    assert {task.status for outcome in (whole, through_it, without, again) for task in outcome.tasks} == {"succeeded"}


async def _placed(bus: JetStreamBus, stream: str) -> list[str]:
    """Return the nodes of a stream, with the leader first."""
    cluster = (await bus.api(f"STREAM.INFO.{stream}"))["cluster"]
    return [cluster["leader"], *(replica["name"] for replica in cluster["replicas"])]


async def _all_current(bus: JetStreamBus, stream: str) -> bool:
    try:
        replicas = (await bus.api(f"STREAM.INFO.{stream}"))["cluster"]["replicas"]
    except BusUnavailableError:
        return False
    return all(replica["current"] and not replica.get("offline") for replica in replicas)
