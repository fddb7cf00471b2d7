"""Manage webhook endpoints over HTTP and with commands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
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
from pointsman.webhooks.endpoint_store import CallerBounds, EndpointLimitError, EndpointStore
from pointsman.webhooks.endpoints import CALLER_EVENT_TYPES

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

        async def undelivered() -> list[dict[str, str]]:
            found = await client.get(f"{path}/deliveries", params={"status": "disabled"})
            return list(found.json()["deliveries"])

        (missed,) = await until(undelivered, seconds=30)  # stored after the endpoint is disabled
        disabled = (await client.get(path)).json()
        enabled = (await client.post(f"{path}/enable")).json()
        rotated = (await client.post(f"{path}/rotate", json={"overlap_hours": 0})).json()
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
    assert disabled["disabled_reason"] == "the endpoint answered 410 Gone"
    assert enabled["disabled_at"] is None
    assert again.status_code == 202
    assert [each["id"] for each in listed] == [made["id"]]
    assert not any(["secret" in name for name in listed[0]])
    assert stopped["disabled_reason"] == "disabled by local"
    assert (deleted.status_code, gone.status_code, gone.json()["code"]) == (204, 404, "not_found")


async def test_callers_manage_their_own_endpoints_and_receive_their_own_events(
    crew: RunningTeam, settings: Settings
) -> None:
    keys = await KeyStore.open(crew.bus, crew.subjects)
    ada, ben = (await keys.create("ada", teams=["crew"])).text, (await keys.create("ben")).text
    boss = (await keys.create("boss", operator=True)).text
    options = {"gateway_require_key": True, "webhook_private_networks": True, "gateway_webhooks": 1}
    async with (
        receiving() as of_ada,
        receiving() as of_ben,
        receiving() as of_all,
        served_webhooks(settings),
        served_gateway(settings, **options) as address,
        http_client(address, ada) as as_ada,
        http_client(address, ben) as as_ben,
        http_client(address, boss) as as_boss,
    ):
        mine = (await as_ada.post("/v1/webhooks", json={"url": of_ada.url})).json()
        await as_ben.post("/v1/webhooks", json={"url": of_ben.url})
        await as_boss.post("/v1/webhooks", json={"url": of_all.url, "events": ["workflow.ended"]})
        path = f"/v1/webhooks/{mine['id']}"
        for client in (as_ada, as_ben):
            await client.post(
                "/v1/workflows", json={"team": "crew", "input": steps("a")}, headers={"prefer": "wait=30"}
            )
        await until(lambda: len(of_all.received) == 2 and of_ada.received and of_ben.received, seconds=30)

        async def settled() -> list[dict[str, object]]:
            found: list[dict[str, object]] = (await as_ada.get(f"{path}/deliveries")).json()["deliveries"]
            return found

        (delivery,) = await until(settled, seconds=30)
        again = f"{path}/deliveries/{delivery['event']}/resend"
        await as_ada.post(again)
        await until(lambda: len(of_ada.received) == 2, seconds=30)
        hidden = [
            await as_ben.get(path), await as_ben.get(f"{path}/deliveries"), await as_ben.post(again),
            await as_ben.post(f"{path}/rotate", json={}), await as_ben.post(f"{path}/disable"),
            await as_ben.post(f"{path}/enable"), await as_ben.delete(path),
        ]  # fmt: skip
        listed = [(await each.get("/v1/webhooks")).json()["webhooks"] for each in (as_ada, as_ben, as_boss)]
        refused = [
            await as_ada.post("/v1/webhooks", json={"url": "https://a.b/"}),
            await as_ada.post("/v1/webhooks", json={"url": "https://a.b/", "events": ["dead_letter.stored"]}),
            await as_ada.post("/v1/webhooks", json={"url": "https://a.b/", "teams": ["other"]}),
        ]
        deleted = await as_boss.delete(path)

    assert [each.verify(mine["secret"])["data"]["team"] for each in of_ada.received] == ["crew"] * 2
    assert len({each.event["data"]["workflow_id"] for each in (*of_ada.received, *of_ben.received)}) == 2
    assert len(of_ben.received) == 1
    assert {each.status_code for each in hidden} == {404}
    assert [[each["caller"] for each in found] for found in listed] == [["ada"], ["ben"], ["ada", "ben", None]]
    assert mine["events"] == ["workflow.ended", "question.asked"]
    assert [(each.status_code, each.json()["code"]) for each in refused] == [
        (409, "too_many_webhooks"), (422, "invalid_webhook"), (403, "team_not_allowed"),
    ]  # fmt: skip
    assert deleted.status_code == 204


async def test_a_burst_of_requests_makes_no_more_endpoints_than_the_bound(
    crew: RunningTeam, settings: Settings
) -> None:
    store = await EndpointStore.open(crew.bus, crew.subjects)

    async def create(caller: str) -> bool:
        with suppress(EndpointLimitError):
            await store.create("https://a.b/", caller=caller, events=CALLER_EVENT_TYPES, bounds=CallerBounds(3, 4))
            return True
        return False

    of_ada = await asyncio.gather(*(create("ada") for _ in range(20)))
    of_ben = await asyncio.gather(*(create("ben") for _ in range(20)))
    left = await store.list()
    secrets = await (await crew.bus.key_value(crew.subjects.webhook_secrets_bucket)).entries()

    assert sum(of_ada) <= 3
    assert sum(of_ada) + sum(of_ben) == len(left) == len(secrets) <= 4


async def test_unfit_urls_are_refused(client: httpx2.AsyncClient) -> None:
    urls = ("ftp://a.b/", "https://u:p@a.b/", "https://a.b/#c", "x", "https://" + "a" * 1_990)
    unfit = [await client.post("/v1/webhooks", json={"url": url}) for url in urls]
    unknown = await client.get("/v1/webhooks/wh_1/deliveries")

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
