"""A request to a team that no supervisor serves is stored, and the answer of the gateway warns the caller."""

from __future__ import annotations

import hmac
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.memory_gateway import Door, gateway

from pointsman.gateway import schedules

ROW = {"inputs": ["hi"]}
SCHEDULE = {"name": "s", "input": "hi", "cron": "0 9 * * *"}


async def post(door: Door, kind: str, team: str, **fields: Any) -> dict[str, Any]:
    made = await door.send("bob", "POST", f"/v1/{kind}", {"team": team, **fields})
    assert made.status in (201, 202), made
    found: dict[str, Any] = made.json
    return found


async def test_a_request_to_an_unknown_team_is_accepted_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "_TIMEOUT_S", 0.05)

    async with gateway() as door:
        created = await post(door, "workflows", "crow", input="hi")
        read = (await door.send("bob", "GET", f"/v1/workflows/{created['id']}")).json
        batch = await post(door, "batches", "crow", **ROW)
        batch_read = (await door.send("bob", "GET", f"/v1/batches/{batch['id']}")).json
        schedule = await post(door, "schedules", "crow", **SCHEDULE)

    assert created["status"] == "queued"
    assert created["warning"] == (
        "the team 'crow' has no live supervisor and no known workflow; did you mean crew? The request waits until a "
        "supervisor of the team 'crow' starts; GET /v1/teams lists the teams that have a live supervisor"
    )
    assert {each["warning"] for each in (read, batch, batch_read, schedule)} == {created["warning"]}


async def test_a_warning_names_no_team_that_the_caller_may_not_use() -> None:
    async with gateway() as door:
        made = await door.send("ada elsewhere", "POST", "/v1/workflows", {"team": "other", "input": "hi"})

    assert "no live supervisor" in made.json["warning"]
    assert "crew" not in made.json["warning"]


async def test_a_request_to_a_served_team_has_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "_TIMEOUT_S", 0.05)

    async with gateway() as door:
        made = [
            await post(door, "workflows", "crew", input="hi"),
            await post(door, "batches", "crew", **ROW),
            await post(door, "schedules", "crew", **SCHEDULE),
        ]

    assert [each["warning"] for each in made] == [None, None, None]


EVENT = {"specversion": "1.0", "id": "1", "source": "/", "type": "t"}
WEBHOOK = '[issues]\nteam = "crow"\nform = "github"\nsecrets_env = "HOOK_SECRETS"\n'


async def test_a_delivery_to_an_unknown_team_is_accepted_and_the_warning_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_SECRETS", "c2VjcmV0IG9mIHRoZSBob29r")
    (tmp_path / "hooks.toml").write_text(WEBHOOK)
    body = json.dumps({"action": "opened"}).encode()
    signature = hmac.new(b"c2VjcmV0IG9mIHRoZSBob29r", body, sha256).hexdigest()
    signed = {"x-hub-signature-256": f"sha256={signature}", "x-github-delivery": "1"}
    event, batch = json.dumps(EVENT).encode(), json.dumps([EVENT | {"id": "2"}, EVENT | {"id": "3"}]).encode()
    kind = "application/cloudevents"

    async with gateway(gateway_hooks=str(tmp_path / "hooks.toml")) as door:
        with capture_logs() as lines:
            made = [
                await door.send("bob", "POST", "/v1/events/crow", event, **{"content-type": f"{kind}+json"}),
                await door.send("bob", "POST", "/v1/events/crow", batch, **{"content-type": f"{kind}-batch+json"}),
                await door.send("bob", "POST", "/v1/hooks/issues", body, **signed),
                await door.send("bob", "POST", "/v1/events/crew", event, **{"content-type": f"{kind}+json"}),
            ]

    assert [each.status for each in made] == [202, 200, 202, 202]
    logged = [line for line in lines if line["event"] == "team_unserved"]
    assert [line["caller"] for line in logged] == ["bob", "bob", "hook-issues"]
    assert {line["team"] for line in logged} == {"crow"}
    assert "no live supervisor" in logged[0]["hint"]
