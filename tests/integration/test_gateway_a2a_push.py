"""A receiver of A2A push notifications gets each event of a task in order, also after failures, from any gateway."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio
from a2a.client import ClientConfig, ClientFactory
from a2a.client.client import Client
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError
from google.protobuf.json_format import ParseDict
from support import factory
from support.a2a_teams import AGENTS, TEAMS
from support.broker import remove_streams
from support.factory import RunningTeam
from support.gateway import http_client, served_gateway
from support.receiver import Received, Receiver, Reply, receiving
from support.waiting import until

from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.gateway.a2a.push_store import PUSH_GROUP, PushReceiver, PushStore, now
from pointsman.settings import Settings

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]

OPTIONS: dict[str, Any] = {"webhook_private_networks": True, "webhook_retries": "0.1,0.1"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def settings(broker: EmbeddedBroker) -> AsyncIterator[Settings]:
    """Yield the settings of the module. Its tests share one team and one gateway."""
    settings = Settings(url=broker.url, namespace=f"t{secrets.token_hex(4)}")
    yield settings
    await remove_streams(settings)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(settings: Settings) -> AsyncIterator[RunningTeam]:
    async with factory.team(TEAMS, AGENTS, on=settings) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def address(running: RunningTeam, settings: Settings) -> AsyncIterator[str]:
    async with served_gateway(settings, **OPTIONS) as address:
        yield address


@asynccontextmanager
async def a2a_client(address: str) -> AsyncIterator[Client]:
    async with httpx.AsyncClient(timeout=30, trust_env=False) as http:
        config = ClientConfig(streaming=False, httpx_client=http)
        yield await ClientFactory(config).create_from_url(f"{address}/a2a/kit")


async def send(client: Client, prefix: str, text: str = "hello", *, task: str = "", push: Any = None) -> pb.Task:
    message = pb.Message(
        message_id=f"{prefix}-{uuid4().hex}", role=pb.Role.ROLE_USER, parts=[pb.Part(text=text)], task_id=task
    )
    request = pb.SendMessageRequest(message=message)
    if push is not None:
        request.configuration.task_push_notification_config.CopyFrom(push)
    (response,) = [event async for event in client.send_message(request)]
    return response.task


def config(receiver: Receiver, **fields: Any) -> pb.TaskPushNotificationConfig:
    return pb.TaskPushNotificationConfig(id="mine", url=receiver.url, token="t-1", **fields)


def states(received: list[Received]) -> list[str]:
    """Return the states and artifacts of the notifications. A repeated state is returned once."""
    shown: list[str] = []
    for each in received:
        event = ParseDict(each.event, pb.StreamResponse())
        if event.HasField("artifact_update"):
            shown.append("artifact")
        elif not shown or shown[-1] != pb.TaskState.Name(event.status_update.status.state)[11:]:
            shown.append(pb.TaskState.Name(event.status_update.status.state)[11:])
    return shown


async def statuses_are(store: PushStore, task: str, *expected: str) -> bool:
    return [each.status for each in await store.of_task(task)] == list(expected)


async def test_a_receiver_gets_each_event_with_its_credentials(address: str) -> None:
    secret = pb.AuthenticationInfo(scheme="Bearer", credentials="s-1")
    async with (
        receiving() as receiver,
        receiving() as late,
        a2a_client(address) as client,
    ):
        task = await send(client, "tck-input-required", push=config(receiver, authentication=secret))
        later = pb.TaskPushNotificationConfig(id="late", task_id=task.id, url=late.url)
        await client.create_task_push_notification_config(later)
        await send(client, "x", "north", task=task.id)
        await until(lambda: states(receiver.received)[-1:] == states(late.received)[-1:] == ["COMPLETED"], seconds=30)

    assert states(receiver.received) == ["WORKING", "INPUT_REQUIRED", "WORKING", "artifact", "COMPLETED"]
    assert states(late.received) == ["WORKING", "artifact", "COMPLETED"]
    first = receiver.received[0].headers
    assert (first["authorization"], first["x-a2a-notification-token"]) == ("Bearer s-1", "t-1")
    assert len({each.id for each in receiver.received}) == len(receiver.received)


async def test_configurations_are_created_read_listed_and_deleted(address: str) -> None:
    async with (
        receiving() as receiver,
        a2a_client(address) as client,
    ):
        task = await send(client, "tck-complete-task")
        wanted = config(receiver)
        wanted.task_id = task.id
        made = await client.create_task_push_notification_config(wanted)
        ids = pb.GetTaskPushNotificationConfigRequest(task_id=task.id, id="mine")
        read = await client.get_task_push_notification_config(ids)
        every = await client.list_task_push_notification_configs(
            pb.ListTaskPushNotificationConfigsRequest(task_id=task.id)
        )
        for _ in range(2):
            await client.delete_task_push_notification_config(
                pb.DeleteTaskPushNotificationConfigRequest(task_id=task.id, id="mine")
            )
        with pytest.raises(TaskNotFoundError):
            await client.get_task_push_notification_config(ids)
        body = {"taskId": task.id, "pushNotificationConfig": {"url": receiver.url, "id": "old"}}
        async with http_client(address) as http:
            old = await http.post(
                "/a2a/kit",
                json={"jsonrpc": "2.0", "id": 1, "method": "tasks/pushNotificationConfig/set", "params": body},
            )

    assert made == read == every.configs[0] == wanted
    assert old.json()["result"]["pushNotificationConfig"]["id"] == "old"
    assert receiver.received == []


async def test_a_failed_notification_is_sent_again_in_its_order(running: RunningTeam, address: str) -> None:
    async with (
        receiving(Reply(500), Reply(cut=True)) as receiver,
        receiving(Reply(410)) as gone,
        a2a_client(address) as client,
    ):
        task = await send(client, "tck-artifact-text", push=config(receiver))
        await until(lambda: states(receiver.received)[-1:] == ["COMPLETED"], seconds=30)
        other = await send(client, "tck-artifact-text", push=config(gone))
        store = PushStore(await running.bus.key_value(running.subjects.gateway_bucket, PUSH_GROUP))

        # The gateway stores the end of the deliveries after the response of the receiver.
        await until(lambda: statuses_are(store, task.id, "done"), seconds=30)
        await until(lambda: statuses_are(store, other.id, "failed"), seconds=30)

    ids = [each.id for each in receiver.received]
    assert ids[0] == ids[1] == ids[2] != ids[3]
    assert len(gone.received) == 1


async def test_a_file_and_the_line_about_its_task_are_sent_again_together(address: str) -> None:
    """One log entry causes two notifications. The one for the file is delivered, and the one for the task fails."""

    def failed() -> int:
        """Return the position of the task's notification, after the first file; 0 before the file is delivered."""
        files = [number for number, each in enumerate(receiver.received) if "artifactUpdate" in each.event]
        return files[0] + 1 if files else 0

    async with receiving() as receiver, a2a_client(address) as client:
        receiver.answer = lambda received: Reply(500 if len(receiver.received) - 1 == (failed() or -1) else 204)
        await send(client, "tck-artifact-file", push=config(receiver))
        await until(lambda: states(receiver.received)[-1:] == ["COMPLETED"], seconds=30)

    ids, place = [each.id for each in receiver.received], failed()
    assert ids[place - 1 : place + 1] == ids[place + 1 : place + 3]
    assert len(set(ids)) == len(ids) - 2


async def test_another_gateway_continues_for_one_that_was_killed(running: RunningTeam, address: str) -> None:
    """Store the record of a killed gateway: the gateway owns it, and its position is after the first event."""
    async with receiving() as receiver, a2a_client(address) as client:
        task = await send(client, "tck-artifact-text")
        store = PushStore(await running.bus.key_value(running.subjects.gateway_bucket, PUSH_GROUP))
        log = running.subjects.log("kit", task.id)
        first = await anext(stored.sequence async for stored in running.bus.read("log", log))
        fields: dict[str, Any] = {
            "task": task.id, "team": "kit", "caller": "local", "origin": address, "url": receiver.url,
        }  # fmt: skip
        at = now()
        owned = PushReceiver(
            id="mine",
            owner="killed",
            owned_until=at + timedelta(seconds=1),
            position=f"{first}.0",
            changed_at=at,
            **fields,
        )
        await store.put(owned)
        await until(lambda: states(receiver.received)[-1:] == ["COMPLETED"], seconds=30)
        await until(lambda: statuses_are(store, task.id, "done"), seconds=30)
        (kept,) = await store.of_task(task.id)

    assert (now() - at).total_seconds() > 1
    assert kept.owner != "killed"


async def test_a_private_address_is_refused_when_the_gateway_connects(broker: EmbeddedBroker) -> None:
    # A new namespace, because the module's gateway would deliver.
    own = Settings(url=broker.url, namespace=f"t{secrets.token_hex(4)}")
    async with (
        factory.team(TEAMS, AGENTS, on=own) as running,
        receiving() as receiver,
        served_gateway(own, webhook_retries="0.1") as address,
        a2a_client(address) as client,
    ):
        with pytest.raises(InvalidParamsError, match="send a https:// URL"):
            await send(client, "tck-complete-task", push=config(receiver))
        url = receiver.url.replace("http://", "https://")
        task = await send(client, "tck-complete-task", push=pb.TaskPushNotificationConfig(id="mine", url=url))
        store = PushStore(await running.bus.key_value(running.subjects.gateway_bucket, PUSH_GROUP))
        await until(lambda: statuses_are(store, task.id, "failed"), seconds=30)
        (kept,) = await store.of_task(task.id)
    await remove_streams(own)

    assert "has an address that is not public" in kept.error
    assert receiver.received == []
