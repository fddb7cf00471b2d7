"""Tools and answers of an MCP server, with a fake of the SDK's client."""

from __future__ import annotations

import asyncio
import re
from datetime import date
from typing import Any

import pytest
from mcp import MCPError, types  # imported here, because the import takes seconds
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from mcp.types import Tool as Offered
from support.mcp_server import ADD, FakeMcpServer, serving, source

from pointsman.authoring.context import Context
from pointsman.authoring.mcp import MAX_TOOLS, mcp_tools
from pointsman.authoring.mcp_tool import result_value
from pointsman.errors import AnswerRequiredError, ConfigurationError, TaskError
from pointsman.ports.model import ToolSpec
from pointsman_schemas.events import ErrorKind

ANY = {"type": "object"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeMcpServer:
    return serving(monkeypatch)


# Offered tools


def test_a_tool_is_offered_as_its_server_says_and_its_user_adds() -> None:
    hints = [None, ToolAnnotations(), ToolAnnotations(read_only_hint=True), ToolAnnotations(idempotent_hint=True), None]
    words = [{"description": "Adds"}, {"title": "Title"}, {}, {"description": "d", "title": "t"}, {}]
    offered = [
        Offered(name=f"t{place}", input_schema={**ANY, "title": str(place)}, annotations=hint, **said)
        for place, (hint, said) in enumerate(zip(hints, words, strict=True))
    ]

    chosen = source(idempotent=["t4"], approval=["t1"], timeout=7.0)._selected(offered)

    assert [tool.spec for tool in chosen] == [
        ToolSpec(f"t{place}", said, {**ANY, "title": str(place)})
        for place, said in enumerate(["Adds", "Title", "t2", "d", "t4"])
    ]
    assert [tool.idempotent for tool in chosen] == [False, False, True, True, True]
    assert [tool.approval for tool in chosen] == [False, True, False, False, False]
    assert {(tool.timeout, tool.retries) for tool in chosen} == {(7.0, 0)}
    assert [tool.name for tool in source(only=["t3"])._selected(offered)] == ["t3"]


def test_tool_count_is_bounded_by_what_a_model_can_take() -> None:
    offered = [Offered(name=f"t{number}", input_schema=ANY) for number in range(MAX_TOOLS + 1)]

    assert MAX_TOOLS == 64
    assert len(source()._selected(offered[:MAX_TOOLS])) == MAX_TOOLS
    assert len(source(only=["t64"])._selected(offered)) == 1
    with pytest.raises(ConfigurationError, match="calc offers 65 tools; choose at most 64"):
        source()._selected(offered)


@pytest.mark.parametrize(
    ("offered", "given", "said"),
    [
        ([], {"idempotent": ["add"]}, "calc has no tool add; it has none"),
        ([ADD], {"only": ["add", "sub"]}, "calc has no tool sub; it has add"),
        ([ADD], {"approval": ["sub", "mul"]}, "calc has no tool mul, sub; it has add"),
    ],
)
def test_unusable_tools_are_named(offered: list[Offered], given: dict[str, list[str]], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        source(**given)._selected(offered)


async def test_all_pages_of_a_tool_list_are_read(server: FakeMcpServer) -> None:
    calc, server.pages = source(server), 3

    offered = [tool.name for tool in await calc.tools()]
    await calc.close()

    assert (offered, server.listed) == (["add", "add_1", "add_2"], [None, "1", "2"])


async def test_endless_tool_list_is_abandoned(server: FakeMcpServer) -> None:
    server.pages = 10**9

    with pytest.raises(ConfigurationError, match="calc offers 641 tools"):
        await source(server).tools()


def test_server_gets_its_configured_environment() -> None:
    command = mcp_tools(["serve", "--root", "x" * 300], env={"A": "b"}, timeout=3.0, only=["add"], approval=["add"])
    web = mcp_tools("https://host/mcp", idempotent=["add"], approval=["add"], timeout=4.0)

    started = command._server()
    assert (started.command, started.args, started.env) == ("serve", ["--root", "x" * 300], {"A": "b"})
    assert mcp_tools(["serve"])._server().env is None
    assert repr(command) == f"<tools of serve --root {'x' * 187}>"
    assert repr(web) == "<tools of https://host/mcp>"
    for each, time in ((command, 3.0), (web, 4.0)):
        (add,) = each._selected([ADD])
        assert (add.timeout, add.approval, add.idempotent) == (time, True, each is web)


@pytest.mark.parametrize(
    ("server", "given", "advice"),
    [
        (
            "some-mcp-server --root /srv",
            {},
            r"expected http://HOST:PORT/mcp, or a command as a list, \['some-mcp-server', ",
        ),
        ("localhost:8000/mcp", {}, "expected http://HOST:PORT/mcp"),
        ([], {}, "expected http://HOST:PORT/mcp, or a command as a list"),
        (["server"], {"only": "add"}, r"only='add'; expected \['add'\]"),
        (["server"], {"idempotent": "add"}, r"have idempotent='add'; expected \['add'\]"),
        (["server"], {"approval": "add"}, r"approval='add'; expected \['add'\]"),
    ],
)
def test_invalid_server_or_tool_list_names_the_fix(server: Any, given: Any, advice: str) -> None:
    with pytest.raises(ConfigurationError, match=advice):
        mcp_tools(server, **given)


# Requests


@pytest.mark.parametrize(
    ("text", "sent"),
    [('{"a": 1}', {"a": 1}), (' \n{"a": [null, "é"]} ', {"a": [None, "é"]}), ("", {}), ("  ", {})],
)
async def test_arguments_are_passed_on_as_they_are(text: str, sent: dict[str, Any], server: FakeMcpServer) -> None:
    calc = source(server)
    (add,) = await calc.tools()

    result = await add.call(text, Context.for_test())
    await calc.close()

    assert (result.data, result.is_error) == ("done", False)
    assert server.asked == [("add", sent)]


@pytest.mark.parametrize("text", ["[]", "{", '{"a": 1, "a": 2}', '"\ud800"'])
async def test_arguments_that_are_no_object_are_not_sent(text: str, server: FakeMcpServer) -> None:
    calc = source(server)
    (add,) = await calc.tools()

    result = await add.call(text, Context.for_test())
    await calc.close()

    assert result.text.startswith("bad arguments for add: ")
    assert server.asked == []


async def test_code_arguments_are_sent_as_json(server: FakeMcpServer) -> None:
    calc = source(server)
    (add,) = await calc.tools()

    await add.run({"day": date(2026, 1, 5)}, Context.for_test())
    await calc.close()

    assert server.asked == [("add", {"day": "2026-01-05"})]


async def test_a_person_is_asked_for_the_arguments_as_they_are(server: FakeMcpServer) -> None:
    calc = source(server, approval=["add"])
    (add,) = await calc.tools()

    with pytest.raises(AnswerRequiredError) as caught:
        await add.call('{"a": 1}', Context.for_test())
    await calc.close()

    assert [(call.tool, call.arguments) for call in caught.value.questions] == [("add", {"a": 1})]


async def test_the_start_of_a_server_is_not_a_call_s_time(server: FakeMcpServer) -> None:
    calc = source(server, timeout=0.4)
    (add,) = await calc.tools()
    await calc.close()
    server.opening = asyncio.Event()
    asyncio.get_running_loop().call_later(0.5, server.opening.set)

    result = await add.call("{}", Context.for_test())
    await calc.close()

    assert result.text == "done"


# Answers


def answer(*blocks: Any, fields: Any = None, is_error: bool = False) -> CallToolResult:
    return CallToolResult(content=list(blocks), structured_content=fields, is_error=is_error)


TEXT = TextContent(type="text", text="said")
BLOB = types.EmbeddedResource(type="resource", resource=types.BlobResourceContents(uri="file:///a.bin", blob="aGk="))
LINK = types.ResourceLink(type="resource_link", name="a", uri="file:///a.txt")
READ = types.EmbeddedResource(type="resource", resource=types.TextResourceContents(uri="file:///a.txt", text="read"))
IMAGE = types.ImageContent(type="image", data="aGk=", mime_type="image/png")


@pytest.mark.parametrize(
    ("result", "value"),
    [
        (answer(TEXT, READ, IMAGE), "said\nread\n[image image/png: not shown]"),
        (answer(TEXT, fields={"a": 1}), {"a": 1}),
        (answer(TEXT, fields={"result": [1]}), [1]),
        (answer(TEXT, fields={"result": 1, "a": 2}), {"result": 1, "a": 2}),
        (answer(BLOB, LINK), "[resource file:///a.bin: not shown]\n[resource_link file:///a.txt: not shown]"),
        (answer(), ""),
    ],
)
def test_an_answer_is_its_fields_or_its_texts(result: CallToolResult, value: Any) -> None:
    assert result_value(result) == value


@pytest.mark.parametrize(
    ("result", "said"), [(answer(TEXT, is_error=True), "said"), (answer(is_error=True), "failed without a reason")]
)
async def test_a_failed_tool_does_not_count_as_a_broken_connection(
    result: CallToolResult, said: str, server: FakeMcpServer
) -> None:
    calc, server.does = source(server), result
    await calc.tools()

    with pytest.raises(TaskError, match=said) as caught:
        await calc.call("add", {})
    await calc.client()

    assert (caught.value.kind, caught.value.retryable, server.connected) == (ErrorKind.HANDLER, False, 1)
    await calc.close()


async def test_unserializable_answer_is_a_tool_error_and_the_connection_stays(
    server: FakeMcpServer,
) -> None:
    calc, server.does = source(server), answer(fields={"a": float("nan")})
    (add,) = await calc.tools()

    result = await add.call("{}", Context.for_test())

    assert (result.is_error, "$.a is nan" in result.text, server.left) == (True, True, 0)
    await calc.close()


async def test_rejected_call_is_an_answer_and_the_connection_stays(server: FakeMcpServer) -> None:
    calc, server.does = source(server), MCPError(types.INVALID_PARAMS, "no such tool")

    with pytest.raises(TaskError, match="calc answered: no such tool") as caught:
        await calc.call("add", {})
    await calc.client()

    assert (caught.value.retryable, server.connected, server.left) == (False, 1, 0)
    await calc.close()


def test_names_that_providers_refuse_get_safe_names_and_one_malformed_tool_is_left_out() -> None:
    long = "x" * 70
    offered = [Offered(name=name, input_schema=ANY) for name in ("files.read", "files_read", long)]
    offered.append(Offered(name="odd", input_schema={"type": "array"}))

    names = [tool.name for tool in source()._selected(offered)]
    prefixed = [tool.name for tool in mcp_tools(["serve"], prefix="docs_")._selected(offered[:1])]

    assert names[0] == "files_read"
    assert re.fullmatch(r"files_read_[0-9a-f]{8}", names[1])
    assert re.fullmatch(r"x{55}_[0-9a-f]{8}", names[2])
    assert (len(names), prefixed) == (3, ["docs_files_read"])
    with pytest.raises(
        ConfigurationError, match="the tool odd of calc cannot be used: the input is of the type 'array'"
    ):
        source(only=["odd"])._selected(offered)


def test_headers_and_a_login_are_for_servers_over_http() -> None:
    with pytest.raises(ConfigurationError, match="is a command, and has headers or authorization"):
        mcp_tools(["serve"], authorization="Bearer x")
