"""Access to the gateway with keys and with tokens of an issuer, limits, and the separation of callers."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support import factory
from support.crew import steps
from support.dashboard import letter, publish
from support.factory import RunningTeam, echo
from support.gateway import http_client, served_gateway
from support.history import WORKFLOW
from support.issuer import CONFIGURATION, issuing, new_key
from support.waiting import until

from pointsman.errors import ConfigurationError
from pointsman.gateway.keys import KeyStore
from pointsman.index.callers import CallerLimits
from pointsman.settings import Settings
from pointsman_schemas.ids import child_id_for
from pointsman_schemas.team import FanOut, Limits, Pipeline, Stage, Team

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
async def keys(crew: RunningTeam) -> KeyStore:
    return await KeyStore.open(crew.bus, crew.subjects)


async def create(client: httpx2.AsyncClient, *names: str, wait: int = 30, **work: Any) -> httpx2.Response:
    body = {"team": "crew", "input": steps(*names, **work)}
    return await client.post("/v1/workflows", json=body, headers={"prefer": f"wait={wait}"})


async def test_a_caller_named_like_a_team_sees_no_workflow_that_the_team_handed_on(settings: Settings) -> None:
    desk = Team(name="desk", agents=("crew",), strategy=FanOut(synthesizer=None), limits=Limits(deadline=20))
    crew = Team(name="crew", strategy=Pipeline(stages=(Stage(agent="one"),)))
    async with factory.team([desk, crew], [echo("one")], on=settings) as running:
        keys = await KeyStore.open(running.bus, running.subjects)
        named, operator = await keys.create("desk"), await keys.create("ops", operator=True)
        workflow = await running.submit("desk", "may we?")
        await workflow.outcome(20)
        child = child_id_for("crew", workflow.id, "crew", 1)
        async with served_gateway(settings) as address:
            async with http_client(address, operator.text) as client:
                shown = await client.get(f"/v1/workflows/{child}")
            async with http_client(address, named.text) as client:
                hidden = await client.get(f"/v1/workflows/{child}")
                listed = await client.get("/v1/workflows")

    assert (shown.status_code, shown.json()["caller"]) == (200, "team:desk")
    assert (hidden.status_code, listed.json()["workflows"]) == (404, [])


async def test_a_gateway_that_others_can_reach_demands_a_key(crew: RunningTeam, settings: Settings) -> None:
    with pytest.raises(ConfigurationError, match="demands keys and has no key"):
        async with served_gateway(settings, gateway_host="0.0.0.0"):
            pass

    async with served_gateway(settings) as address, http_client(address) as client:
        local = await client.get("/v1/teams")
    async with served_gateway(settings, gateway_require_key=True) as address, http_client(address) as client:
        behind_a_proxy = await client.get("/v1/teams")

    assert (local.status_code, behind_a_proxy.status_code) == (200, 401)


async def test_a_key_is_checked_and_refused_as_soon_as_it_is_revoked(
    crew: RunningTeam, keys: KeyStore, settings: Settings
) -> None:
    made = await keys.create("ada")
    expired = await keys.create("ada", expires_at=made.key.created_at)
    async with served_gateway(settings, gateway_require_key=True) as address, http_client(address) as client:

        async def status(key: str) -> int:
            return (await client.get("/v1/teams", headers={"authorization": f"Bearer {key}"})).status_code

        accepted = await status(made.text)
        refused = [await status(key) for key in ("x", "nonsense", made.text[:-1] + "~", expired.text)]
        none = await client.get("/v1/teams")
        new = await keys.create("bob")

        async def known() -> bool:
            return await status(new.text) == 200

        await until(known)
        await keys.revoke(made.key.id)

        async def revoked() -> bool:
            return await status(made.text) == 401

        await until(revoked)

    assert (accepted, refused) == (200, [401] * 4)
    assert (none.json()["code"], none.headers["www-authenticate"]) == ("not_authenticated", 'Bearer realm="pointsman"')


async def test_the_broker_stores_no_key(crew: RunningTeam, keys: KeyStore) -> None:
    made = await keys.create("ada", teams=["crew"])
    bucket = await crew.bus.key_value(crew.subjects.gateway_bucket)

    (stored,) = (await bucket.entries()).values()

    secret = made.text.partition(f"{made.key.id}_")[2]
    assert len(secret) > 30
    assert secret.encode() not in (stored.value or b"")
    assert made.key.digest.encode() in (stored.value or b"")


async def test_a_caller_sees_its_own_workflows_only_and_an_operator_sees_all(
    crew: RunningTeam, keys: KeyStore, settings: Settings
) -> None:
    texts = [(await keys.create(name, operator=name == "op")).text for name in ("ada", "bob", "op")]
    async with (
        served_gateway(settings, gateway_require_key=True) as address,
        http_client(address, texts[0]) as ada,
        http_client(address, texts[1]) as bob,
        http_client(address, texts[2]) as operator,
    ):
        path = (await create(ada, "a")).headers["location"]
        foreign = [
            await bob.get(path),
            await bob.get(f"{path}/events"),
            await bob.post(f"{path}/cancel", json={}),
            await bob.post(f"{path}/messages", json={"text": "hurry"}),
            await bob.get("/v1/questions", params={"workflow_id": path.rpartition("/")[2]}),
            await bob.post(f"/v1/questions/{path.rpartition('/')[2]}-1/approve", json={}),
        ]
        same_key = {"idempotency-key": "mine"}
        ids = [
            (await each.post("/v1/workflows", json={"team": "crew", "input": steps("a")}, headers=same_key)).json()
            for each in (ada, bob)
        ]

        async def all_ended() -> bool:
            """Return True when the index of the gateway has all workflows: none of them waits for admission."""
            listed = (await operator.get("/v1/workflows")).json()["workflows"]
            return len(listed) == 3 and all(each["ended_at"] for each in listed)

        await until(all_ended)
        seen = {
            name: {each["caller"] for each in (await client.get("/v1/workflows")).json()["workflows"]}
            for name, client in (("ada", ada), ("bob", bob), ("op", operator))
        }
        by_operator = await operator.get(path)

    assert [response.status_code for response in foreign] == [404] * 6
    assert ids[0]["id"] != ids[1]["id"]
    assert seen == {"ada": {"ada"}, "bob": {"bob"}, "op": {"ada", "bob"}}
    assert by_operator.json()["caller"] == "ada"


async def test_a_caller_may_use_its_teams_only(crew: RunningTeam, keys: KeyStore, settings: Settings) -> None:
    made = await keys.create("ada", teams=["other"])
    async with served_gateway(settings, gateway_require_key=True) as address, http_client(address, made.text) as client:
        refused = await create(client, "a")
        teams = (await client.get("/v1/teams")).json()
        agents = (await client.get("/v1/agents")).json()

    assert (refused.status_code, refused.json()["code"]) == (403, "team_not_allowed")
    assert (teams, agents) == ({"teams": []}, {"agents": []})


async def test_dead_letters_are_for_operators(crew: RunningTeam, keys: KeyStore, settings: Settings) -> None:
    ada, operator = (await keys.create("ada")).text, (await keys.create("op", operator=True)).text
    await publish(crew.bus, crew.subjects.dead_letter("crew", WORKFLOW, "dl_1"), letter("dl_1", "no bolts"))
    async with served_gateway(settings, gateway_require_key=True) as address:
        async with http_client(address, ada) as client:
            refused = [await client.get("/v1/dead-letters"), await client.delete("/v1/dead-letters/dl_1")]
        async with http_client(address, operator) as client:
            listed = (await client.get("/v1/dead-letters")).json()["dead_letters"]
            gone = await client.delete("/v1/dead-letters/dl_1")
            again = await client.get("/v1/dead-letters/dl_1")
    records = await crew.operations.audit()

    assert [(each.content.action, each.actor) for each in records] == [("discard", "op")]
    assert [(each.status_code, each.json()["code"]) for each in refused] == [(403, "operator_only")] * 2
    assert [(each["id"], each["message"]) for each in listed] == [("dl_1", "no bolts")]
    assert (gone.status_code, again.status_code) == (204, 404)


async def test_limits_bound_requests_running_workflows_and_tokens_of_a_caller(
    crew: RunningTeam, keys: KeyStore, settings: Settings, tmp_path: Path
) -> None:
    fast = await keys.create("fast", limits=CallerLimits(requests_per_minute=2))
    busy = await keys.create("busy", limits=CallerLimits(running=1))
    spent = await keys.create("spent", limits=CallerLimits(daily_tokens=0))
    async with served_gateway(settings, gateway_require_key=True) as address, http_client(address) as client:

        def by(key: str) -> dict[str, str]:
            return {"authorization": f"Bearer {key}"}

        rates = [await client.get("/v1/teams", headers=by(fast.text)) for _ in range(3)]
        body = {"team": "crew", "input": steps("a", after=str(tmp_path / "go"))}
        first = await client.post("/v1/workflows", json=body, headers=by(busy.text))
        second = await client.post("/v1/workflows", json=body, headers=by(busy.text))
        (tmp_path / "go").touch()

        async def free() -> bool:
            again = await client.post("/v1/workflows", json=body, headers=by(busy.text))
            return again.status_code == 202

        await until(free, seconds=30)
        used = await client.post("/v1/workflows", json=body, headers=by(spent.text))

    assert [each.status_code for each in rates] == [200, 200, 429]
    assert (rates[2].json()["code"], int(rates[2].headers["retry-after"]) > 0) == ("too_many_requests", True)
    assert (first.status_code, second.status_code, second.json()["code"]) == (202, 429, "too_many_running")
    assert (used.status_code, used.json()["code"]) == (429, "daily_tokens_used")


async def test_a_restarted_gateway_counts_running_workflows_from_the_log(
    crew: RunningTeam, keys: KeyStore, settings: Settings, tmp_path: Path
) -> None:
    made = await keys.create("busy", limits=CallerLimits(running=1))
    body = {"team": "crew", "input": steps("a", after=str(tmp_path / "go"))}
    async with served_gateway(settings, gateway_require_key=True) as address, http_client(address, made.text) as client:
        first = await client.post("/v1/workflows", json=body)
        workflow = first.json()["id"]
        await until(lambda: _begun(crew, workflow))
    async with served_gateway(settings, gateway_require_key=True) as address, http_client(address, made.text) as client:

        async def ready() -> bool:
            return (await client.get("/readyz")).status_code == 200

        await until(ready)
        second = await client.post("/v1/workflows", json=body)
    (tmp_path / "go").touch()

    assert (first.status_code, second.status_code) == (202, 429)


async def _begun(crew: RunningTeam, workflow: str) -> bool:
    return await crew.bus.last("log", crew.subjects.workflow_log(workflow)) is not None


async def test_a_foreign_page_cannot_call_a_gateway_without_keys(crew: RunningTeam, settings: Settings) -> None:
    body = {"team": "crew", "input": steps("a")}
    async with (
        served_gateway(settings, gateway_origins="https://app.example.org") as address,
        http_client(address) as client,
    ):
        foreign = [
            await client.post("/v1/workflows", json=body, headers={"origin": "https://evil.example"}),
            await client.get("/v1/workflows", headers={"host": "evil.example"}),
            await client.post("/v1/workflows", content=json.dumps(body), headers={"content-type": "text/plain"}),
        ]
        allowed = await client.post("/v1/workflows", json=body, headers={"origin": "https://app.example.org"})
        asked = {"origin": "https://app.example.org", "access-control-request-method": "POST"}
        preflight = await client.options("/v1/workflows", headers=asked)
        unknown = await client.options("/v1/workflows", headers={**asked, "origin": "https://evil.example"})

    assert [each.status_code for each in foreign] == [403, 403, 422]
    assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (202, "https://app.example.org")
    assert (preflight.status_code, unknown.status_code) == (200, 400)
    assert "access-control-allow-origin" not in unknown.headers


async def test_requests_beyond_the_bound_are_refused_while_streams_are_open(
    crew: RunningTeam, settings: Settings, tmp_path: Path
) -> None:
    async with (
        served_gateway(settings, gateway_max_requests=2) as address,
        http_client(address) as client,
    ):
        body = {"team": "crew", "input": steps("a", after=str(tmp_path / "go"))}
        workflow = (await client.post("/v1/workflows", json=body)).json()["id"]
        path = f"/v1/workflows/{workflow}/events"
        async with client.stream("GET", path), client.stream("GET", path):
            refused = await client.get("/healthz")
        (tmp_path / "go").touch()

        async def served() -> bool:
            return (await client.get("/healthz")).status_code == 200

        await until(served)

    assert (refused.status_code, refused.json()["code"]) == (503, "busy")


# Tokens of an issuer


async def test_tokens_of_the_issuer_name_the_caller_and_its_teams(crew: RunningTeam, settings: Settings) -> None:
    with issuing() as issuer:
        options = {"gateway_host": "127.0.0.1", "gateway_require_key": True, "gateway_oidc_issuer": issuer.url}
        async with served_gateway(settings, **options) as address:
            async with http_client(address, issuer.token(sub="ada@example.org", pointsman_teams=["crew"])) as client:
                created = await create(client, "a")
                letters = await client.get("/v1/dead-letters")
            async with http_client(address, issuer.token()) as client:
                no_teams = await create(client, "a")
            async with http_client(address, issuer.token(pointsman_teams="*", pointsman_operator=True)) as client:
                operator = await client.get("/v1/dead-letters")
            refused = []
            for token in (
                issuer.token(aud="another"),
                issuer.token(iss="https://another.example"),
                issuer.token(exp=time.time() - 3600),
                issuer.token(exp=None),
                issuer.token(sub=None),
                issuer.token()[:-6] + "AAAAAA",
                issuer.token(key="k" * 32, algorithm="HS256"),
            ):
                async with http_client(address, token) as client:
                    refused.append((await client.get("/v1/teams")).status_code)

    assert created.status_code == 200
    assert created.json()["caller"].startswith("oidc-ada-example-org-")
    assert (letters.status_code, no_teams.status_code, operator.status_code) == (403, 403, 200)
    assert refused == [401] * 7
    assert issuer.asked == [CONFIGURATION, "/keys"]  # the second read is cached


async def test_a_rotated_key_of_the_issuer_is_read_and_unknown_keys_do_not_flood_the_issuer(
    crew: RunningTeam, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with issuing() as issuer:
        options = {"gateway_require_key": True, "gateway_oidc_issuer": issuer.url}
        async with served_gateway(settings, **options) as address, http_client(address) as client:

            async def status() -> int:
                given = {"authorization": f"Bearer {issuer.token(pointsman_teams='*')}"}
                return (await client.get("/v1/teams", headers=given)).status_code

            first = await status()
            issuer.key, issuer.kid = new_key(), "two"
            early = await asyncio.gather(*(status() for _ in range(5)))
            monkeypatch.setattr("pointsman.util.oidc._MIN_PAUSE_S", 0.0)
            rotated = await status()

    assert (first, early, rotated) == (200, [401] * 5, 200)
    assert issuer.asked.count("/keys") == 2


async def test_keys_are_not_read_over_plain_http_from_another_host(settings: Settings) -> None:
    with pytest.raises(ConfigurationError, match="is not https"):
        async with served_gateway(settings, gateway_oidc_issuer="http://login.example.org"):
            pass
