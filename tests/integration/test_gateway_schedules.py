"""Schedules of callers over the gateway with a real broker and real HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from support import factory
from support.gateway import http_client, served_gateway
from support.waiting import until

from pointsman.gateway import schedules
from pointsman.gateway.keys import KeyStore
from pointsman.settings import Settings
from pointsman_schemas.team import Pipeline, Stage, Team

pytestmark = pytest.mark.timeout(120)

CREW = Team(name="crew", strategy=Pipeline(stages=(Stage(agent="a"),)))
REPORT: dict[str, Any] = {"name": "report", "team": "crew", "input": "the report", "cron": "0 9 * * 1-5"}
PATH = "/v1/schedules/crew/report"


@dataclass
class Doors:
    """HTTP clients of two callers and of an operator."""

    ada: httpx2.AsyncClient
    eve: httpx2.AsyncClient
    operator: httpx2.AsyncClient


@pytest.fixture
async def doors(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Doors]:
    monkeypatch.setattr(schedules, "_TIMEOUT_S", 5.0)
    async with AsyncExitStack() as stack:
        crew = await stack.enter_async_context(factory.team(CREW, [factory.echo("a")], on=settings))
        store = await KeyStore.open(crew.bus, crew.subjects)
        address = await stack.enter_async_context(served_gateway(settings, gateway_require_key=True))
        keys = [
            (await store.create(name, teams=None if operator else ["crew"], operator=operator)).text
            for name, operator in (("ada", False), ("eve", False), ("ops", True))
        ]
        clients = [await stack.enter_async_context(http_client(address, key)) for key in keys]

        async def admitted() -> bool:
            return all([(await client.get("/v1/schedules")).status_code == 200 for client in clients])

        await until(admitted, seconds=20)
        yield Doors(*clients)


async def test_a_schedule_is_created_run_changed_and_deleted(doors: Doors) -> None:
    upload = await doors.ada.post("/v1/files", params={"name": "sales.csv"}, content=b"a,b")
    files = [upload.json()["id"]]
    stolen = await doors.eve.post("/v1/schedules", json={**REPORT, "files": files})
    made = await doors.ada.post("/v1/schedules", json={**REPORT, "timezone": "Europe/Oslo", "files": files})
    ran = (await doors.ada.post(f"{PATH}/run")).json()["schedule"]

    async def ended() -> bool:
        return bool((await doors.ada.get(PATH)).json()["runs"][0]["outcome"] == "completed")

    await until(ended, seconds=20)
    workflow = (await doors.ada.get(f"/v1/workflows/{ran['runs'][0]['workflow_id']}")).json()
    (file,) = (await doors.ada.get(f"/v1/workflows/{workflow['id']}/files")).json()["files"]
    content = await doors.ada.get(file["url"])
    paused = (await doors.ada.post(f"{PATH}/pause")).json()["schedule"]
    resumed = (await doors.ada.post(f"{PATH}/resume")).json()["schedule"]
    listed = (await doors.ada.get("/v1/schedules")).json()["schedules"]
    deleted = await doors.ada.delete(PATH)
    gone = await doors.ada.get(PATH)

    assert made.status_code == 201
    assert (made.json()["applied"], len(made.json()["schedule"]["next"])) == (True, 5)
    assert stolen.status_code == 404
    assert [each["name"] for each in made.json()["schedule"]["files"]] == ["sales.csv"]
    assert content.content == b"a,b"
    assert (workflow["caller"], workflow["input"]) == ("ada", "the report")
    assert (paused["status"], paused["next"]) == ("paused", [])
    assert resumed["status"] == "active"
    assert [each["name"] for each in listed] == ["report"]
    assert deleted.json()["schedule"]["status"] == "deleted"
    assert (gone.status_code, gone.json()["code"]) == (404, "not_found")


async def test_a_caller_reaches_its_own_schedules_and_an_operator_all(doors: Doors) -> None:
    await doors.ada.post("/v1/schedules", json=REPORT)

    hidden = await doors.eve.get(PATH)
    listed = (await doors.eve.get("/v1/schedules")).json()["schedules"]
    refused = await doors.eve.post(f"{PATH}/pause", params={"owner": "ada"})
    seen = (await doors.operator.get("/v1/schedules")).json()["schedules"]
    paused = await doors.operator.post(f"{PATH}/pause", params={"owner": "ada"})
    own = await doors.eve.post("/v1/schedules", json=REPORT)

    assert (hidden.status_code, listed) == (404, [])
    assert (refused.status_code, refused.json()["code"]) == (403, "operator_only")
    assert [each["caller"] for each in seen] == ["ada"]
    assert paused.json()["schedule"]["status"] == "paused"
    assert own.status_code == 201


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"team": "other"}, 403, "team_not_allowed"),
        ({"cron": "61 * * * *"}, 422, "contract"),
        ({"timezone": "Nowhere"}, 422, "contract"),
        ({"cron": None}, 422, "contract"),
        ({"at": "2020-01-01T00:00:00Z", "cron": None}, 422, "contract"),
        ({"metadata": {"pointsman.x": 1}}, 422, "reserved_metadata"),
        ({"overlap": "sometimes"}, 422, "invalid_request"),
    ],
)
async def test_a_wrong_definition_is_a_problem(doors: Doors, changes: dict[str, Any], status: int, code: str) -> None:
    response = await doors.ada.post("/v1/schedules", json={**REPORT, **changes})

    assert (response.status_code, response.json()["code"]) == (status, code)
    assert response.headers["content-type"] == "application/problem+json"


async def test_a_name_that_is_taken_is_a_conflict(doors: Doors) -> None:
    await doors.ada.post("/v1/schedules", json=REPORT)

    again = await doors.ada.post("/v1/schedules", json=REPORT)

    assert (again.status_code, again.json()["code"]) == (409, "schedule_refused")


async def test_a_change_without_a_supervisor_is_stored(doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "_TIMEOUT_S", 0.1)

    stored = await doors.operator.post("/v1/schedules", json={**REPORT, "team": "crew-of-tomorrow"})

    body = stored.json()
    assert (stored.status_code, body["applied"], body["schedule"]) == (202, False, None)
    assert "'crew-of-tomorrow' has no live supervisor" in body["warning"]
