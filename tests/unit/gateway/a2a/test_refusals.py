"""A2A requests that cannot be read are refused in the form of their binding, and are not logged as faults."""

from __future__ import annotations

import json
from typing import Any

from structlog.testing import capture_logs
from support.asgi import Answer
from support.memory_gateway import Door, gateway

OLD_TEXT = {"kind": "text", "text": "hi"}
NOT_JSON = [b"[" * 300, b'{"a": 1, "a": 1}', b'{"id": "\\ud800"}', b'{"id": NaN}', b'{"id": 1e999}', b"\xff"]
"""Bodies that Python's parser accepts although they are not strict JSON, or that make it fail."""
HUGE: list[dict[str, Any]] = [
    {"params": {"configuration": {"historyLength": 10**30}}},
    {"data": -(10**400)},
    {"bytes": "a"},
]
"""Parts of requests of version 0.3 that the SDK converts without checks."""


def old_call(method: str, flaw: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON-RPC request of the version 0.3 with a flaw."""
    parts: list[Any] = [OLD_TEXT]
    if "data" in flaw:
        parts = [{"kind": "data", "data": {"a": flaw["data"]}}]
    if "bytes" in flaw:
        parts = [{"kind": "file", "file": {"name": "f", **flaw}}]
    message = {"kind": "message", "messageId": "m", "role": "user", "parts": parts}
    return {"jsonrpc": "2.0", "id": 7, "method": method, "params": {"message": message, **flaw.get("params", {})}}


async def post(door: Door, path: str, body: Any) -> Answer:
    return await door.send("bob", "POST", f"/a2a/crew{path}", body)


async def test_bodies_that_are_not_strict_json_are_refused_in_each_binding() -> None:
    async with gateway() as door:
        with capture_logs() as logs:
            calls = [(await post(door, "", body)).json for body in NOT_JSON]
            rest = [await post(door, path, NOT_JSON[2]) for path in ("/message:send", "/v1/message:stream")]

    assert [(each["error"]["code"], each["id"]) for each in calls] == [(-32700, None)] * len(NOT_JSON)
    assert [(each.status, each.json["error"]["status"]) for each in rest] == [(400, "INVALID_ARGUMENT")] * 2
    assert [each["event"] for each in logs if each["log_level"] == "error"] == []


async def test_requests_that_the_sdk_cannot_convert_are_invalid_also_in_streams() -> None:
    async with gateway() as door:
        with capture_logs() as logs:
            calls = [
                (await post(door, "", old_call(method, flaw))).json
                for method in ("message/send", "message/stream")
                for flaw in HUGE
            ]
            contents: list[Any] = [{"content": [{}]}, {"content": [{"file": {"fileWithBytes": "aGk="}}]}]
            bodies = [{"message": {"messageId": "m", "role": "ROLE_USER", **each}} for each in contents]
            bodies.append({**bodies[0], "configuration": {"historyLength": -5}})
            rest = [await post(door, f"/v1/message:{verb}", body) for verb in ("send", "stream") for body in bodies]

    assert [(each["error"]["code"], each["id"]) for each in calls] == [(-32602, 7)] * 6
    assert [(each.status, each.json["error"]["status"]) for each in rest] == [(400, "INVALID_ARGUMENT")] * 6
    assert all(len(json.dumps(each)) < 1000 for each in calls)
    assert [each["event"] for each in logs if each["log_level"] == "error"] == []
