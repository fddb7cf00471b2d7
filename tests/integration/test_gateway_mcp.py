"""The MCP server of the gateway with a real broker, real HTTP and the official SDK as the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import httpx2
import mcp.types as types
import pytest
from mcp import Client  # imported here, because the import takes seconds
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from pydantic import Field
from support import factory
from support.factory import RunningTeam
from support.gateway import gateway_process, http_client, served_gateway
from support.mcp_client import TASKS, post, result
from support.mcp_teams import AGENTS, TEAMS
from support.processes import System
from support.waiting import until

from pointsman.gateway.keys import KeyStore
from pointsman.settings import Settings

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
async def running(settings: Settings) -> AsyncIterator[RunningTeam]:
    async with factory.team(TEAMS, AGENTS, on=settings) as running:
        yield running


@pytest.fixture
async def address(running: RunningTeam, settings: Settings) -> AsyncIterator[str]:
    async with served_gateway(settings) as address:
        yield address


class Task(types.Result):
    """A task as the result of a call."""

    result_type: Literal["task"] = "task"
    task_id: str = Field(alias="taskId")
    status: str


class TaskRequest(types.Request[Any, Any]):
    method: str
    params: Any


class Tasks(ClientExtension):
    """Declares the extension for tasks, and awaits a task with `finish`."""

    identifier = TASKS

    def __init__(self, finish: Callable[[Task, ClaimContext], Awaitable[types.CallToolResult]]) -> None:
        self._finish = finish

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=Task, resolve=self._finish)]


@asynccontextmanager
async def mcp_client(address: str, key: str = "", **options: Any) -> AsyncIterator[Client]:
    async with (
        http_client(address, key) as http,
        Client(streamable_http_client(f"{address}/mcp", http_client=http), **options) as client,
    ):
        yield client


def text_of(result: types.CallToolResult) -> str:
    (content, *_) = result.content
    assert isinstance(content, types.TextContent), content
    return content.text


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_each_team_is_a_tool_with_its_schema_and_answers(address: str, mode: Any) -> None:
    async with mcp_client(address, mode=mode) as client:

        async def every_tool() -> dict[str, types.Tool] | None:
            found = {tool.name: tool for tool in (await client.list_tools()).tools}
            return found if len(found) == len(TEAMS) else None  # until all supervisors have announced their teams

        tools: dict[str, types.Tool] = await until(every_tool, seconds=30)
        greeted = await client.call_tool("greet", {"name": "Ada"})
        computed = await client.call_tool("slow_compute", {"seconds": 0, "label": "x"})
        failed = await client.call_tool("failing_job", {})
        with pytest.raises(MCPError, match="there is no tool 'unknown' for you"):
            await client.call_tool("unknown", {})

    assert tools.keys() == {team.name for team in TEAMS}
    assert tools["greet"].description == "Greets a person."
    assert tools["greet"].input_schema["properties"]["name"]["type"] == "string"
    assert (greeted.is_error, text_of(greeted)) == (False, "Hello, Ada!")
    assert computed.structured_content == {"label": "x", "done": True}
    assert failed.is_error
    assert "the shop is closed" in text_of(failed)


async def test_progress_is_reported_while_the_workflow_runs(address: str, tmp_path: Path) -> None:
    go, seen = tmp_path / "go", list[tuple[float, str]]()

    async def report(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, message or ""))
        if "computer" in (message or ""):
            go.touch()  # the workflow cannot end before this report

    async with mcp_client(address) as client:
        answer = await client.call_tool("slow_compute", {"after": str(go)}, progress_callback=report)

    assert not answer.is_error
    assert [progress for progress, _ in seen] == sorted({progress for progress, _ in seen})
    assert any(message == "computer: Computes for some time" for _, message in seen)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_text_is_reported_while_an_agent_writes_it(address: str, mode: Any, tmp_path: Path) -> None:
    go, seen = tmp_path / "go", list[tuple[float, str]]()

    async def report(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, message or ""))
        if (message or "").startswith("writer: The sky"):
            go.touch()  # the agent continues after this report

    async with mcp_client(address, mode=mode) as client:
        answer = await client.call_tool("write", {"after": str(go)}, progress_callback=report)

    texts = [message.removeprefix("writer: ") for _, message in seen if message.startswith("writer: The")]
    assert len(texts) > 1
    assert texts[-1] == text_of(answer)
    assert all(text_of(answer).startswith(text) for text in texts)
    assert [progress for progress, _ in seen] == sorted({progress for progress, _ in seen})


async def test_a_cancelled_call_cancels_its_workflow(address: str, running: RunningTeam, tmp_path: Path) -> None:
    async with mcp_client(address) as client:
        calling = asyncio.create_task(client.call_tool("slow_compute", {"after": str(tmp_path / "never")}))
        await until(lambda: statuses(running, "running"), seconds=30)
        calling.cancel()
        await asyncio.wait({calling})
        await until(lambda: statuses(running, "cancelled"), seconds=30)


async def test_a_client_of_an_older_version_cancels_by_leaving(
    address: str, running: RunningTeam, tmp_path: Path
) -> None:
    async def call() -> None:
        async with mcp_client(address, mode="legacy") as client:
            await client.call_tool("slow_compute", {"after": str(tmp_path / "never")})

    calling = asyncio.create_task(call())
    await until(lambda: statuses(running, "running"), seconds=30)
    calling.cancel()
    await asyncio.wait({calling})
    await until(lambda: statuses(running, "cancelled"), seconds=30)


async def statuses(running: RunningTeam, *expected: str) -> bool:
    return [each.status for each in await running.list()] == list(expected)


async def test_a_question_and_an_approval_are_elicitations(address: str, running: RunningTeam) -> None:
    asked: list[types.ElicitRequestFormParams] = []

    async def answer(context: Any, params: Any) -> types.ElicitResult:
        asked.append(params)
        return types.ElicitResult(action="accept", content={"confirm": True} if "Delete" in params.message else {})

    async with mcp_client(address, elicitation_callback=answer) as client:
        deleted = await client.call_tool("confirm_delete", {"filename": "a.txt"})
        greeted = await client.call_tool("guarded", {"name": "Ada"})

    async def refuse(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="decline")

    async with mcp_client(address, elicitation_callback=refuse) as client:
        refused = await client.call_tool("guarded", {"name": "Ada"})

    assert (text_of(deleted), text_of(greeted)) == ("deleted a.txt", "Hello, Ada!")
    assert asked[0].message == "Delete a.txt?"
    assert asked[0].requested_schema["properties"]["confirm"]["type"] == "boolean"
    assert "begin with this plan" in asked[1].message
    assert refused.is_error
    answers = {
        entry.by for each in await running.list() for entry in await running.entries(each.id)
        if entry.kind == "question_answered"
    }  # fmt: skip
    assert answers == {"local"}


async def test_a_client_without_forms_waits_for_an_answer_from_elsewhere(address: str, running: RunningTeam) -> None:
    async with mcp_client(address) as client:
        calling = asyncio.create_task(client.call_tool("confirm_delete", {"filename": "a.txt"}))
        (question,) = await until(running.operations.questions, seconds=30)
        await running.operations.answer(question.id, {"confirm": False})
        answer = await calling

    assert text_of(answer) == "kept a.txt"


async def test_an_answer_that_does_not_fit_is_asked_for_again(address: str) -> None:
    async with http_client(address) as client:
        call: dict[str, Any] = {"name": "confirm_delete", "arguments": {"filename": "a"}}
        asked = await sync_result(client, "tools/call", **call)
        (id,) = asked["inputRequests"]
        again = await sync_result(
            client, "tools/call", **call, requestState=asked["requestState"],
            inputResponses={id: {"action": "accept", "content": {"confirm": "maybe"}}},
        )  # fmt: skip
        done = await sync_result(
            client, "tools/call", **call, requestState=asked["requestState"],
            inputResponses={id: {"action": "accept", "content": {"confirm": True}}, "unknown": {"action": "cancel"}},
        )  # fmt: skip
        changed = await post(client, "tools/call", **call, requestState="wf_of_another_caller")

    assert (asked["resultType"], list(again["inputRequests"])) == ("input_required", [id])
    assert "The last answer was not accepted" in again["inputRequests"][id]["params"]["message"]
    assert done["content"][0]["text"] == "deleted a"
    assert changed.json()["error"]["code"] == types.INVALID_PARAMS


async def sync_result(client: httpx2.AsyncClient, method: str, **params: Any) -> dict[str, Any]:
    """Send a request as a client that supports forms but not tasks. The result may arrive in a stream."""
    import json

    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
    }
    headers = {
        "accept": "application/json, text/event-stream", "mcp-protocol-version": "2026-07-28", "mcp-method": method,
        "mcp-name": params["name"],
    }  # fmt: skip
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    response = await client.post("/mcp", json=body, headers=headers)
    assert response.status_code == 200, response.text
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    found: dict[str, Any] = json.loads(lines[-1] if lines else response.text)["result"]
    return found


async def test_a_task_outlives_the_gateway_and_another_one_answers(settings: Settings, tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with (
        factory.team(TEAMS, AGENTS, on=settings),
        System(tmp_path / "system", settings) as system,
    ):
        first, one = await gateway_process(system)
        async with http_client(one) as client:
            created = await result(client, "tools/call", name="slow_compute", arguments={"after": str(go)})
            task = created["taskId"]
            working = await result(client, "tasks/get", taskId=task)
        await first.kill()
        _, two = await gateway_process(system)
        go.touch()

        async def ended() -> dict[str, Any] | None:
            found = await result(client, "tasks/get", taskId=task)
            return found if found["status"] == "completed" else None

        async with http_client(two) as client:
            done = await until(ended, seconds=60)

    assert (created["resultType"], created["status"], working["status"]) == ("task", "working", "working")
    assert done["result"]["structuredContent"] == {"label": "", "done": True}


async def test_a_task_is_finished_by_the_sdk_and_asks_its_questions(address: str) -> None:
    async def finish(task: Task, context: ClaimContext) -> types.CallToolResult:
        async def send(method: str, **params: Any) -> dict[str, Any]:
            async with http_client(address) as http:
                return await result(http, method, taskId=task.task_id, **params)

        async def asks() -> dict[str, Any] | None:
            found = await send("tasks/get")
            return found if found["status"] == "input_required" else None

        async def ended() -> dict[str, Any] | None:
            found = await send("tasks/get")
            return found if found["status"] == "completed" else None

        (id,) = (await until(asks, seconds=30))["inputRequests"]
        acknowledged = await send("tasks/update", inputResponses={id: {"action": "accept", "content": {"name": "Eve"}}})
        assert acknowledged.keys() <= {"resultType", "_meta"}
        return types.CallToolResult.model_validate((await until(ended, seconds=30))["result"])

    async with mcp_client(address, extensions=[Tasks(finish)]) as client:
        answer = await client.call_tool("test_input_required_result_elicitation", {})

    assert text_of(answer) == "Hello, Eve!"


async def test_a_task_is_cancelled_and_a_short_one_needs_no_task(address: str, tmp_path: Path) -> None:
    async with http_client(address) as client:
        task = (await result(client, "tools/call", name="slow_compute", arguments={"after": str(tmp_path / "no")}))[
            "taskId"
        ]

        async def cancelled() -> bool:
            return bool((await result(client, "tasks/get", taskId=task))["status"] == "cancelled")

        await result(client, "tasks/cancel", taskId=task)
        await until(cancelled, seconds=30)
        await result(client, "tasks/cancel", taskId=task)
        unknown = await post(client, "tasks/get", taskId="wf_unknown")

    assert unknown.json()["error"]["code"] == types.INVALID_PARAMS


async def test_one_idempotency_key_is_one_workflow(address: str, running: RunningTeam) -> None:
    async with mcp_client(address) as client:
        meta: Any = {"io.pointsman/idempotencyKey": "order-7"}
        answers = [await client.call_tool("greet", {"name": "Ada"}, meta=meta) for _ in range(2)]

    assert len({(answer.meta or {})["io.pointsman/workflow"] for answer in answers}) == 1
    assert len(await running.list()) == 1


async def test_outcomes_and_files_are_resources(address: str) -> None:
    async with mcp_client(address) as client:
        letter = await client.call_tool("letters", {"name": "Ada"})
        workflow = (letter.meta or {})["io.pointsman/workflow"]
        (link,) = [each for each in letter.content if isinstance(each, types.ResourceLink)]

        async def listed() -> list[str]:
            return [str(each.uri) for each in (await client.list_resources()).resources]

        (outcome,) = await until(listed, seconds=30)
        (read,) = (await client.read_resource(outcome)).contents
        (file,) = (await client.read_resource(str(link.uri))).contents
        templates = (await client.list_resource_templates()).resource_templates
        for unknown in ("pointsman://workflows/wf_unknown", f"{outcome}/files/2", "file:///etc/passwd"):
            with pytest.raises(MCPError, match="there is no resource"):
                await client.read_resource(unknown)

    assert outcome == f"pointsman://workflows/{workflow}"
    assert isinstance(read, types.TextResourceContents)
    assert '"status":"completed"' in read.text
    assert isinstance(file, types.TextResourceContents)
    assert (link.name, file.text) == ("letter.txt", "Dear Ada")
    assert len(templates) == 2


async def test_a_caller_has_only_its_own_tools_tasks_and_outcomes(
    running: RunningTeam, settings: Settings, tmp_path: Path
) -> None:
    keys = await KeyStore.open(running.bus, running.subjects)
    ada = (await keys.create("ada", teams=["greet", "slow_compute"])).text
    bob = (await keys.create("bob")).text
    async with served_gateway(settings, gateway_require_key=True) as address:
        async with mcp_client(address, ada) as client:

            async def both_tools() -> list[str] | None:
                """Return the names of the tools. On a busy machine, the card of a team may expire and return."""
                found = [tool.name for tool in (await client.list_tools()).tools]
                return found if len(found) >= 2 else None

            tools = await until(both_tools, seconds=30)
            with pytest.raises(MCPError, match="there is no tool 'letters' for you"):
                await client.call_tool("letters", {})
        async with http_client(address, ada) as hers, http_client(address, bob) as his:
            call = {"name": "slow_compute", "arguments": {"after": str(tmp_path / "never")}}
            task = (await result(hers, "tools/call", **call))["taskId"]
            foreign = [await post(his, method, taskId=task) for method in ("tasks/get", "tasks/cancel", "tasks/update")]
            foreign.append(await post(his, "resources/read", uri=f"pointsman://workflows/{task}"))
            own = await result(hers, "tasks/get", taskId=task)
        async with http_client(address) as keyless:
            refused = await post(keyless, "tools/list")
    (started,) = await running.list()

    assert sorted(tools) == ["greet", "slow_compute"]
    assert [response.json()["error"]["code"] for response in foreign] == [types.INVALID_PARAMS] * 4
    assert own["status"] == "working"
    assert (refused.status_code, started.caller) == (401, "ada")


async def test_a_stopped_gateway_gives_up_its_calls_and_the_next_call_continues(
    running: RunningTeam, settings: Settings, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    call = {"name": "slow_compute", "arguments": {"after": str(go)}}
    async with AsyncExitStack() as stack:
        async with served_gateway(settings) as address:
            client = await stack.enter_async_context(http_client(address))
            calling = asyncio.create_task(sync_result(client, "tools/call", **call))
            await until(lambda: statuses(running, "running"), seconds=30)
        given_up = await calling
    go.touch()
    async with served_gateway(settings) as address, http_client(address) as client:
        answer = await sync_result(client, "tools/call", **call, requestState=given_up["requestState"])
    (only,) = await running.list()

    assert (given_up["resultType"], "inputRequests" in given_up) == ("input_required", False)
    assert answer["structuredContent"]["done"]
    assert only.status == "completed"


async def test_other_methods_of_http_are_refused_and_pages_of_other_hosts_too(address: str) -> None:
    async with http_client(address) as client:
        stream = await client.get("/mcp", headers={"accept": "text/event-stream"})
        foreign = await client.post("/mcp", json={}, headers={"origin": "https://evil.example"})

    assert (stream.status_code, stream.headers["allow"]) == (405, "POST")
    assert foreign.status_code == 403


async def test_a_refused_client_finds_the_issuer_by_the_metadata_of_the_resource(
    running: RunningTeam, settings: Settings
) -> None:
    issuer = "http://127.0.0.1:9/realm"  # no process listens at this address, because no token is verified
    options = {"gateway_require_key": True, "gateway_oidc_issuer": issuer}
    async with served_gateway(settings, **options) as address, http_client(address) as client:
        refused = await post(client, "tools/list")
        url = f"{address}/.well-known/oauth-protected-resource/mcp"
        metadata = (await client.get(url)).json()
    audience = "https://gateway.example/mcp"
    async with (
        served_gateway(settings, **options, gateway_oidc_audience=audience) as address,
        http_client(address) as client,
    ):
        named = (await client.get("/.well-known/oauth-protected-resource")).json()

    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == f'Bearer realm="pointsman", resource_metadata="{url}"'
    assert (metadata["resource"], metadata["authorization_servers"]) == (f"{address_of(url)}/mcp", [issuer])
    assert named["resource"] == audience


def address_of(url: str) -> str:
    return url.partition("/.well-known")[0]
