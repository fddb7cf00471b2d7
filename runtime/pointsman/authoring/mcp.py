"""Give agents the tools of MCP servers. This module needs the extra `mcp`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from pydantic import JsonValue

from pointsman.authoring.keyword_check import check_keywords
from pointsman.authoring.mcp_tool import McpTool, result_value, safe_name
from pointsman.authoring.tools import Tool
from pointsman.errors import ConfigurationError, ContractError, TaskError, describe_error
from pointsman.telemetry import get_logger
from pointsman.util.scrubber import hide_header_values

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import Tool as Offered

__all__ = ["McpTools", "mcp_tools"]

MAX_TOOLS: Final = 64
"""Largest number of tools of one server. There is a limit, because each request sends all tools to the model. With the
argument `only`, an author chooses the tools."""
_START_TIMEOUT_S: Final = 30.0  # enough for a slow machine to start an interpreter and to import modules
_CLOSE_TIMEOUT_S: Final = 5.0
_PROBE_TIMEOUT_S: Final = 5.0  # longest wait for the answer that shows that a connection is still open
_HTTP_TIMEOUT_S, _HTTP_READ_TIMEOUT_S = 30.0, 300.0  # the SDK's values; long, because a server may stream a response

_statuses: ContextVar[list[int] | None] = ContextVar("pointsman_mcp_statuses", default=None)
"""HTTP statuses of the responses to the current call."""

_log = get_logger(__name__)


class McpTools:
    """Tools of one MCP server. The connection is opened at the first use, and again after it broke.

    Each connection has its own asyncio task on the event loop of the caller, because a connection must be closed by the
    task that opened the connection.
    """

    def __init__(
        self,
        server: Callable[[], Any],
        name: str,
        only: Sequence[str],
        timeout: float,
        idempotent: Sequence[str],
        approval: Sequence[str],
        prefix: str = "",
    ) -> None:
        self._server = server
        self._name = name
        self._only = frozenset(only)
        self._timeout = timeout
        self._idempotent = frozenset(idempotent)
        self._approval = frozenset(approval)
        self._prefix = prefix
        self._lock: asyncio.Lock | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Client | None = None
        self._offered: list[Tool[..., Any]] = []
        self._list_changed = False
        self._stop: asyncio.Event | None = None
        self._connection_task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<tools of {self._name}>"

    async def tools(self) -> Sequence[Tool[..., Any]]:
        """Return the tools that the server offers now.

        Returns:
            The tools, under names that all providers accept.

        Raises:
            TaskError: The server cannot be reached; retryable.
            ConfigurationError: The server does not offer a tool that the definition names, offers too many tools, or
                requires a login.
        """
        client = await self.client()
        if self._list_changed:
            self._list_changed = False
            self._offered = self._selected(await _list_tools(client))
        return self._offered

    async def call(self, name: str, arguments: Mapping[str, JsonValue]) -> Any:
        """Call a tool of the server.

        Args:
            name: Name of the tool at the server.
            arguments: Arguments by name.

        Returns:
            The structured content of the result, or its text.

        Raises:
            TaskError: The call failed. It is retryable if the connection broke.
        """
        try:
            return await self._call_once(name, arguments)
        except _SessionLostError:  # the server has refused the call, so the call may be sent again
            await self.close()
        try:
            return await self._call_once(name, arguments)
        except _SessionLostError:
            raise TaskError(f"the MCP server {self._name} lost two sessions in a row", retryable=True) from None

    async def _call_once(self, name: str, arguments: Mapping[str, JsonValue]) -> Any:
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        client = await self.client()
        statuses: list[int] = []
        token = _statuses.set(statuses)
        try:
            return result_value(await client.call_tool(name, dict(arguments)))
        except TaskError:
            raise
        except MCPError as error:
            if 404 in statuses:
                raise _SessionLostError from None
            if 401 in statuses or 403 in statuses:
                raise TaskError(self._login_problem(statuses)) from None
            if error.code != CONNECTION_CLOSED or await self._is_connected(client):
                raise TaskError(f"{self._name} answered: {error}") from None
            await self._drop(client)
            raise TaskError(f"the connection to {self._name} broke: {error}", retryable=True) from None
        except Exception as error:
            if await self._is_connected(client):
                raise TaskError(f"{self._name} gave a result that cannot be read: {describe_error(error)}") from None
            await self._drop(client)
            raise TaskError(f"the connection to {self._name} broke: {describe_error(error)}", retryable=True) from None
        finally:
            _statuses.reset(token)

    async def _is_connected(self, client: Client) -> bool:
        """Probe the connection. Return True if the server answers, even with an error of its own."""
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        if self._client is not client or self._connection_task is None or self._connection_task.done():
            return False
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                await client.list_tools(cache_mode="bypass")
        except MCPError as error:
            return error.code != CONNECTION_CLOSED
        except (TimeoutError, OSError):
            return False
        except Exception as error:
            return type(error).__module__.split(".")[0] not in ("anyio", "httpx2", "httpcore2")
        return True

    async def _drop(self, client: Client) -> None:
        if self._client is client:
            await self.close()  # the next call connects again

    def _login_problem(self, statuses: Sequence[int]) -> str:
        status = next(each for each in statuses if each in (401, 403))
        return (
            f"the MCP server {self._name} refused the login: HTTP status {status}; pass a login with "
            'authorization="Bearer TOKEN" or headers={...}'
        )

    async def close(self) -> None:
        """End the connection, and the server's process if it has one."""
        if self._loop is not asyncio.get_running_loop():
            return  # only the event loop of the connection can end the connection
        living, stop, client = self._connection_task, self._stop, self._client
        self._client = self._connection_task = None
        if living is None or stop is None:
            return
        if client is None:  # the task is still connecting and would not see `stop`
            living.cancel()
        stop.set()
        await asyncio.wait({living}, timeout=_CLOSE_TIMEOUT_S)
        living.cancel()

    async def client(self) -> Client:
        """Return the connected client of the server. The docstring of `tools` lists the possible errors."""
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
        statuses: list[int] = []
        token = _statuses.set(statuses)
        self._connection_task = living = asyncio.create_task(self._run_connection(ready, stop))
        _statuses.reset(token)
        awaited: set[asyncio.Future[Any]] = {ready, living}
        try:
            await asyncio.wait(awaited, timeout=_START_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            living.cancel()  # no caller is left that would use the connection
            raise
        if ready.done():
            return ready.result()
        if living.cancelled():
            raise TaskError(f"the connection to {self._name} was closed before it was ready", retryable=True)
        living.cancel()
        if 401 in statuses or 403 in statuses:
            raise ConfigurationError(self._login_problem(statuses))
        ended = living.exception() if living.done() and not living.cancelled() else None
        error = _innermost(ended) if ended is not None else None
        if isinstance(error, TaskError | ConfigurationError):
            raise error
        if isinstance(error, FileNotFoundError):
            raise ConfigurationError(f"the command of the MCP server {self._name} does not exist: {error}")
        why = describe_error(error) if error is not None else f"no answer within {_START_TIMEOUT_S:g} s"
        raise TaskError(f"the MCP server {self._name} cannot be reached: {why}", retryable=True)

    async def _run_connection(self, ready: asyncio.Future[Client], stop: asyncio.Event) -> None:
        from mcp import Client

        async with Client(self._server(), message_handler=self._on_message) as client:
            self._offered = self._selected(await _list_tools(client))
            self._list_changed = False
            ready.set_result(client)
            listening = asyncio.create_task(self._listen(client))
            try:
                await stop.wait()
            finally:
                listening.cancel()
                await asyncio.wait({listening})

    async def _on_message(self, message: Any) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            self._list_changed = True

    async def _listen(self, client: Client) -> None:
        """Subscribe to changes of the list of tools, if the server's protocol has subscriptions."""
        # A server with an earlier protocol refuses the subscription, but sends its notifications to `_on_message`.
        with suppress(Exception):
            async with client.listen(tools_list_changed=True) as events:
                async for _ in events:
                    self._list_changed = True

    def _selected(self, offered: Sequence[Offered]) -> list[Tool[..., Any]]:
        chosen = [each for each in offered if not self._only or each.name in self._only]
        if missing := (self._only | self._idempotent | self._approval) - {each.name for each in offered}:
            known = ", ".join(sorted(each.name for each in offered)) or "none"
            raise ConfigurationError(f"{self._name} has no tool {', '.join(sorted(missing))}; it has {known}")
        if len(chosen) > MAX_TOOLS:
            raise ConfigurationError(
                f"{self._name} offers {len(chosen)} tools; choose at most {MAX_TOOLS} with only=[...]"
            )
        tools: dict[str, Tool[..., Any]] = {}
        for each in chosen:
            name = safe_name(f"{self._prefix}{each.name}", tools)
            try:
                tools[name] = McpTool(
                    self, each, name, self._timeout, self._is_idempotent(each), each.name in self._approval
                )
            except (ConfigurationError, ContractError) as error:
                if each.name in self._only | self._approval | self._idempotent:
                    raise ConfigurationError(f"the tool {each.name} of {self._name} cannot be used: {error}") from None
                _log.warning(
                    "mcp_tool_left_out",
                    server=self._name,
                    tool=each.name,
                    error=error,
                    hint="agents do not get this tool; the server must offer the JSON Schema of an object",
                )
        return list(tools.values())

    def _is_idempotent(self, offered: Offered) -> bool:
        hints = offered.annotations
        hinted = hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)
        return offered.name in self._idempotent or hinted


class _SessionLostError(Exception):
    """The server does not know the session any more, for example after a restart of the server."""


@check_keywords
def mcp_tools(
    server: str | Sequence[str],
    *,
    only: Sequence[str] = (),
    timeout: float = 60.0,
    idempotent: Sequence[str] = (),
    approval: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    prefix: str = "",
    headers: Mapping[str, str] | None = None,
    authorization: str | Callable[[], str] | None = None,
) -> McpTools:
    """Return the tools of an MCP server, for `LLMAgent(tools=[...])`. The agent closes the connection to the server.

    A worker connects to the server when the worker starts. If a provider would refuse a tool's name, the tool gets a
    name of letters, digits, hyphens and underscores. But `only`, `idempotent` and `approval` take the server's names.

    Args:
        server: URL of a server over streamable HTTP, or the command of a server over standard input and output, as a
            list.
        only: Names of the tools to use; all by default.
        timeout: Limit of each call, in seconds. In addition, a server has half a minute to start.
        idempotent: Names of tools that may run twice, in addition to the tools that the server marks as read-only or
            idempotent.
        approval: Names of tools whose calls a person must allow, each call separately.
        env: Environment variables of a command, in addition to a few, such as PATH, that the command inherits.
        prefix: Text before the name of each tool, such as `files_`.
        headers: Headers of each HTTP request.
        authorization: Value of the header `Authorization`, such as `Bearer TOKEN`, or a function that returns it for
            each request.

    Returns:
        The tools.

    Raises:
        ConfigurationError: The extra `mcp` is not installed, or the definition is not valid.
    """
    for what, names in (("only", only), ("idempotent", idempotent), ("approval", approval)):
        if isinstance(names, str):
            raise ConfigurationError(f"the tools of {server} have {what}={names!r}; expected [{names!r}]")
    if not server or (isinstance(server, str) and not server.startswith(("http://", "https://"))):
        command = server.split() if isinstance(server, str) else ["COMMAND"]
        raise ConfigurationError(
            f"the MCP server is {server!r}; expected http://HOST:PORT/mcp, or a command as a list, {command}"
        )
    if not isinstance(server, str) and (headers or authorization):
        raise ConfigurationError(
            f"the MCP server {' '.join(server)} is a command, and has headers or authorization; give it env={{...}}"
        )
    try:
        from mcp import StdioServerParameters
    except ModuleNotFoundError:
        raise ConfigurationError("tools of MCP servers need the MCP SDK: pip install 'pointsman[mcp]'") from None
    if isinstance(server, str):
        hide_header_values((headers or {}).values())
        name = server.partition("?")[0]
        return McpTools(
            lambda: _http_transport(server, dict(headers or {}), authorization),
            name, only, timeout, idempotent, approval, prefix,
        )  # fmt: skip
    program, *arguments = server
    parameters = StdioServerParameters(command=program, args=arguments, env=dict(env) if env is not None else None)
    return McpTools(lambda: parameters, " ".join(server)[:200], only, timeout, idempotent, approval, prefix)


@asynccontextmanager
async def _http_transport(
    url: str, headers: dict[str, str], authorization: str | Callable[[], str] | None
) -> AsyncIterator[Any]:
    """Connect over HTTP, with headers, and record the status of each response for the call that caused the response."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    async def authorize(request: httpx2.Request) -> None:
        if authorization is not None:
            value = authorization if isinstance(authorization, str) else authorization()
            hide_header_values([value])
            request.headers["Authorization"] = value

    async def note(response: httpx2.Response) -> None:
        statuses = _statuses.get()
        # A 404 means a lost session only if the request had a session id. Without a session id, a server with an
        # earlier protocol answers 404 to an unknown method.
        if statuses is not None and (response.status_code != 404 or "mcp-session-id" in response.request.headers):
            statuses.append(response.status_code)

    timeout = httpx2.Timeout(_HTTP_TIMEOUT_S, read=_HTTP_READ_TIMEOUT_S)
    hooks: dict[str, list[Callable[..., Any]]] = {"request": [authorize], "response": [note]}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=timeout, event_hooks=hooks) as http,
        streamable_http_client(url, http_client=http) as streams,
    ):
        yield streams


async def _list_tools(client: Client) -> list[Offered]:
    offered: list[Offered] = []
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor, cache_mode="bypass")
        offered += page.tools
        cursor = page.next_cursor
        if cursor is None or len(offered) > 10 * MAX_TOOLS:
            return offered


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
