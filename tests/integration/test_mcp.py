"""Tools of real MCP servers, as processes and over HTTP, and a team as a tool of an MCP server of the official SDK."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters  # imported here, because the import takes seconds
from support import factory
from support.cluster import free_ports
from support.contexts import new_context
from support.factory import planner_of, synthesizer
from support.lines import lines_of
from support.processes import wait_for
from support.waiting import until

from pointsman.authoring.agent import agent
from pointsman.authoring.context import Context
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.authoring.mcp import McpTools, mcp_tools
from pointsman.errors import AnswerRequiredError, ConfigurationError
from pointsman.settings import Settings
from pointsman.testing.models import ScriptedModel, text_reply, tool_reply
from pointsman_schemas.events import Answer
from pointsman_schemas.team import ANY, Limits, Pipeline, PlanAndExecute, Stage, Team

pytestmark = pytest.mark.timeout(90)

SERVER = """
import asyncio, os, pathlib, time

here = pathlib.Path(__file__).parent
(here / "pids").open("a").write(f"{os.getpid()}\\n")
time.sleep(float(os.environ.get("SLOW", 0)))
if restart := os.environ.get("SLOW_RESTART"):
    if (here / "started").exists():
        time.sleep(float(restart))
    (here / "started").touch()

from mcp.server import MCPServer  # imported late: the import is slow, and some tests end the server during its start
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

server = MCPServer("calculator")

@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    'Adds two numbers.'
    return a + b

@server.tool()
def fail() -> str:
    'Always fails.'
    raise ToolError("no such luck")

@server.tool()
async def slow() -> str:
    'Takes long.'
    await asyncio.sleep(60)

@server.tool()
def die() -> str:
    'Ends the server.'
    os._exit(1)

server.run()
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    (tmp_path / "server.py").write_text(SERVER)
    return [sys.executable, str(tmp_path / "server.py")]


def pids(folder: Path) -> list[int]:
    return [int(line) for line in lines_of(folder / "pids")]


async def ended(pid: int) -> None:
    async def gone() -> bool:
        return not Path(f"/proc/{pid}").exists()  # noqa: ASYNC240  # /proc does not block

    await wait_for(gone, "the end of the server")


def llm_agent(source: McpTools, *script: object) -> tuple[LLMAgent, ScriptedModel]:
    model = ScriptedModel(*script)  # type: ignore[arg-type]
    return LLMAgent(name="a", description="d", instructions="i", tools=[source], model=model), model


async def test_an_agent_uses_the_tools_of_a_server_and_closes_it(command: list[str], tmp_path: Path) -> None:
    calls = tool_reply(("add", {"a": 2, "b": 3}), ("add", {"a": "x"}), ("fail", {}))
    adding, model = llm_agent(mcp_tools(command, only=["add", "fail"]), calls, text_reply("5"))
    context = Context.for_test("2 and 3")

    output = await adding.run(context.handoff, context)
    (pid,) = pids(tmp_path)
    await adding.close()

    assert output == "5"
    assert [tool.name for tool in model.requests[0].tools] == ["add", "fail"]
    assert model.requests[0].tools[0].description == "Adds two numbers."
    assert "a" in str(model.requests[0].tools[0].parameters["properties"])
    told = [(turn.text, turn.is_error) for turn in model.requests[1].turns if turn.role == "tool"]
    assert told[0] == ("5", False)
    assert told[1][1]
    assert told[2][1]
    assert "no such luck" in told[2][0]

    await ended(pid)


async def test_server_whose_start_was_cancelled_is_stopped(command: list[str], tmp_path: Path) -> None:
    source = mcp_tools(command, env={"SLOW": "60"})
    asking = asyncio.create_task(source.tools())

    async def begun() -> list[int]:
        return pids(tmp_path)

    (pid,) = await wait_for(begun, "the server")
    asking.cancel()
    await asyncio.wait({asking})

    await ended(pid)


async def test_a_tool_that_only_reads_may_run_again_and_another_may_not(command: list[str]) -> None:
    source = mcp_tools(command, idempotent=["fail"])

    offered = {tool.name: tool.idempotent for tool in await source.tools()}
    await source.close()

    assert offered == {"add": True, "fail": True, "slow": False, "die": False}


async def test_a_call_is_bounded_and_a_server_that_died_is_started_again(command: list[str], tmp_path: Path) -> None:
    calls = (
        tool_reply(("die", {})),
        tool_reply(("add", {"a": 1, "b": 1})),
        tool_reply(("slow", {})),
        text_reply("done"),
    )
    # The timeout of a call does not include the server's start.
    restarted = mcp_tools(command, only=["die", "add"], timeout=4, env={"SLOW_RESTART": "4"})
    bounded = mcp_tools(command, only=["slow"], timeout=1)
    model = ScriptedModel(*calls)
    dying = LLMAgent(name="a", description="d", instructions="i", tools=[restarted, bounded], model=model)
    context = Context.for_test("die")

    await dying.run(context.handoff, context)
    await dying.close()

    told = [turn.text for turn in model.requests[-1].turns if turn.role == "tool"]
    assert "die failed" in told[0]
    assert told[1] == "2"
    assert "no answer within 1 s" in told[2]
    assert len(pids(tmp_path)) == 3


async def test_tool_of_a_server_waits_for_approval_and_edited_arguments(command: list[str]) -> None:
    source = mcp_tools(command, only=["add", "fail"], approval=["add"])
    context = Context.for_test("add")
    add, fail = await source.tools()

    with pytest.raises(AnswerRequiredError) as caught:
        await add.call('{"a": 2, "b": 3}', context)
    (asked,) = caught.value.questions
    said = Answer(tool="add", arguments=asked.arguments, verdict="approved", input={"a": 2, "b": 40})
    allowed = new_context(context.handoff.model_copy(update={"answers": (said,)}))
    changed = await add.call('{"a": 2, "b": 3}', allowed)
    free = await fail.call("{}", context)
    await source.close()

    assert asked.arguments == {"a": 2, "b": 3}
    assert asked.input_schema is not None
    assert set(asked.input_schema["properties"]) == {"a", "b"}  # type: ignore[arg-type]
    assert changed.data == 42
    assert "no such luck" in free.text


async def start_http_server(script: Path, port: int) -> asyncio.subprocess.Process:
    """Start an MCP server. Wait until it listens on the port."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(script), str(port), stderr=asyncio.subprocess.DEVNULL
    )

    async def listens() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.close()
        return True

    await wait_for(listens, "the server")
    return process


async def test_a_server_is_reached_over_http(tmp_path: Path) -> None:
    [port] = free_ports(1)
    script = tmp_path / "server.py"
    script.write_text(SERVER.replace("server.run()", f"server.run('streamable-http', host='127.0.0.1', port={port})"))
    process = await start_http_server(script, port)
    try:
        source = mcp_tools(f"http://127.0.0.1:{port}/mcp", only=["add"])
        (add,) = await source.tools()
        result = await add.run({"a": 20, "b": 22}, Context.for_test())
        await source.close()
    finally:
        process.kill()
        await process.wait()

    assert result == 42


async def test_a_team_is_a_tool_of_a_server(settings: Settings, tmp_path: Path) -> None:
    team = Team(name="shop", description="Sells tea", agents=ANY, strategy=PlanAndExecute(), limits=Limits(deadline=30))
    plan = planner_of({"id": "t1", "agent": "worker", "intent": "sell"})
    environment = {**os.environ, "POINTSMAN_URL": settings.url, "POINTSMAN_NAMESPACE": settings.namespace}
    half, seen = asyncio.Event(), list[str]()

    @agent(name="worker", description="Writes")
    async def worker(request: str, context: Context) -> str:
        while not half.is_set():
            context.stream_text("Green, ")
            await asyncio.sleep(0.05)
        context.stream_text("and tea.")
        return "Green, and tea."

    async def report(progress: float, total: float | None, message: str | None) -> None:
        seen.append(message or "")
        if seen[-1].startswith("worker: Green, "):
            half.set()

    served = StdioServerParameters(command=sys.executable, args=["-m", "pointsman", "mcp", "shop"], env=environment)

    async with factory.team(team, [plan, synthesizer, worker], on=settings), Client(served) as client:
        (offered,) = (await client.list_tools()).tools
        result = await client.call_tool("shop", {"request": "tea, please"}, progress_callback=report)

    assert (offered.name, "Sells tea" in (offered.description or "")) == ("shop", True)
    assert not result.is_error
    assert result.content[0].text == "joined"  # type: ignore[union-attr]
    assert any(line.startswith("worker: Green, ") and line.endswith(", and tea.") for line in seen)


async def test_approval_of_a_server_tool_survives_the_end_of_all_processes(
    settings: Settings, command: list[str]
) -> None:
    team = Team(name="desk", agents=ANY, strategy=Pipeline(stages=(Stage(agent="a"),)), limits=Limits(deadline=60))
    model = ScriptedModel(tool_reply(("add", {"a": 2, "b": 3})), text_reply("It is done."))

    def clerk() -> LLMAgent:
        tools = [mcp_tools(command, only=["add"], approval=["add"])]
        return LLMAgent(name="a", description="Adds", instructions="Add.", tools=tools, model=model)

    async with factory.team(team, [clerk()], on=settings) as client:
        workflow = (await client.submit("desk", "2 and 3")).id
        (asked,) = await until(client.operations.questions, seconds=30)  # first a process must start and load the SDK
    async with factory.team(team, [clerk()], on=settings) as client:
        await client.operations.approve(asked.id, input={"a": 2, "b": 40}, actor="Ann")
        outcome = await (await client.workflow(workflow)).outcome(30)

    assert (asked.tool, asked.workflow_id) == ("add", workflow)
    assert (outcome.status, outcome.answer) == ("completed", "It is done.")
    assert [turn.text for turn in model.requests[-1].turns if turn.role == "tool"] == ["42"]


GUARDED = """
import sys

import uvicorn
from mcp.server import MCPServer

server = MCPServer("calculator")


@server.tool(name="math.add")
def add(a: int, b: int) -> int:
    "Adds two numbers."
    return a + b


application = server.streamable_http_app()


async def guarded(scope, receive, send):
    if scope["type"] == "http" and dict(scope["headers"]).get(b"authorization") != b"Bearer right":
        await send({"type": "http.response.start", "status": 401, "headers": []})
        return await send({"type": "http.response.body", "body": b""})
    await application(scope, receive, send)


uvicorn.run(guarded, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
"""


async def test_a_server_with_login_gets_it_also_after_a_restart(tmp_path: Path) -> None:
    [port] = free_ports(1)
    script = tmp_path / "guarded.py"
    script.write_text(GUARDED)
    url = f"http://127.0.0.1:{port}/mcp"
    process = await start_http_server(script, port)
    try:
        with pytest.raises(ConfigurationError, match="refused the login: HTTP status 401; pass a login with"):
            await mcp_tools(url).tools()
        source = mcp_tools(url, authorization=lambda: "Bearer right")
        (add,) = await source.tools()
        first = await add.run({"a": 1, "b": 2}, Context.for_test())
        process.kill()
        await process.wait()
        process = await start_http_server(script, port)
        after = [await add.call('{"a": 2, "b": 2}', Context.for_test()) for _ in range(2)]
        await source.close()
    finally:
        process.kill()
        await process.wait()

    assert (add.name, first, after[-1].data) == ("math_add", 3, 4)
