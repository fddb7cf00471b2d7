"""A client of A2A sees each event of a task once, although the gateway that it listens to is killed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from a2a.client import ClientConfig, ClientFactory
from a2a.client.client import Client, ClientCallContext
from a2a.client.errors import A2AClientError
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value
from support import factory
from support.crew import planner, steps, synthesizer, team, worker
from support.gateway import gateway_process
from support.processes import System

from pointsman.gateway.a2a.tasks import metadata_of
from pointsman.settings import Settings

pytestmark = pytest.mark.timeout(180)


async def client_of(http: httpx.AsyncClient, address: str) -> Client:
    return await ClientFactory(ClientConfig(httpx_client=http)).create_from_url(f"{address}/a2a/crew")


def position_of(event: pb.StreamResponse) -> str:
    return str(metadata_of(getattr(event, str(event.WhichOneof("payload"))), "position") or "")


def known(event: pb.StreamResponse) -> tuple[str, str]:
    """Return an event without its time of delivery: its position, and its kind with its content."""
    kind = str(event.WhichOneof("payload"))
    return position_of(event), kind + getattr(event, kind).SerializeToString(deterministic=True).hex()


async def test_a_client_that_subscribes_again_sees_each_event_once(settings: Settings, tmp_path: Path) -> None:
    go = tmp_path / "go"
    plan = steps("a", "b", serial=True)
    plan["tasks"][1]["input"]["after"] = str(go)
    request = pb.SendMessageRequest(
        message=pb.Message(
            message_id=uuid4().hex, role=pb.Role.ROLE_USER, parts=[pb.Part(data=ParseDict(plan, Value()))]
        )
    )
    seen: list[pb.StreamResponse] = []
    async with (
        factory.team(team, [planner, synthesizer, worker], on=settings),
        System(tmp_path / "system", settings, CREW_JOURNAL=str(tmp_path / "journal")) as system,
        httpx.AsyncClient(timeout=60, trust_env=False) as http,
    ):
        (first, one), (_, two) = await asyncio.gather(gateway_process(system), gateway_process(system))
        listening, other = await client_of(http, one), await client_of(http, two)

        async def listen() -> None:
            async for event in listening.send_message(request):
                seen.append(event)  # noqa: PERF401 - others look at the list meanwhile

        task = asyncio.create_task(listen())
        async with asyncio.timeout(60):
            while not any("worker: do b" in str(event) for event in seen):
                await asyncio.sleep(0.02)
        await first.kill()
        with pytest.raises(A2AClientError):
            await task
        go.touch()
        async with asyncio.timeout(60):  # the work goes on without a stream
            while (await other.get_task(pb.GetTaskRequest(id=seen[0].task.id))).status.state == 2:  # WORKING
                await asyncio.sleep(0.05)
        after = ClientCallContext(service_parameters={"Last-Event-ID": position_of(seen[-1])})
        subscription = pb.SubscribeToTaskRequest(id=seen[0].task.id)
        rest = [event async for event in other.subscribe(subscription, context=after)]
        every = [event async for event in other.send_message(request)]

    assert position_of(rest[0]) == position_of(seen[-1])
    assert rest[0].task.status.state == pb.TaskState.TASK_STATE_WORKING
    assert [known(event) for event in [*seen[1:], *rest[1:]]] == [known(event) for event in every[1:]]
    assert every[-1].status_update.status.state == pb.TaskState.TASK_STATE_COMPLETED
