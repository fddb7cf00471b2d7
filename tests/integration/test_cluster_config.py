"""A cluster with the configuration of docker-compose.yml loses no acknowledged message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import nats.errors
import pytest
from nats.aio.client import Client
from nats.js.api import StorageType
from nats.js.client import JetStreamContext
from nats.js.errors import Error as JetStreamError
from support.cluster import NatsCluster

_PATIENCE = 30.0  # seconds for an election, or until a node has caught up


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[NatsCluster]:
    async with NatsCluster(tmp_path) as running:
        yield running


async def test_replicated_stream_survives_the_loss_of_a_node(
    cluster: NatsCluster,
) -> None:
    client = await _connect(cluster)
    js = client.jetstream()
    await js.add_stream(name="KEPT", subjects=["kept.>"], num_replicas=3, storage=StorageType.FILE)
    await _until_replicas_are_current(js, 2)
    for number in range(20):
        await js.publish("kept.message", str(number).encode())
    placed = (await js.stream_info("KEPT")).cluster
    assert placed is not None
    assert sorted([str(placed.leader), *(str(peer.name) for peer in placed.replicas or [])]) == cluster.names
    leader = cluster.names.index(str(placed.leader))

    await cluster.kill(leader)

    assert [await _read(js, number + 1) for number in range(20)] == [str(number).encode() for number in range(20)]
    await _publish(js, b"20")
    await cluster.start(leader)
    await _until_replicas_are_current(js, 2)
    assert (await js.stream_info("KEPT")).state.messages >= 21
    await client.close()


async def _connect(cluster: NatsCluster) -> Client:
    async def ignore(_: Exception) -> None:
        """Ignore errors, because the test stops a node."""

    return await nats.connect(cluster.urls, max_reconnect_attempts=-1, reconnect_time_wait=0.1, error_cb=ignore)


async def _read(js: JetStreamContext, sequence: int) -> bytes | None:
    async with asyncio.timeout(_PATIENCE):
        while True:
            try:
                return (await js.get_msg("KEPT", seq=sequence)).data
            except (TimeoutError, JetStreamError, nats.errors.Error):
                await asyncio.sleep(0.1)  # the nodes elect a leader


async def _publish(js: JetStreamContext, body: bytes) -> None:
    async with asyncio.timeout(_PATIENCE):
        while True:
            try:
                await js.publish("kept.message", body, timeout=1)
            except (TimeoutError, JetStreamError, nats.errors.Error):
                await asyncio.sleep(0.1)
            else:
                return


async def _until_replicas_are_current(js: JetStreamContext, count: int) -> None:
    async with asyncio.timeout(_PATIENCE):
        while True:
            try:
                placed = (await js.stream_info("KEPT")).cluster
            except (TimeoutError, JetStreamError, nats.errors.Error):
                placed = None
            if placed and sum(bool(peer.current and not peer.offline) for peer in placed.replicas or []) == count:
                return
            await asyncio.sleep(0.1)
