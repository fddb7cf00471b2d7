"""The Tasks extension of MCP, with the checks of the official suite's nine scenarios, and with other clients of MCP.

The suite is an npm package, so it runs only with `make conformance`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NoReturn

import httpx2
import mcp.types as types
import pytest
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from support import factory
from support.conformance import __main__ as conformance
from support.conformance.npm import InstallError
from support.gateway import http_client, served_gateway
from support.mcp_client import TASKS, post, result
from support.mcp_teams import AGENTS, TEAMS
from support.waiting import until

from pointsman.gateway.mcp import tasks
from pointsman.settings import Settings

pytestmark = pytest.mark.timeout(180)

SLOW: dict[str, Any] = {"name": "slow_compute", "arguments": {"seconds": 1, "label": "x"}}


@pytest.fixture
async def address(settings: Settings) -> AsyncIterator[str]:
    async with factory.team(TEAMS, AGENTS, on=settings), served_gateway(settings) as address:
        yield address


@pytest.fixture
async def client(address: str) -> AsyncIterator[httpx2.AsyncClient]:
    async with http_client(address) as client:
        yield client


async def task_in(client: httpx2.AsyncClient, task: str, *statuses: str) -> dict[str, Any]:
    async def found() -> dict[str, Any] | None:
        read = await result(client, "tasks/get", taskId=task)
        return read if read["status"] in statuses else None

    read: dict[str, Any] = await until(found, seconds=30)
    return read


def error_of(response: httpx2.Response) -> int:
    code: int = response.json()["error"]["code"]
    return code


async def test_a_task_goes_from_working_to_its_result_and_has_the_fields_of_the_wire(
    client: httpx2.AsyncClient, tmp_path: Path
) -> None:
    """The scenarios tasks-lifecycle, tasks-wire-fields and tasks-request-state-removal."""
    go = tmp_path / "go"
    given = {"after": str(go), "label": "x"}
    created = await result(client, "tools/call", name="slow_compute", arguments=given)
    working = await result(client, "tasks/get", taskId=created["taskId"])
    go.touch()
    done = await task_in(client, created["taskId"], "completed")
    failing = await result(client, "tools/call", name="failing_job", arguments={})
    failed = await task_in(client, failing["taskId"], "completed", "failed")
    cancelled = await result(client, "tasks/cancel", taskId=created["taskId"])
    unknown = await post(client, "tasks/get", taskId="tasks-conformance-nonexistent")

    assert (created["resultType"], created["status"], working["status"]) == ("task", "working", "working")
    for each in (created, working, done):
        assert {"taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs"} <= each.keys()
        assert not {"ttl", "pollInterval", "requestState", "task"} & each.keys()
    assert [each["resultType"] for each in (working, done, cancelled)] == ["complete"] * 3
    assert done["result"]["structuredContent"] == {"label": "x", "done": True}
    assert "io.modelcontextprotocol/related-task" not in (done["result"].get("_meta") or {})
    assert failed["result"]["isError"] is True
    assert error_of(unknown) == types.INVALID_PARAMS


async def test_a_task_that_works_has_the_text_so_far_as_its_status_message(
    client: httpx2.AsyncClient, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    created = await result(client, "tools/call", name="write", arguments={"after": str(go)})

    async def writes() -> dict[str, Any] | None:
        read = await result(client, "tasks/get", taskId=created["taskId"])
        return read if read.get("statusMessage", "").startswith("writer: The sky .") else None

    working = await until(writes, seconds=30)
    go.touch()
    done = await task_in(client, created["taskId"], "completed")

    assert working["lastUpdatedAt"] > created["lastUpdatedAt"]
    assert "statusMessage" not in done


async def test_only_a_client_that_declares_tasks_gets_a_task(
    client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scenarios tasks-capability-negotiation and tasks-dispatch-and-envelope."""
    discovered = await result(client, "server/discover")
    created = await result(client, "tools/call", **SLOW)
    undeclared = await post(client, "tasks/get", tasks=False, taskId=created["taskId"])
    plain = await post(client, "tools/call", tasks=False, **SLOW)
    ignored = await post(client, "tools/call", tasks=False, name="greet", arguments={}, task={"ttl": 1_000})
    monkeypatch.setattr(tasks, "_IMMEDIATE_S", 30.0)
    quick = await result(client, "tools/call", name="greet", arguments={})
    removed = [await post(client, method, taskId=created["taskId"]) for method in ("tasks/list", "tasks/result")]

    assert TASKS in discovered["capabilities"]["extensions"]
    assert '"label":"x"' in plain.text.replace(" ", "").replace("\\", "")
    assert '"resultType":"task"' not in plain.text + ignored.text
    assert "Hello, you!" in ignored.text
    assert (quick["resultType"], quick["content"][0]["text"]) == ("complete", "Hello, you!")
    assert error_of(undeclared) == types.MISSING_REQUIRED_CLIENT_CAPABILITY
    assert [error_of(each) for each in removed] == [types.METHOD_NOT_FOUND] * 2


async def test_questions_of_a_task_are_answered_one_by_one(client: httpx2.AsyncClient) -> None:
    """The scenario tasks-mrtr-input."""
    created = await result(client, "tools/call", name="multi_input", arguments={})
    asked = await task_in(client, created["taskId"], "input_required")

    async def both() -> dict[str, Any] | None:
        found = (await result(client, "tasks/get", taskId=created["taskId"]))["inputRequests"]
        return dict(found) if len(found) == 2 else None

    requests = await until(both, seconds=30)
    names = {"begins" in each["params"]["message"]: id for id, each in requests.items()}
    first = {names[True]: {"action": "accept", "content": {"name": "Ada"}}}
    second = {names[False]: {"action": "accept", "content": {"confirm": True}}}
    acknowledged = await result(client, "tasks/update", taskId=created["taskId"], inputResponses=first)

    async def one_left() -> bool:
        found = await result(client, "tasks/get", taskId=created["taskId"])
        return list(found.get("inputRequests", {})) == [names[False]]

    await until(one_left, seconds=30)
    await result(client, "tasks/update", taskId=created["taskId"], inputResponses=second)
    done = await task_in(client, created["taskId"], "completed")

    assert {each["method"] for each in asked["inputRequests"].values()} == {"elicitation/create"}
    assert acknowledged.keys() <= {"resultType", "_meta"}
    assert done["result"]["content"][0]["text"] == "Ada, True"
    assert "inputRequests" not in done


async def test_headers_that_differ_from_the_body_are_refused(client: httpx2.AsyncClient) -> None:
    """The scenario tasks-request-headers."""
    task = (await result(client, "tools/call", **SLOW))["taskId"]
    accepted = await post(client, "tasks/get", taskId=task)
    other_name = await post(client, "tasks/get", sent={"mcp-name": "another"}, taskId=task)
    other_method = await post(client, "tasks/get", sent={"mcp-method": "tools/call"}, taskId=task)

    assert accepted.json()["result"]["taskId"] == task
    assert [(each.status_code, error_of(each)) for each in (other_name, other_method)] == [
        (400, types.HEADER_MISMATCH), (400, types.HEADER_MISMATCH),
    ]  # fmt: skip


def test_the_suite_is_skipped_without_npm_and_fails_in_ci(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> NoReturn:
        raise InstallError("npm cannot install")

    monkeypatch.setattr(conformance, "install", fail)
    monkeypatch.delenv("POINTSMAN_NEEDS_NPM", raising=False)

    here = conformance.main(), capsys.readouterr().out
    monkeypatch.setenv("POINTSMAN_NEEDS_NPM", "1")
    in_ci = conformance.main(), capsys.readouterr().out

    assert here == (0, "SKIPPED, nothing was tested: npm cannot install\n")
    assert in_ci == (1, "FAILED: npm cannot install\n")


async def outcomes(client: Any) -> Any:
    """Return the resources when the index of the gateway has the ends of four workflows."""
    found = await client.list_resources()
    return found if len(found) >= 4 else None


async def all_tools(client: Any) -> bool:
    """Return True if each team is a tool."""
    return {tool.name for tool in await client.list_tools()} == {team.name for team in TEAMS}


async def test_the_client_of_fastmcp_calls_tools_answers_questions_and_reads_resources(
    address: str, tmp_path: Path
) -> None:
    reports, go = list[str](), tmp_path / "go"

    async def report(progress: float, total: float | None, message: str | None) -> None:
        reports.append(message or "")
        if (message or "").startswith("writer: The sky"):
            go.touch()  # the agent continues after this report

    async def confirm(message: str, response_type: Any, params: Any, context: Any) -> Any:
        return ElicitResult(action="accept", content=response_type(confirm=True))

    async with asyncio.timeout(60):
        async with Client(f"{address}/mcp", elicitation_handler=confirm, progress_handler=report) as client:
            await until(lambda: all_tools(client), seconds=30)
            answer = await client.call_tool("greet", {"name": "Ada"})
            written = await client.call_tool("write", {"after": str(go)})
            asked = await client.call_tool("confirm_delete", {"filename": "a"})
            await client.call_tool("letters", {"name": "Ada"})
            resources = await until(lambda: outcomes(client), seconds=30)
            outcome = await client.read_resource(resources[-1].uri)

    assert answer.content[0].text == "Hello, Ada!"
    assert asked.content[0].text == "deleted a"
    assert written.content[0].text.endswith("is blue.")
    assert f"writer: {written.content[0].text}" in reports
    assert len(resources) == 4
    assert '"status":"completed"' in outcome[0].text
