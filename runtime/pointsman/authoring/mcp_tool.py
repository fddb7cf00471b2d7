"""A tool that an MCP server offers, and the value of its result."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from pydantic import BaseModel, JsonValue

from pointsman.authoring.tool_arguments import ToolArguments
from pointsman.authoring.tools import Tool
from pointsman.errors import ConfigurationError, ContractError, TaskError
from pointsman.ports.model import ToolSpec
from pointsman_schemas.strict_json import as_json_value, parse_json

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult
    from mcp.types import Tool as Offered

__all__ = ["McpServer", "McpTool", "result_value", "safe_name"]

MAX_NAME_CHARS: Final = 64
"""Largest length of a tool's name that all providers accept, in characters."""


class McpServer(Protocol):
    """A connection to an MCP server, which is opened at its first use."""

    async def client(self) -> Client:
        """Return the connected client."""
        ...

    async def call(self, name: str, arguments: Mapping[str, JsonValue]) -> Any:
        """Call a tool of the server."""
        ...


class _ObjectArguments(ToolArguments):
    """The arguments of a tool of an MCP server. Any object is accepted, because the server checks it."""

    def parse(self, text: str) -> BaseModel:
        try:
            value = parse_json(text.strip().encode("utf-8", "surrogatepass") or b"{}")
        except ContractError as error:
            raise self.refusal(str(error)) from None
        if not isinstance(value, dict):
            raise self.refusal("the arguments are not a JSON object")
        return self.check(value)

    def check(self, arguments: Mapping[str, object]) -> BaseModel:
        return super().check({"arguments": as_json_value(dict(arguments))})

    def to_json(self, checked: BaseModel) -> dict[str, JsonValue]:
        return cast(dict[str, JsonValue], super().to_json(checked)["arguments"])


class McpTool(Tool[..., Any]):
    """Tool of an MCP server. The server checks the arguments; this class only checks that they are an object.

    Args:
        source: The server.
        offered: The tool as the server offers it.
        name: The name for models.
        timeout: Limit of each call, in seconds.
        idempotent: True if the tool may run twice.
        approval: True if a person must allow each call.

    Raises:
        ConfigurationError: The input of the tool is not an object.
    """

    _arguments_type = _ObjectArguments

    def __init__(
        self, source: McpServer, offered: Offered, name: str, timeout: float, idempotent: bool, approval: bool
    ) -> None:
        self._source = source

        async def call(arguments: dict[str, JsonValue]) -> Any:
            return await source.call(offered.name, arguments)

        if offered.input_schema.get("type", "object") != "object":
            raise ConfigurationError(f"the input is of the type {offered.input_schema['type']!r}, not an object")
        description = offered.description or offered.title or offered.name
        super().__init__(
            call, name=name, description=description, timeout=timeout, retries=0, idempotent=idempotent,
            approval=approval, namespace={},
        )  # fmt: skip
        self.spec = ToolSpec(name, description, offered.input_schema)

    async def _prepare(self) -> None:
        await self._source.client()


def safe_name(name: str, taken: Mapping[str, object]) -> str:
    """Return a name that all providers accept and that no other tool has. Each process computes the same name.

    Args:
        name: The name that the server gives.
        taken: The names of other tools.
    """
    safe = re.sub(r"[^A-Za-z0-9_-]", "_", name) or "tool"
    if len(safe) <= MAX_NAME_CHARS and safe not in taken:
        return safe
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{safe[: MAX_NAME_CHARS - len(digest) - 1]}_{digest}"


def result_value(result: CallToolResult) -> Any:
    """Return the value of a call: the structured content as JSON or, without structured content, the text.

    Args:
        result: The answer of the server.

    Raises:
        TaskError: The tool failed.
    """
    parts = [_content_part(block) for block in result.content]
    text = "\n".join(parts)
    if result.is_error:
        raise TaskError(text or "the tool failed without a reason")
    fields = result.structured_content
    if fields is None:
        return text
    return fields["result"] if set(fields) == {"result"} else fields  # the SDK wraps a value that is not an object


def _content_part(block: Any) -> str:
    there = block.resource if block.type == "resource" else block
    if getattr(there, "text", None) is not None:
        return str(there.text)
    kind = getattr(there, "mime_type", None) or there.uri
    return f"[{block.type} {kind}: not shown]"
