"""The A2A endpoint of the gateway with a real broker, real HTTP and the official SDK as the client."""

from __future__ import annotations

import asyncio
import json
import secrets
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import jwt
import pytest
import pytest_asyncio
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.client.client import Client
from a2a.client.errors import A2AClientError
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from a2a.utils.signing import create_signature_verifier
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.struct_pb2 import Value
from support import factory
from support.a2a_teams import AGENTS, TEAMS
from support.broker import remove_streams
from support.factory import RunningTeam
from support.gateway import http_client, served_gateway
from support.waiting import until

from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.gateway.keys import KeyStore
from pointsman.index.callers import CallerLimits
from pointsman.settings import Settings

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]

COMPLETED = pb.TaskState.TASK_STATE_COMPLETED
INPUT_REQUIRED = pb.TaskState.TASK_STATE_INPUT_REQUIRED
CANCELED = pb.TaskState.TASK_STATE_CANCELED
WORKING = pb.TaskState.TASK_STATE_WORKING
BINDINGS = ["JSONRPC", "HTTP+JSON"]
CARD = "/.well-known/agent-card.json"


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
    async with served_gateway(settings) as address:
        async with http_client(address) as http, asyncio.timeout(30):
            while "actor" not in (await http.get(f"/a2a/kit{CARD}")).text:
                await asyncio.sleep(0.05)
        yield address


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def keyed_address(running: RunningTeam, settings: Settings) -> AsyncIterator[str]:
    """Yield the address of a gateway that requires keys."""
    async with served_gateway(settings, gateway_require_key=True) as address:
        yield address


@asynccontextmanager
async def a2a_client(
    address: str, binding: str = "JSONRPC", *, team: str = "kit", key: str = "", streaming: bool = False
) -> AsyncIterator[Client]:
    """Yield an SDK client that has read the card of a team."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(headers=headers, timeout=30, trust_env=False) as http:
        config = ClientConfig(
            streaming=streaming, httpx_client=http, supported_protocol_bindings=[binding], use_client_preference=True
        )
        yield await ClientFactory(config).create_from_url(f"{address}/a2a/{team}")


def message(prefix: str, *parts: pb.Part | str, **fields: Any) -> pb.SendMessageRequest:
    """Return a request with a message whose id starts with `prefix`."""
    given = [pb.Part(text=part) if isinstance(part, str) else part for part in parts or ("hello",)]
    id = fields.pop("message_id", f"{prefix}-{uuid4().hex}")
    options = {name: fields.pop(name) for name in ("configuration", "metadata") if name in fields}
    return pb.SendMessageRequest(
        message=pb.Message(message_id=id, role=pb.Role.ROLE_USER, parts=given, **fields), **options
    )


async def create_key(running: RunningTeam, address: str, caller: str, **options: Any) -> str:
    """Create a key, and wait until the gateway knows the key."""
    text = (await (await KeyStore.open(running.bus, running.subjects)).create(caller, **options)).text
    async with http_client(address, text) as http:

        async def known() -> bool:
            return (await http.get("/v1/teams")).status_code == 200

        await until(known, seconds=30)
    return text


async def send(client: Client, prefix: str, *parts: pb.Part | str, **fields: Any) -> pb.Task:
    """Send a message without streaming, and return the task."""
    (response,) = [event async for event in client.send_message(message(prefix, *parts, **fields))]
    return response.task


def data(value: Any) -> pb.Part:
    return pb.Part(data=ParseDict(value, Value()))


def texts_of(task: pb.Task) -> list[str]:
    return [part.text for artifact in task.artifacts for part in artifact.parts]


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_message_is_a_workflow_and_its_answer_an_artifact(address: str, binding: str) -> None:
    async with a2a_client(address, binding) as client:
        task = await send(client, "tck-artifact-text", "hello")
        read = await client.get_task(pb.GetTaskRequest(id=task.id))
        given = await send(client, "tck-artifact-data")
        file = await send(client, "tck-artifact-file")
        elsewhere = await send(client, "tck-artifact-file-url")

    assert task.status.state == COMPLETED
    assert [part.text for artifact in task.artifacts for part in artifact.parts] == ["Generated text content"]
    assert [part.text for part in task.history[0].parts] == ["hello"]
    assert MessageToDict(read) == MessageToDict(task)
    assert given.artifacts[0].parts[0].data.struct_value["count"] == 42
    (part,) = file.artifacts[0].parts
    assert (part.raw, part.filename, part.media_type) == (b"tck", "output.txt", "text/plain")
    assert elsewhere.artifacts[0].parts[0].url == "https://example.com/output.txt"


async def test_a_card_names_the_team_its_agents_and_both_versions(address: str) -> None:
    async with http_client(address) as http:
        response = await http.get(f"/a2a/kit{CARD}")
        again = await http.get(f"/a2a/kit{CARD}", headers={"if-none-match": response.headers["etag"]})
        unknown = await http.get(f"/a2a/unknown{CARD}")
    card = response.json()

    assert [(each["protocolBinding"], each["protocolVersion"]) for each in card["supportedInterfaces"]] == [
        ("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("JSONRPC", "0.3"), ("HTTP+JSON", "0.3"),
    ]  # fmt: skip
    assert {each["url"] for each in card["supportedInterfaces"]} == {f"{address}/a2a/kit"} == {card["url"]}
    assert [(skill["id"], skill["tags"]) for skill in card["skills"]] == [("kit", ["team"]), ("actor", ["tck"])]
    assert card["skills"][1]["examples"] == ["say hello"]
    assert "max-age" in response.headers["cache-control"]
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["last-modified"] == response.headers["last-modified"]
    assert parsedate_to_datetime(response.headers["last-modified"]) <= datetime.now(UTC)
    assert unknown.status_code == 404


async def test_a_card_for_the_version_1_0_has_the_fields_of_this_version_alone(address: str) -> None:
    """The schema of version 1.0 allows no other fields, and `ParseDict` refuses them, too."""
    async with http_client(address) as http:
        asked = await http.get(f"/a2a/kit{CARD}", headers={"a2a-version": "1.0"})
        named = await http.get(f"/a2a/kit{CARD}?A2A-Version=1.0")
        fixed = await http.get(f"/a2a/kit/1.0{CARD}")
        old = await http.get(f"/a2a/kit{CARD}")

    assert asked.json() == named.json() == fixed.json()
    assert ParseDict(fixed.json(), pb.AgentCard()).supported_interfaces[0].url == f"{address}/a2a/kit"
    with pytest.raises(
        ParseError, match=r"no field named \"(additionalInterfaces|preferredTransport|protocolVersion|url)"
    ):
        ParseDict(old.json(), pb.AgentCard())
    assert asked.headers["etag"] == fixed.headers["etag"] != old.headers["etag"]
    assert "a2a-version" in asked.headers["vary"]


async def test_the_extended_card_has_schemas_and_a_signature_that_verifies(
    running: RunningTeam, settings: Settings, tmp_path: Path
) -> None:
    key = generate_private_key(SECP256R1())
    file = tmp_path / "card.pem"
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    async with served_gateway(settings, gateway_a2a_signing_key=str(file)) as address:
        async with http_client(address) as http:
            key_set = jwt.PyJWKSet.from_dict((await http.get("/a2a/keys.json")).json())
            plain = (await http.get(f"/a2a/kit/1.0{CARD}")).json()
        urls: list[str | None] = []

        def find(kid: str | None, jku: str | None) -> jwt.PyJWK:
            urls.append(jku)
            return key_set[str(kid)]

        verify = create_signature_verifier(find, ["ES256"])
        async with a2a_client(address) as client:
            card = await client.get_extended_agent_card(pb.GetExtendedAgentCardRequest(), signature_verifier=verify)
        (signature,) = plain.pop("signatures")
        canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        header = jwt.get_unverified_header(f"{signature['protected']}..{signature['signature']}")
        payload = urlsafe_b64encode(canonical).rstrip(b"=").decode()
        jwt.PyJWS().decode(
            f"{signature['protected']}.{payload}.{signature['signature']}", key_set[header["kid"]].key, ["ES256"]
        )
        card.description = "forged"
        with pytest.raises(Exception, match="signature"):
            verify(card)

    assert (header["alg"], set(header)) == ("ES256", {"alg", "kid", "jku", "typ"})
    assert urls[0] == f"{address}/a2a/keys.json"
    assert [each.uri for each in card.capabilities.extensions] == ["https://pointsman.invalid/a2a/schemas"]


@pytest.mark.parametrize("binding", BINDINGS)
async def test_the_same_message_again_is_the_same_task(address: str, binding: str) -> None:
    async with a2a_client(address, binding) as client:
        first = await send(client, "", "hello", message_id="order-1")
        again = await send(client, "", "hello", message_id="order-1")
        with pytest.raises(InvalidParamsError, match="is taken"):
            await send(client, "", "something else", message_id="order-1")

    assert first == again


async def test_a_message_without_waiting_returns_the_task_at_once(address: str) -> None:
    at_once = pb.SendMessageConfiguration(return_immediately=True)
    async with a2a_client(address) as client:
        begun = await send(client, "wait", configuration=at_once)
        listed = await client.list_tasks(pb.ListTasksRequest(context_id=begun.context_id))

        async def works() -> bool:
            return (await client.get_task(pb.GetTaskRequest(id=begun.id))).status.state == WORKING

        await until(works, seconds=30)  # before, the task has not recorded messages
        told = [await send(client, "", "faster", task_id=begun.id, message_id="m", configuration=at_once) for _ in "ab"]
        cancelled = await client.cancel_task(pb.CancelTaskRequest(id=begun.id))
        with pytest.raises(TaskNotCancelableError):
            await client.cancel_task(pb.CancelTaskRequest(id=begun.id))
        with pytest.raises(UnsupportedOperationError):
            await send(client, "more", task_id=begun.id)

    assert begun.status.state in (pb.TaskState.TASK_STATE_SUBMITTED, WORKING)
    assert [task.id for task in listed.tasks] == [begun.id]
    assert [each.parts[0].text for each in told[1].history] == ["hello", "faster"]
    assert cancelled.status.state == CANCELED


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_question_makes_the_task_wait_and_a_message_answers_it(address: str, binding: str) -> None:
    async with a2a_client(address, binding) as client:
        asked = await send(client, "tck-input-required", "begin")
        with pytest.raises(InvalidParamsError, match="belongs to the context"):
            await send(client, "x", "north", task_id=asked.id, context_id="another")
        more = await send(client, "x", "ask again", task_id=asked.id)
        done = await send(client, "x", "north", task_id=asked.id, context_id=asked.context_id)
        one = await client.get_task(pb.GetTaskRequest(id=asked.id, history_length=1))

    assert (asked.status.state, asked.status.message.parts[0].text) == (INPUT_REQUIRED, "Please give input 1.")
    assert (more.status.state, more.status.message.parts[0].text) == (INPUT_REQUIRED, "Please give input 2.")
    assert (done.status.state, texts_of(done)) == (COMPLETED, ["Hello from TCK: north"])
    assert [each.parts[0].text for each in done.history] == [
        "begin", "Please give input 1.", "ask again", "Please give input 2.", "north",
    ]  # fmt: skip
    assert [each.parts[0].text for each in one.history] == ["north"]


@pytest.mark.parametrize(("answer", "result"), [("yes", "erased the file"), (data({"approved": True}), "erased")])
async def test_an_approval_is_given_by_a_message(address: str, answer: pb.Part | str, result: str) -> None:
    async with a2a_client(address) as client:
        asked = await send(client, "approve")
        with pytest.raises(InvalidParamsError, match="approved"):
            await send(client, "x", "perhaps", task_id=asked.id)
        done = await send(client, "x", answer, task_id=asked.id)

    assert asked.status.state == INPUT_REQUIRED
    assert asked.status.message.parts[0].text == "Allow actor to use the tool erase?"
    assert asked.status.message.parts[1].data.struct_value["name"] == "the file"
    assert result in texts_of(done)[0]


async def test_a_rejected_approval_fails_the_task_with_its_reason(address: str) -> None:
    async with a2a_client(address) as client:
        asked = await send(client, "approve")
        done = await send(client, "x", data({"approved": False, "reason": "too early"}), task_id=asked.id)

    assert done.status.state in (pb.TaskState.TASK_STATE_FAILED, COMPLETED)
    assert "too early" in str(done)


async def test_messages_of_a_context_are_turns_of_a_thread(address: str) -> None:
    async with a2a_client(address) as client:
        first = await send(client, "echo", "I was charged twice")
        second = await send(client, "history", "Please refund it", context_id=first.context_id)
        chosen = await send(client, "echo", "hello", context_id="my-context")
        with pytest.raises(InvalidParamsError, match="contextId"):
            await send(client, "echo", "hello", context_id="not a token")
        listed = await client.list_tasks(pb.ListTasksRequest(context_id=first.context_id))

    assert chosen.context_id == "my-context"
    assert "I was charged twice" in str(second.artifacts)
    assert [task.id for task in listed.tasks] == [second.id, first.id]


async def test_files_arrive_and_other_media_types_are_refused(address: str) -> None:
    note = pb.Part(raw=b"dear", filename="note.txt", media_type="text/plain")
    async with a2a_client(address) as client:
        read = await send(client, "read", "read it", note)
        with pytest.raises(ContentTypeNotSupportedError):
            await send(client, "read", pb.Part(raw=b"x", media_type="application/x-unsupported"))
        with pytest.raises(ContentTypeNotSupportedError, match="fetches no files"):
            await send(client, "read", pb.Part(url="http://192.0.2.1/x", media_type="text/plain"))
        large = await send(client, "large")
        sent = read.history[0].parts[1]
    async with http_client(address) as http:
        content = await http.get(sent.url)
        big = await http.get(large.artifacts[0].parts[0].url)
        none = await http.get(f"{sent.url[:-1]}x")
        wrong = await http.post("/a2a/kit/message:send", content=b"{}", headers={"content-type": "text/plain"})

    assert read.artifacts[0].parts[0].data.struct_value["note.txt"] == "dear"
    assert (content.text, content.headers["content-type"]) == ("dear", "text/plain; charset=utf-8")
    assert len(big.content) == 1_500_000
    assert (none.status_code, wrong.status_code) == (422, 415)


async def test_lists_have_pages_filters_and_only_the_tasks_of_the_caller(
    running: RunningTeam, keyed_address: str
) -> None:
    dora = await create_key(running, keyed_address, "dora", teams=["kit"])
    async with a2a_client(keyed_address, key=dora) as client:
        ids = [(await send(client, "echo", f"number {number}", context_id="c")).id for number in range(3)]
        waits = await send(client, "tck-input-required")
        first = await client.list_tasks(pb.ListTasksRequest(page_size=2))
        rest = await client.list_tasks(pb.ListTasksRequest(page_size=2, page_token=first.next_page_token))
        waiting = await client.list_tasks(pb.ListTasksRequest(status=INPUT_REQUIRED))
        full = await client.list_tasks(pb.ListTasksRequest(context_id="c", include_artifacts=True, history_length=5))
        with pytest.raises(InvalidParamsError):
            await client.list_tasks(pb.ListTasksRequest(page_token="abc"))
        with pytest.raises(InvalidParamsError):
            await client.list_tasks(pb.ListTasksRequest(page_size=0))

    assert [task.id for task in [*first.tasks, *rest.tasks]] == [waits.id, *reversed(ids)]
    assert (first.total_size, first.page_size, bool(first.next_page_token), rest.next_page_token) == (4, 2, True, "")
    assert [task.id for task in waiting.tasks] == [waits.id]
    assert not any(task.artifacts or task.history for task in first.tasks)
    assert [texts_of(task) for task in full.tasks] == [[f"echo: number {number}"] for number in (2, 1, 0)]
    assert full.tasks[0].history[0].parts[0].text == "number 2"


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_stream_begins_with_the_task_and_ends_with_its_end(address: str, binding: str) -> None:
    async with a2a_client(address, binding, streaming=True) as client:
        events = [event async for event in client.send_message(message("tck-stream-001"))]
        again = [event async for event in client.send_message(message("tck-input-required"))]

    kinds = [str(event.WhichOneof("payload")) for event in events]
    assert (kinds[0], kinds[-2:]) == ("task", ["artifact_update", "status_update"])
    assert events[-1].status_update.status.state == COMPLETED
    assert events[-2].artifact_update.artifact.parts[0].text == "Stream hello from TCK"
    lines = [
        part.text
        for event in events if event.HasField("status_update")
        for part in event.status_update.status.message.parts
    ]  # fmt: skip
    assert lines == ["kit-planner: plans", "Plan: 1 task. act", "actor: act on the message", "actor: done"]
    assert again[-1].status_update.status.state == INPUT_REQUIRED


async def test_a_refused_request_gets_the_status_of_the_gateway(running: RunningTeam, keyed_address: str) -> None:
    mine = await create_key(running, keyed_address, "ada", teams=["kit"], limits=CallerLimits(running=1))
    foreign = await create_key(running, keyed_address, "bob", teams=["other"])
    third = await create_key(running, keyed_address, "cay", teams=["kit"])
    async with a2a_client(keyed_address, key=mine) as client:
        waits = await send(client, "tck-input-required")
        with pytest.raises(A2AClientError, match="429"):
            await send(client, "echo")
    async with a2a_client(keyed_address, key=third) as client:
        for call in (
            client.get_task(pb.GetTaskRequest(id=waits.id)),
            client.cancel_task(pb.CancelTaskRequest(id=waits.id)),
            send(client, "x", "mine", task_id=waits.id),
        ):
            with pytest.raises(TaskNotFoundError):
                await call
        listed = await client.list_tasks(pb.ListTasksRequest())
    statuses: list[int] = []
    paths = ("/a2a/kit/.well-known/agent-card.json", "/a2a/kit/tasks", f"/a2a/kit/tasks/{waits.id}")
    for key in (foreign, ""):
        async with http_client(keyed_address, key, **{"a2a-version": "1.0"}) as http:
            statuses += [(await http.get(path)).status_code for path in paths]
    async with http_client(keyed_address, mine) as http:
        card = (await http.get("/a2a/kit/.well-known/agent-card.json")).json()

    assert list(listed.tasks) == []
    assert statuses == [404, 404, 404, 401, 401, 401]
    assert {"bearer", "key"} == card["securitySchemes"].keys()


async def test_a_version_is_read_from_the_header_or_the_address_and_others_are_refused(address: str) -> None:
    """Patch versions are ignored. A client without a version uses version 0.3."""
    async with http_client(address) as http:
        rest = {
            version: (await http.get("/a2a/kit/tasks", params={"A2A-Version": version})).status_code
            for version in ("1.0", "1.0.9", "", "0.2", "1.7", "99.0", "one")
        }
        patched = await http.get("/a2a/kit/tasks", headers={"a2a-version": "1.0.1"})
        call = {"jsonrpc": "2.0", "id": 7, "method": "ListTasks", "params": {}}
        answers = [
            (await http.post("/a2a/kit", json=call, headers={"a2a-version": version})).json()
            for version in ("1.0", "1.7", "0.3")
        ]

    assert rest == {"1.0": 200, "1.0.9": 200, "": 400, "0.2": 400, "1.7": 400, "99.0": 400, "one": 400}
    assert patched.status_code == 200
    assert [answer["id"] for answer in answers] == [7, 7, 7]
    assert ["result" in answer for answer in answers] == [True, False, False]
    assert answers[1]["error"]["code"] == -32009


async def test_responses_have_the_media_type_that_the_client_uses(address: str) -> None:
    """Version 1.0.0 of the specification uses `application/json`, and 1.0.1 recommends `application/a2a+json`."""
    both = ("application/json", "application/a2a+json")
    body = json.dumps({"message": {"role": "ROLE_USER", "messageId": "types", "parts": [{"text": "hello"}]}})
    async with http_client(address, **{"a2a-version": "1.0"}) as http:
        read = [(await http.get("/a2a/kit/tasks", headers={"accept": each})).headers for each in ("*/*", *both)]
        sent = [
            (await http.post("/a2a/kit/message:send", content=body, headers={"content-type": each})).headers
            for each in both
        ]
        mixed = await http.post(
            "/a2a/kit/message:send", content=body, headers={"content-type": both[0], "accept": ", ".join(both)}
        )

    assert [each["content-type"] for each in read] == [both[1], *both]
    assert [each["content-type"] for each in sent] == [*both]
    assert mixed.headers["content-type"] == both[1]


async def test_the_version_0_3_is_spoken_on_the_same_address(address: str) -> None:
    body = {"message": {"role": "user", "messageId": "old-1", "parts": [{"kind": "text", "text": "hello"}]}}
    async with http_client(address) as http:
        for path in ("/a2a/kit", "/a2a/kit/"):
            sent = await http.post(path, json={"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": body})
            task = sent.json()["result"]
        rest = await http.get(f"/a2a/kit/v1/tasks/{task['id']}")
        streamed = await http.post(
            "/a2a/kit", json={"jsonrpc": "2.0", "id": 2, "method": "message/stream", "params": body}
        )
        unknown = await http.post(
            "/a2a/kit", json={"jsonrpc": "2.0", "id": 3, "method": "tasks/get", "params": {"id": "none"}}
        )
        newer = await http.get(f"/a2a/kit/tasks/{task['id']}", headers={"a2a-version": "9.0"})

    assert (task["kind"], task["status"]["state"]) == ("task", "completed")
    assert task["artifacts"][0]["parts"][0]["text"] == "echo: hello"
    assert rest.json()["id"] == task["id"]
    assert streamed.text.count('"final":true') == 1
    assert unknown.json()["error"]["code"] == -32001
    assert newer.status_code == 400


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_client_of_the_version_0_3_streams_answers_and_cancels(address: str, binding: str) -> None:
    async with httpx.AsyncClient(timeout=30, trust_env=False) as http:
        card = await A2ACardResolver(http, f"{address}/a2a/kit").get_agent_card()
        old = [
            each
            for each in card.supported_interfaces
            if (each.protocol_version, each.protocol_binding) == ("0.3", binding)
        ]
        del card.supported_interfaces[:]
        card.supported_interfaces.extend(old)
        config = ClientConfig(httpx_client=http, supported_protocol_bindings=[binding])
        client = ClientFactory(config).create(card)
        events = [event async for event in client.send_message(message("tck-stream-001"))]
        asked = [event async for event in client.send_message(message("tck-input-required"))]
        task = asked[0].task.id
        answer = message("x", "north", task_id=task)
        done = [event async for event in client.send_message(answer)]
        waits, *_ = [event async for event in client.send_message(message("tck-input-required"))]
        cancelled = await client.cancel_task(pb.CancelTaskRequest(id=waits.task.id))

    assert events[0].HasField("task")
    assert events[-1].status_update.status.state == COMPLETED
    assert asked[-1].status_update.status.state == INPUT_REQUIRED
    assert done[-1].status_update.status.state == COMPLETED
    assert cancelled.status.state == CANCELED
