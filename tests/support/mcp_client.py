"""Send MCP requests over HTTP in the form of the specification 2026-07-28, without an SDK."""

from __future__ import annotations

from typing import Any

import httpx2

__all__ = ["TASKS", "post", "result"]

TASKS = "io.modelcontextprotocol/tasks"
"""The name of the extension for tasks."""


async def post(
    client: httpx2.AsyncClient, method: str, *, tasks: bool = True, sent: dict[str, str] | None = None, **params: Any
) -> httpx2.Response:
    """Send one MCP request. The client declares support of forms, and by default of tasks.

    `sent` has headers that replace the specified headers.
    """
    capabilities: dict[str, Any] = {"elicitation": {}, "extensions": {TASKS: {}} if tasks else {}}
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": capabilities,
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    }
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": method,
    }
    if (name := params.get("name") or params.get("taskId") or params.get("uri")) is not None:
        headers["mcp-name"] = name
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    return await client.post("/mcp", json=body, headers={**headers, **(sent or {})})


async def result(client: httpx2.AsyncClient, method: str, **params: Any) -> dict[str, Any]:
    response = await post(client, method, **params)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()["result"]
    return found
