"""Tools of MCP servers for agents, and a team as a tool of an MCP server. It needs the extra `mcp`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic import BaseModel, JsonValue

from pointsman.authoring.tools import Tool
from pointsman.errors import ConfigurationError, ContractError, TaskError, describe_error
from pointsman.ports.model import ToolSpec
from pointsman_schemas.ids import token
from pointsman_schemas.strict_json import as_json_value, parse_json

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult
    from mcp.types import Tool as Offered

__all__ = ["McpTools", "mcp_tools"]

MAX_TOOLS: Final = 64
"""Tools that one server may offer: each is told to the model in every request. `only` chooses from more."""
_START_TIMEOUT_S: Final = (
    30.0  # seconds that a server may take to be there: an interpreter with its imports on a slow machine
)
_CLOSE_TIMEOUT_S: Final = 5.0  # seconds that it may take to leave; then whoever waits for it goes on


class McpTools:
    """The tools of one server, connected when they are first needed, and again when the connection broke.

    A connection lives in a task of its own on the loop that uses it, for it must be closed where it was opened.
    """

    def __init__(
        self,
        server: Callable[[], Any],
        name: str,
        only: Sequence[str],
        timeout: float,
        idempotent: Sequence[str],
        approval: Sequence[str],
    ) -> None:
        self._server = server
        self._name = name
        self._only = frozenset(only)
        self._timeout = timeout
        self._idempotent = frozenset(idempotent)
        self._approval = frozenset(approval)
        self._lock: asyncio.Lock | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Client | None = None
        self._offered: list[Tool[..., Any]] = []
        self._stop: asyncio.Event | None = None
        self._connection_task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<tools of {self._name}>"

    async def tools(self) -> Sequence[Tool[..., Any]]:
        """What the server offers.

        Raises:
            TaskError: it cannot be reached (retryable), or offers what cannot be used.
        """
        await self.client()
        return self._offered

    async def call(self, name: str, arguments: Mapping[str, JsonValue]) -> Any:
        """What the server's tool gives. Raises `TaskError` with what it said when it failed."""
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        client = await self.client()
        try:
            return _result_value(await client.call_tool(name, dict(arguments)))
        except TaskError:
            raise
        except Exception as error:
            if isinstance(error, MCPError) and error.code != CONNECTION_CLOSED:
                raise TaskError(f"{self._name} answered: {error}") from None
            await self.close()  # the next call finds another connection, or says that there is none
            raise TaskError(f"the connection to {self._name} broke: {describe_error(error)}", retryable=True) from None

    async def close(self) -> None:
        """End the connection, and the server's process if it has one."""
        if self._loop is not asyncio.get_running_loop():
            return  # it lives on another loop, which ends it
        living, stop, client, self._client, self._connection_task = (
            self._connection_task,
            self._stop,
            self._client,
            None,
            None,
        )
        if living is None or stop is None:
            return
        if client is None:  # it has not begun to wait for the end
            living.cancel()
        stop.set()
        await asyncio.wait({living}, timeout=_CLOSE_TIMEOUT_S)
        living.cancel()

    async def client(self) -> Client:
        """The client of a server that is there. Raises as `tools` does, within the time that a server may take."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._lock, self._client, self._connection_task = loop, asyncio.Lock(), None, None
        assert self._lock is not None
        async with self._lock:
            if self._connection_task is not None and self._connection_task.done():
                self._client = None
            if self._client is None:
                self._client = await self._connect()
            return self._client

    async def _connect(self) -> Client:
        ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._stop = stop = asyncio.Event()
        self._connection_task = living = asyncio.create_task(self._run_connection(ready, stop))
        awaited: set[asyncio.Future[Any]] = {ready, living}
        try:
            await asyncio.wait(awaited, timeout=_START_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            living.cancel()  # nobody else knows of it, so nobody else would end it
            raise
        if ready.done():
            return ready.result()
        if living.cancelled():
            raise TaskError(f"the connection to {self._name} was closed before it was there", retryable=True)
        living.cancel()
        ended = living.exception() if living.done() and not living.cancelled() else None
        error = _innermost(ended) if ended is not None else None
        if isinstance(error, TaskError | ConfigurationError):
            raise error
        why = describe_error(error) if error is not None else f"no answer within {_START_TIMEOUT_S:g} s"
        raise TaskError(f"the MCP server {self._name} cannot be reached: {why}", retryable=True)

    async def _run_connection(self, ready: asyncio.Future[Client], stop: asyncio.Event) -> None:
        from mcp import Client

        async with Client(self._server()) as client:
            offered: list[Offered] = []
            cursor: str | None = None
            while True:
                page = await client.list_tools(cursor=cursor)
                offered += page.tools
                cursor = page.next_cursor
                if cursor is None or len(offered) > 10 * MAX_TOOLS:
                    break
            self._offered = self._selected(offered)
            ready.set_result(client)
            await stop.wait()

    def _selected(self, offered: Sequence[Offered]) -> list[Tool[..., Any]]:
        chosen = [each for each in offered if not self._only or each.name in self._only]
        if missing := (self._only | self._idempotent | self._approval) - {each.name for each in offered}:
            there = ", ".join(sorted(each.name for each in offered)) or "none"
            raise ConfigurationError(f"{self._name} has no tool {', '.join(sorted(missing))}; it has {there}")
        if len(chosen) > MAX_TOOLS:
            raise ConfigurationError(
                f"{self._name} offers {len(chosen)} tools; choose at most {MAX_TOOLS} with only=[...]"
            )
        return [
            _McpTool(self, each, self._timeout, self._is_idempotent(each), each.name in self._approval)
            for each in chosen
        ]

    def _is_idempotent(self, offered: Offered) -> bool:
        hints = offered.annotations
        hinted = hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)
        return offered.name in self._idempotent or hinted


def mcp_tools(
    server: str | Sequence[str],
    *,
    only: Sequence[str] = (),
    timeout: float = 60.0,
    idempotent: Sequence[str] = (),
    approval: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> McpTools:
    """The tools of an MCP server, for `LLMAgent(tools=[...])`: a URL (streamable HTTP), or the command of a server that
    speaks over its standard input and output, as a list.

    `only` names the tools to be used, all unless given. `timeout`, in seconds, bounds each call; a server has half a
    minute to be there beside that. `idempotent` names those that may run twice, beside those of which the server says
    that they only read or are idempotent, and `approval` those of which a person must allow each call. `env` is added
    to the little that a command is given of this process's environment. The agent closes it.

    Raises:
        ConfigurationError: the extra `mcp` is not installed, or the definition does not fit.
    """
    for what, names in (("only", only), ("idempotent", idempotent), ("approval", approval)):
        if isinstance(names, str):
            raise ConfigurationError(f"the tools of {server} have {what}={names!r}; expected [{names!r}]")
    if not server or (isinstance(server, str) and not server.startswith(("http://", "https://"))):
        command = server.split() if isinstance(server, str) else ["COMMAND"]
        raise ConfigurationError(
            f"the MCP server is {server!r}; expected http://HOST:PORT/mcp, or a command as a list, {command}"
        )
    try:
        from mcp import StdioServerParameters
    except ModuleNotFoundError:
        raise ConfigurationError("tools of MCP servers need the MCP SDK: pip install 'pointsman[mcp]'") from None
    if isinstance(server, str):
        return McpTools(lambda: server, server, only, timeout, idempotent, approval)
    program, *arguments = server
    parameters = StdioServerParameters(command=program, args=arguments, env=dict(env) if env is not None else None)
    return McpTools(lambda: parameters, " ".join(server)[:200], only, timeout, idempotent, approval)


class _McpTool(Tool[..., Any]):
    """One tool of a server. Its arguments are checked there: here they only have to be an object."""

    def __init__(self, source: McpTools, offered: Offered, timeout: float, idempotent: bool, approval: bool) -> None:
        self._source = source

        async def call(arguments: dict[str, JsonValue]) -> Any:
            return await source.call(offered.name, arguments)

        try:
            name = token(offered.name, "tool name")
        except ContractError as error:
            raise ConfigurationError(
                f"a tool of an MCP server cannot be used: {error}; leave it out by only="
            ) from None
        description = offered.description or offered.title or name
        super().__init__(
            call, name=name, description=description, timeout=timeout, retries=0, idempotent=idempotent,
            approval=approval, namespace={},
        )  # fmt: skip
        self.spec = ToolSpec(name, description, offered.input_schema)

    async def _prepare(self) -> None:
        await self._source.client()

    def _parse(self, text: str) -> BaseModel:
        try:
            value = parse_json(text.strip().encode("utf-8", "surrogatepass") or b"{}")
        except ContractError as error:
            raise self._bad_arguments(str(error)) from None
        if not isinstance(value, dict):
            raise self._bad_arguments("they are no object")
        return self._check(value)

    def _check(self, arguments: Mapping[str, object]) -> BaseModel:
        return super()._check({"arguments": as_json_value(dict(arguments))})

    def _as_json(self, checked: BaseModel) -> dict[str, JsonValue]:
        return cast(dict[str, JsonValue], super()._as_json(checked)["arguments"])


def _result_value(result: CallToolResult) -> Any:
    parts = [_content_part(block) for block in result.content]
    text = "\n".join(parts)
    if result.is_error:
        raise TaskError(text or "the tool failed and did not say why")
    fields = result.structured_content
    if fields is None:
        return text
    return fields["result"] if set(fields) == {"result"} else fields  # so the SDK wraps what is no object


def _content_part(block: Any) -> str:
    there = block.resource if block.type == "resource" else block
    if getattr(there, "text", None) is not None:
        return str(there.text)
    kind = getattr(there, "mime_type", None) or there.uri
    return f"[{block.type} {kind}: not shown]"


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
