"""A body of the allowed size that is full of invalid members does not block the gateway."""

from __future__ import annotations

import json
from time import process_time
from typing import Any

import pytest
from support.memory_gateway import gateway

MANY = 150_000
RUN = {"threadId": "t", "runId": "r", "state": {}, "tools": [], "context": [], "forwardedProps": {}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/workflows": {"team": "crew", "input": "x", "files": [1] * MANY},
    "/v1/batches": {"team": "crew", "inputs": [1] * MANY},
    "/v1/responses": {"model": "crew", "input": [1] * MANY},
    "/v1/chat/completions": {"model": "crew", "messages": [1] * MANY},
    "/v1/agui/crew": {**RUN, "messages": [{}] * MANY},
}


@pytest.mark.parametrize("path", BODIES)
async def test_the_first_invalid_member_ends_the_validation(path: str) -> None:
    body = json.dumps(BODIES[path]).encode()
    async with gateway() as door:
        began = process_time()
        refused = await door.send("bob", "POST", path, body, **{"content-type": "application/json"})
        took = process_time() - began

    assert refused.status in (400, 422)
    assert took < 3.0, took  # seconds of CPU; with the fault, each body took 3 to 100
