"""Signed webhooks to a gateway. The library of Standard Webhooks or the sender's own rules make the signatures."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest
from standardwebhooks.webhooks import Webhook
from support import factory
from support.crew import planner, steps, synthesizer, team, worker
from support.factory import RunningTeam
from support.gateway import http_client, served_gateway
from support.waiting import until

from pointsman.errors import ConfigurationError
from pointsman.gateway.hook_config import load_hooks
from pointsman.gateway.keys import KeyStore
from pointsman.settings import Settings

pytestmark = pytest.mark.timeout(120)

FORMS = ("standard", "github", "slack", "stripe")
OLD, NEW = "b2xkZXIgc2VjcmV0", "bmV3ZXIgc2VjcmV0"
CONFIG = "".join(f'[{form}]\nteam = "crew"\nform = "{form}"\nsecrets_env = "HOOK_SECRETS"\n' for form in FORMS)


@pytest.fixture
async def crew(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RunningTeam]:
    monkeypatch.setenv("CREW_JOURNAL", str(tmp_path / "journal"))
    monkeypatch.setenv("HOOK_SECRETS", f"{OLD} {NEW}")
    (tmp_path / "hooks.toml").write_text(CONFIG)
    async with factory.team(team, [planner, synthesizer, worker], on=settings) as running:
        yield running


@pytest.fixture
async def client(crew: RunningTeam, settings: Settings, tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    options = {"gateway_hooks": str(tmp_path / "hooks.toml"), "gateway_require_key": True}
    async with served_gateway(settings, **options) as address, http_client(address) as client:
        yield client


def sign(form: str, body: str, *, id: str = "d-1", secret: str = NEW, age_s: float = 0) -> dict[str, str]:
    at = datetime.now(UTC) - timedelta(seconds=age_s)
    seconds = str(int(at.timestamp()))

    def digest(text: str) -> str:
        return hmac.new(secret.encode(), text.encode(), sha256).hexdigest()

    match form:
        case "standard":
            signature = Webhook(secret).sign(id, at, body)
            return {"webhook-id": id, "webhook-timestamp": seconds, "webhook-signature": f"v1,AAAA {signature}"}
        case "github":
            signature = f"sha256={digest(body)}"
            return {"x-hub-signature-256": signature, "x-github-delivery": id, "x-github-event": "issues"}
        case "slack":
            signature = f"v0={digest(f'v0:{seconds}:{body}')}"
            return {"x-slack-signature": signature, "x-slack-request-timestamp": seconds}
    return {"stripe-signature": f"t={seconds},v1={'0' * 64},v1={digest(f'{seconds}.{body}')},v0=old"}


def body_of(id: str) -> str:
    return json.dumps({**steps("a"), "id": id, "event_id": id})


async def answer_without_body(client: httpx2.AsyncClient, headers: dict[str, str]) -> bytes:
    """Send headers that announce a body, but no body. Return the first line of the response."""
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    lines = ["POST /v1/hooks/slack HTTP/1.1", "host: 127.0.0.1", "content-length: 1000"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    try:
        async with asyncio.timeout(20):  # less than the 30 s after which a waiting gateway refuses a missing body
            return await reader.readline()
    finally:
        writer.close()


async def workflows(crew: RunningTeam, settings: Settings, form: str, count: int) -> list[dict[str, Any]]:
    """Wait until `count` workflows of a webhook have ended. Return them, read with a key of the webhook's caller."""
    key = (await (await KeyStore.open(crew.bus, crew.subjects)).create(f"hook-{form}")).text
    found: list[dict[str, Any]] = []
    async with served_gateway(settings, gateway_require_key=True) as address, http_client(address, key) as client:

        async def all_ended() -> bool:
            found[:] = (await client.get("/v1/workflows")).json()["workflows"]
            return len(found) >= count and all(each["ended_at"] for each in found)

        await until(all_ended, seconds=30)
    return found


@pytest.mark.parametrize("form", FORMS)
async def test_a_delivery_starts_one_workflow_however_often_it_arrives(
    client: httpx2.AsyncClient, crew: RunningTeam, settings: Settings, form: str
) -> None:
    path, statuses = f"/v1/hooks/{form}", []
    for id, age_s, secret in (("d-1", 60, OLD), ("d-1", 0, NEW), ("d-2", 0, NEW)):
        body = body_of(id)
        headers = sign(form, body, id=id, age_s=age_s, secret=secret)
        statuses.append((await client.post(path, content=body, headers=headers)).status_code)

    assert statuses == [202, 202, 202]
    assert [each["status"] for each in await workflows(crew, settings, form, 2)] == ["completed", "completed"]


@pytest.mark.parametrize("form", FORMS)
async def test_a_delivery_that_is_not_of_the_sender_is_refused(client: httpx2.AsyncClient, form: str) -> None:
    body, path = body_of("d-1"), f"/v1/hooks/{form}"
    good = sign(form, body)
    refused = [
        await client.post(path, content=body),
        await client.post(path, content=body + " ", headers=good),
        await client.post(path, content=body, headers=sign(form, body, secret="b3RoZXI=")),
        *[await client.post(path, content=body, headers={**good, name: "v1,x y,"}) for name in good if "sign" in name],
        *[
            await client.post(path, content=body, headers=sign(form, body, age_s=age_s))
            for age_s in (400, -400)
            if form != "github"
        ],
    ]

    assert {(each.status_code, each.json()["code"]) for each in refused} == {(401, "not_authenticated")}


async def test_bodies_are_refused_by_their_size_and_stale_deliveries_before_their_body(
    client: httpx2.AsyncClient,
) -> None:
    huge = await client.post("/v1/hooks/slack", content="x" * 1_048_577, headers=sign("slack", ""))
    stale = await answer_without_body(client, sign("slack", "", age_s=400))
    unreadable = await client.post("/v1/hooks/github", content="no JSON", headers=sign("github", "no JSON"))
    unknown = await client.post("/v1/hooks/other", content="{}")

    assert huge.status_code == 413
    assert stale.startswith(b"HTTP/1.1 401 ")
    assert (unreadable.status_code, unreadable.json()["code"]) == (422, "invalid_delivery")
    assert unknown.status_code == 404


async def test_slack_verifies_the_address_and_sends_forms(
    client: httpx2.AsyncClient, crew: RunningTeam, settings: Settings
) -> None:
    challenge = json.dumps({"type": "url_verification", "challenge": "c-7"})
    verified = await client.post("/v1/hooks/slack", content=challenge, headers=sign("slack", challenge))
    form = urlencode({"payload": json.dumps(steps("a"))})
    headers = {**sign("slack", form), "content-type": "application/x-www-form-urlencoded"}
    pressed = [await client.post("/v1/hooks/slack", content=form, headers=headers) for _ in range(2)]

    assert (verified.status_code, verified.json()) == (200, {"challenge": "c-7"})
    assert [each.status_code for each in pressed] == [202, 202]
    assert [each["status"] for each in await workflows(crew, settings, "slack", 1)] == ["completed"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a\n", "cannot be read"),
        ('[a]\nteam = "crew"\n', "secrets_env"),
        ('[a]\nteam = "crew"\nsecrets_env = "UNSET_SECRET"\n', "has no secret"),
        ('[a]\nteam = "crew"\nsecrets_env = "BAD_SECRET"\n', "not base64"),
    ],
)
def test_a_configuration_that_is_not_valid_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.setenv("BAD_SECRET", "x")
    (tmp_path / "hooks.toml").write_text(text)

    with pytest.raises(ConfigurationError, match=message):
        load_hooks(str(tmp_path / "hooks.toml"))
