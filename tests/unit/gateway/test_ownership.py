"""No path of the gateway shows or changes the data of another caller."""

from __future__ import annotations

import json
import re
from typing import Any

from support.asgi import Answer
from support.memory_gateway import Door, end_turn, gateway

from pointsman.gateway.app import openapi_document

SECRET = "s3cret of ada"
OPERATORS = "/v1/dead-letters"
BODIES: dict[str, Any] = {
    "messages": {"text": "hi"},
    "answer": {"answer": 1},
    "rotate": {},
    "cancel": {},
    "resume": {},
    "pause": {},
    "approve": {},
    "reject": {"reason": "no"},
    "replay": {},
}


async def own_things(door: Door) -> dict[str, str]:
    """Create one object of each kind for ada. Return the values of the path parameters that name the objects."""
    file = await door.send("ada", "POST", "/v1/files?name=a.txt", SECRET.encode(), **{"content-type": "text/plain"})
    workflow = await end_turn(door, input=SECRET, files=[file.json["id"]])
    batch = await door.send("ada", "POST", "/v1/batches", {"team": "absent", "inputs": [SECRET]})
    plan = {"name": "mine", "team": "crew", "input": SECRET, "cron": "0 9 * * *"}
    schedule = await door.send("ada", "POST", "/v1/schedules", plan)
    webhook = await door.send("ada", "POST", "/v1/webhooks", {"url": "https://example.org/s3cret"})
    assert {each.status for each in (file, batch, schedule, webhook)} <= {201, 202}
    return {
        "workflow_id": workflow,
        "file_id": file.json["id"],
        "digest": file.json["sha256"],
        "batch_id": batch.json["id"],
        "question_id": f"{workflow}-q1",
        "team": "crew",
        "name": "mine",
        "webhook_id": webhook.json["id"],
        "event": "evt_1",
        "letter_id": "dl_1",
        "response_id": "resp_" + workflow.removeprefix("wf_"),
    }


async def attempts(door: Door, things: dict[str, str]) -> dict[str, Answer]:
    """Send each request of the API as bob, with the names of ada's objects."""
    found: dict[str, Answer] = {}
    for path, methods in openapi_document()["paths"].items():
        names = re.findall(r"\{(\w+)\}", path)
        if not names or names in (["team"], ["name"], ["model"]):  # not an object of a caller
            continue
        for method in methods:
            body = BODIES.get(path.rpartition("/")[2]) if method == "post" else None
            found[f"{method} {path}"] = await door.send("bob", method.upper(), path.format(**things), body)
    return found


async def test_each_path_with_an_id_hides_the_thing_of_another_caller() -> None:
    async with gateway() as door:
        things = await own_things(door)
        found = await attempts(door, things)
        own = await door.send("ada", "GET", f"/v1/workflows/{things['workflow_id']}")
        lists = [await door.send("bob", "GET", f"/v1/{each}") for each in ("workflows", "batches", "schedules",
                 "webhooks", "questions")]  # fmt: skip
        used = [
            await door.send("bob", "POST", "/v1/workflows", {"team": "crew", "input": "x",
                            "files": [things["file_id"]]}),
            await door.send("bob", "POST", "/v1/batches", {"team": "crew", "inputs": things["file_id"]}),
            await door.send("bob", "POST", "/v1/responses", {"model": "crew", "input": "x",
                            "previous_response_id": things["response_id"]}),
            await door.send("bob", "GET", "/v1/schedules/crew/mine?owner=ada"),
            await door.send("bob", "POST", "/v1/agui/crew", {"threadId": "t", "runId": "r", "messages": [], "resume": [
                            {"interruptId": things["question_id"], "status": "resolved", "payload": 1}],
                            "state": {}, "tools": [], "context": [], "forwardedProps": {}}),
        ]  # fmt: skip

    assert len(found) > 25
    assert {name: each.status for name, each in found.items() if each.status not in (403, 404)} == {}
    assert [each.status for each in used] == [404, 404, 404, 403, 404]
    assert own.status == 200
    assert "s3cret" in json.dumps(own.json)
    assert [name for name, each in found.items() if b"s3cret" in each.body] == []
    assert b"s3cret" not in b"".join(each.body for each in (*used, *lists))
