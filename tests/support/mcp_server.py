"""An MCP server without a process: a fake client with scripted answers replaces the SDK's client."""

from __future__ import annotations

import asyncio
from typing import Any, Self

import pytest
from mcp.types import CallToolResult, ListToolsResult, TextContent
from mcp.types import Tool as Offered

from pointsman.authoring.mcp import McpTools

__all__ = ["ADD", "FakeMcpClient", "FakeMcpServer", "serving", "source"]

ADD = Offered(name="add", description="Adds", input_schema={"type": "object", "properties": {"a": {}}})


class FakeMcpServer:
    """Offers the tool `ADD`, answers with `does`, and counts connections, calls and disconnections."""

    def __init__(self) -> None:
        self.does: Any = CallToolResult(content=[TextContent(type="text", text="done")])
        self.opening: Any = None
        self.pages = 1
        self.gone: Exception | None = None
        self.connected = self.left = 0
        self.left_by: list[type[BaseException] | None] = []
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.listed: list[str | None] = []

    def client(self, given: object, **_: object) -> FakeMcpClient:
        assert given is self
        return FakeMcpClient(self)


class FakeMcpClient:
    """The part of the SDK's client that the runtime uses."""

    def __init__(self, server: FakeMcpServer) -> None:
        self.server = server

    async def __aenter__(self) -> Self:
        self.server.connected += 1
        await asyncio.sleep(0)
        if isinstance(self.server.opening, Exception):
            raise self.server.opening
        if self.server.opening is not None:
            await self.server.opening.wait()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.server.left += 1
        self.server.left_by.append(kind)

    async def list_tools(self, *, cursor: str | None = None, cache_mode: str = "use") -> ListToolsResult:
        if self.server.gone is not None:
            raise self.server.gone
        self.server.listed.append(cursor)
        place = int(cursor or 0)
        tools = [ADD.model_copy(update={"name": f"add_{place}" if place else "add"})]
        return ListToolsResult(tools=tools, next_cursor=str(place + 1) if place + 1 < self.server.pages else None)

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> CallToolResult:
        self.server.asked.append((name, arguments))
        if isinstance(self.server.does, Exception):
            raise self.server.does
        given: CallToolResult = self.server.does
        return given


def serving(monkeypatch: pytest.MonkeyPatch) -> FakeMcpServer:
    """Connect each client of the SDK to this server."""
    there = FakeMcpServer()
    monkeypatch.setattr("mcp.Client", there.client)
    return there


def source(server: Any = None, **more: Any) -> McpTools:
    given = {"only": (), "timeout": 5.0, "idempotent": (), "approval": (), **more}
    return McpTools(lambda: server, "calc", given["only"], given["timeout"], given["idempotent"], given["approval"])
