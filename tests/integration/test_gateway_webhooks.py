"""Endpoints of webhooks over HTTP, and by commands."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from support import factory
from support.crew import planner, steps, synthesizer, team, worker
from support.factory import RunningTeam
from support.gateway import http_client, served_gateway
from support.processes import System
from support.receiver import Reply, receiving
from support.waiting import until
from support.webhooks import served_webhooks

from pointsman.gateway.keys import KeyStore
from pointsman.settings import Settings

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
async def crew(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RunningTeam]:
    monkeypatch.setenv("CREW_JOURNAL", str(tmp_path / "journal"))
    async with factory.team(team, [planner, synthesizer, worker], on=settings) as running:
        yield running


@pytest.fixture
async def client(crew: RunningTeam, settings: Settings) -> AsyncIterator[httpx2.AsyncClient]:
    async with (
        served_gateway(settings, webhook_private_networks=True) as address,
        http_client(address) as client,
        served_webhooks(settings),
    ):
        yield client


async def test_an_operator_manages_endpoints_and_deliveries(client: httpx2.AsyncClient) -> None:
    async with receiving(Reply(410)) as receiver:
        made = (await client.post("/v1/webhooks", json={"url": receiver.url, "events": ["workflow.ended"]})).json()
        path = f"/v1/webhooks/{made['id']}"
        await client.post("/v1/workflows", json={"team": "crew", "input": steps("a")}, headers={"prefer": "wait=30"})

        async def disabled() -> bool:
            return bool((await client.get(path)).json()["disabled_reason"] == "the endpoint answered 410 Gone")

        await until(disabled, seconds=30)
        enabled = (await client.post(f"{path}/enable")).json()
        rotated = (await client.post(f"{path}/rotate", json={"overlap_hours": 0})).json()
        (missed,) = (await client.get(f"{path}/deliveries", params={"status": "disabled"})).json()["deliveries"]
        again = await client.post(f"{path}/deliveries/{missed['event']}/resend")

        async def delivered() -> bool:
            (state,) = (await client.get(f"{path}/deliveries")).json()["deliveries"]
            return bool(state["status"] == "delivered")

        await until(delivered, seconds=30)
        listed = (await client.get("/v1/webhooks")).json()["webhooks"]
        stopped = (await client.post(f"{path}/disable")).json()
        deleted = await client.delete(path)
        gone = await client.get(path)

    first, second = receiver.received
    assert first.verify(made["secret"])["data"]["answer"] == "a"
    assert second.verify(rotated["secret"])["id"] == missed["event"]
    assert enabled["disabled_at"] is None
    assert again.status_code == 202
    assert [each["id"] for each in listed] == [made["id"]]
    assert not any(["secret" in name for name in listed[0]])
    assert stopped["disabled_reason"] == "disabled by local"
    assert (deleted.status_code, gone.status_code, gone.json()["code"]) == (204, 404, "not_found")


async def test_other_callers_and_unfit_urls_are_refused(crew: RunningTeam, settings: Settings) -> None:
    keys = await KeyStore.open(crew.bus, crew.subjects)
    caller, operator = (await keys.create("ada")).text, (await keys.create("boss", operator=True)).text
    async with served_gateway(settings, gateway_require_key=True) as address:
        async with http_client(address, caller) as client:
            refused = [
                await client.get("/v1/webhooks"),
                await client.post("/v1/webhooks", json={"url": "https://a.b/"}),
            ]
        async with http_client(address, operator) as client:
            urls = ("http://a.b/", "ftp://a.b/", "https://u:p@a.b/", "https://a.b/#c", "x", "https://" + "a" * 1_990)
            unfit = [await client.post("/v1/webhooks", json={"url": url}) for url in urls]
            unknown = await client.get("/v1/webhooks/wh_1/deliveries")

    assert [each.json()["code"] for each in refused] == ["operator_only"] * 2
    assert {each.json()["code"] for each in unfit} == {"invalid_webhook"}
    assert unknown.status_code == 404


async def test_commands_manage_endpoints_and_deliveries(crew: RunningTeam, settings: Settings, tmp_path: Path) -> None:
    environment = {"POINTSMAN_WEBHOOK_PRIVATE_NETWORKS": "true"}
    async with receiving(*[Reply(500)] * 2) as receiver, System(tmp_path, settings, **environment) as system:
        made = (await system.command("webhooks", "create", receiver.url, "--team", "crew", "--json")).documents[0]
        id = made["id"]
        async with served_webhooks(settings, webhook_retries="0.05"):
            workflow = await crew.submit("crew", steps("a"))
            await workflow.outcome(30)

            async def failed() -> list[dict[str, object]]:
                return (await system.command("webhooks", "deliveries", id, "--status", "failed", "--json")).documents

            (state,) = await until(failed, seconds=30)
            await system.command("webhooks", "resend", id, "--status", "failed")
            await until(lambda: len(receiver.received) == 3, seconds=30)
        shown = await system.command("webhooks", "show", id)
        rotated = (await system.command("webhooks", "rotate", id, "--json")).documents[0]
        stopped = await system.command("webhooks", "disable", id)
        listed = (await system.command("webhooks", "list", "--json")).documents
        started = await system.command("webhooks", "enable", id)
        deleted = await system.command("webhooks", "delete", id)
        missing = await system.command("webhooks", "show", id)
        wrong = [
            await system.command("webhooks", "resend", id),
            await system.command("webhooks", "create", receiver.url, "--event", "workflow.begun"),
        ]

    assert (state["attempts"], state["error"]) == (2, "status: 500")
    assert {each.id for each in receiver.received} == {state["event"]}
    assert receiver.received[-1].verify(made["secret"])
    assert "delivered" in shown.output
    assert rotated["secret"] != made["secret"]
    assert listed[0]["disabled_reason"] == "disabled by a command"
    assert [each.code for each in (shown, stopped, started, deleted, missing, *wrong)] == [0, 0, 0, 0, 3, 2, 2]
