"""A gateway needs only the broker rights of its role."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import factory
from support.crew import planner, steps, synthesizer, team, worker
from support.gateway import events_of, http_client, served_gateway
from support.permission_server import Rights, permission_server
from support.waiting import until

from pointsman.gateway.keys import KeyStore
from pointsman.grants.permissions import GrantRole, role_permissions
from pointsman.settings import Settings
from pointsman_schemas.team import Limits, RetryPolicy, Team

ASKING = Team(name="asking", approve_plan=True, limits=Limits(deadline=60), retry=RetryPolicy(attempts=1))
A2A_CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "SendMessage",
    "params": {
        "message": {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"data": steps("d")}]},
        "configuration": {"taskPushNotificationConfig": {"id": "mine", "url": "https://192.0.2.1/hook"}},
    },
}

pytestmark = pytest.mark.timeout(120)


async def test_each_call_of_a_caller_works_with_the_rights_of_the_role(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREW_JOURNAL", str(tmp_path / "journal"))
    rights = role_permissions(GrantRole.GATEWAY, "own", user="gate", team="*")
    # This server has no edge account.
    publish = [subject.replace("$JS.edge.API", "$JS.API") for subject in rights.publish]
    users = {"root": None, "gate": Rights(publish=publish, subscribe=list(rights.subscribe))}
    async with permission_server(tmp_path, users) as server:
        root = Settings(url=server.url("root"), namespace="own", ack_wait=2.0, heartbeat=0.5)
        gate = Settings(url=server.url("gate"), namespace="own", inbox_prefix="_INBOX.gate", provision=False)
        async with factory.team([team, ASKING], [planner, synthesizer, worker], on=root) as crew:
            key = (await (await KeyStore.open(crew.bus, crew.subjects)).create("ada")).text
            async with served_gateway(gate, gateway_require_key=True) as address, http_client(address, key) as client:
                body = {"team": "crew", "input": steps("a")}
                done = await client.post("/v1/workflows", json=body, headers={"prefer": "wait=30"})
                events = await events_of(client, done.json()["id"])
                late = {"team": "crew", "input": steps("a", after=str(tmp_path / "never"))}
                path = (await client.post("/v1/workflows", json=late)).headers["location"]
                cancelled = await client.post(f"{path}/cancel", json={})
                asked = (await client.post("/v1/workflows", json={"team": "asking", "input": steps("a")})).json()["id"]

                async def questions() -> list[dict[str, str]]:
                    found = await client.get("/v1/questions", params={"workflow_id": asked})
                    return list(found.json().get("questions", []))

                (question,) = await until(questions, seconds=30)
                approved = await client.post(f"/v1/questions/{question['id']}/approve", json={})
                queued = await client.post("/v1/workflows", json={"team": "unknown", "input": "x"})
                waits = await client.get(queued.headers["location"])
                listed = await client.get("/v1/workflows")
                file = (await client.post("/v1/files", content=b"x" * 200_000)).json()
                content = await client.get(f"/v1/files/{file['id']}/content")
                files = await client.get(f"{done.headers['location']}/files")
                made = await client.post("/v1/batches", json={"team": "crew", "inputs": [steps("b"), steps("c")]})
                batch_path = made.headers["location"]

                async def batch_ended() -> bool:
                    return (await client.get(batch_path)).json()["ended_at"] is not None

                await until(batch_ended, seconds=30)
                results = (await client.get(f"{batch_path}/results")).text
                models = await client.get("/v1/models")
                sent = await client.post("/a2a/crew", json=A2A_CALL, headers={"a2a-version": "1.0"})
                tasks = await client.get("/a2a/crew/tasks", headers={"a2a-version": "1.0"})
                card = await client.get("/a2a/crew/.well-known/agent-card.json")
        refused = server.violations("gate")

    assert (done.json()["status"], events[-1].type) == ("completed", "workflow_ended")
    assert (cancelled.status_code, approved.json()["counted"]) == (202, True)
    assert (waits.status_code, waits.json()["status"]) == (200, "queued")
    assert len(listed.json()["workflows"]) == 4
    assert {model["id"] for model in models.json()["data"]} == {"asking", "crew"}
    assert (len(content.content), files.json()) == (200_000, {"files": []})
    assert results.count('"status":"completed"') == 2
    assert sent.json()["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert sent.json()["result"]["task"]["id"] in [task["id"] for task in tasks.json()["tasks"]]
    assert card.json()["name"] == "crew"
    assert refused == []
