"""Batches over the gateway: every row is processed once, even if a gateway is killed."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support import factory
from support.factory import RunningTeam
from support.gateway import gateway_process, http_client, served_gateway
from support.processes import System
from support.waiting import until

from pointsman.authoring.agent import agent
from pointsman.authoring.context import Context
from pointsman.batches.records import BATCH_GROUP, read_record
from pointsman.errors import TaskError
from pointsman.gateway.keys import KeyStore
from pointsman.index.callers import CallerLimits
from pointsman.settings import Settings
from pointsman_schemas.team import Limits, Pipeline, RetryPolicy, Stage, Team

pytestmark = pytest.mark.timeout(120)

DESK = Team(
    name="desk",
    strategy=Pipeline(stages=(Stage(agent="shout"),)),
    limits=Limits(deadline=60),
    retry=RetryPolicy(attempts=1),
)


class Desk:
    """An agent that counts its work, and that waits while the gate is closed."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.done: Counter[str] = Counter()
        self.running = self.most = 0

        @agent(name="shout", description="Repeats the request in capital letters", concurrency=100)
        async def shout(request: str, context: Context) -> str:
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                self.done[request] += 1
                await self.gate.wait()
                await asyncio.sleep(0.02)
                if request == "fail":
                    raise TaskError("no voice")
                return request.upper()
            finally:
                self.running -= 1

        self.agents = [shout]


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Return settings with a short heartbeat, because a gateway waits for four before it continues another's batch."""
    return settings.model_copy(update={"heartbeat": 1.0})


@pytest.fixture
async def desk() -> Desk:
    return Desk()


@pytest.fixture
async def crew(settings: Settings, desk: Desk) -> AsyncIterator[RunningTeam]:
    async with factory.team(DESK, desk.agents, on=settings) as running:
        yield running


async def ended(client: httpx2.AsyncClient, path: str) -> dict[str, Any]:
    async def read() -> dict[str, Any] | None:
        batch: dict[str, Any] = (await client.get(path)).json()
        return batch if batch["ended_at"] else None

    found: dict[str, Any] = await until(read, seconds=60)
    return found


async def results(client: httpx2.AsyncClient, path: str, **query: int) -> list[dict[str, Any]]:
    found = await client.get(f"{path}/results", params=query)
    assert found.headers["content-type"].startswith("application/jsonl")
    return [json.loads(line) for line in found.text.splitlines()]


async def test_each_row_of_a_batch_is_a_request_and_has_a_result(client: httpx2.AsyncClient, desk: Desk) -> None:
    body = {"team": "desk", "inputs": [*(f"row {number}" for number in range(1, 12)), "fail"], "concurrency": 3}
    key = {"idempotency-key": "monday"}
    desk.gate.clear()
    created = await client.post("/v1/batches", json=body, headers=key)
    path = created.headers["location"]
    await until(lambda: desk.running == 3)
    desk.gate.set()
    batch = await ended(client, path)
    again = await client.post("/v1/batches", json=body, headers=key)
    other = await client.post("/v1/batches", json={**body, "concurrency": 4}, headers=key)
    rows = await results(client, path)
    query = {"correlation_id": batch["id"], "limit": 100}

    async def all_listed() -> set[str] | None:
        """Return the workflows of the batch when the index of the gateway has all of them."""
        found = {each["id"] for each in (await client.get("/v1/workflows", params=query)).json()["workflows"]}
        return found if len(found) >= len(rows) else None

    workflows = await until(all_listed, seconds=30)

    assert (created.status_code, created.json()["total"]) == (202, 12)
    assert (batch["status"], batch["counts"]["completed"], batch["counts"]["failed"]) == ("completed", 11, 1)
    assert sum(batch["counts"].values()) == 12
    assert [row["row"] for row in rows] == list(range(1, 13))
    assert [row["answer"] for row in rows[:11]] == [f"ROW {number}" for number in range(1, 12)]
    assert (rows[11]["status"], "no voice" in rows[11]["reason"]) == ("failed", True)
    assert [row["row"] for row in await results(client, path, after=10)] == [11, 12]
    assert workflows == {row["workflow_id"] for row in rows}
    assert (again.json()["id"], again.json()["status"]) == (batch["id"], "completed")
    assert (other.status_code, other.json()["code"]) == (409, "key_taken")
    assert (desk.most, set(desk.done.values())) == (3, {1})
    assert [each["id"] for each in (await client.get("/v1/batches")).json()["batches"]] == [batch["id"]]


async def test_lines_and_uploads_are_rows_and_an_invalid_row_refuses_the_batch(
    crew: RunningTeam, settings: Settings, desk: Desk
) -> None:
    lines = b'"one"\n\n  "two" \r\n"three"'
    kind = {"content-type": "application/jsonl"}
    async with served_gateway(settings, batch_rows=3) as address, http_client(address) as client:
        sent = await client.post("/v1/batches", params={"team": "desk"}, content=lines, headers=kind)
        file = (await client.post("/v1/files", content=lines, headers=kind)).json()["id"]
        uploaded = await client.post("/v1/batches", json={"team": "desk", "inputs": file})
        wrong = await client.post(
            "/v1/batches", params={"team": "desk"}, content=b'"one"\n[1]\n{"a": 1,}', headers=kind
        )
        many = await client.post("/v1/batches", params={"team": "desk"}, content=lines + b"\n4\n5", headers=kind)
        empty = await client.post("/v1/batches", params={"team": "desk"}, content=b"\n", headers=kind)
        text = await client.post("/v1/batches", content=lines, headers={"content-type": "text/csv"})
        both = [await ended(client, each.headers["location"]) for each in (sent, uploaded)]
        rows = await results(client, sent.headers["location"])

    assert [each["total"] for each in both] == [3, 3]
    assert [row["answer"] for row in rows] == ["ONE", "TWO", "THREE"]
    assert (wrong.status_code, [each["row"] for each in wrong.json()["errors"]]) == (422, [2, 3])
    assert (many.status_code, many.json()["code"]) == (413, "too_many_rows")
    assert (empty.json()["code"], text.status_code) == ("no_rows", 415)
    assert sum(desk.done.values()) == 6


async def test_a_paused_batch_sends_no_row_until_it_is_resumed(
    client: httpx2.AsyncClient, crew: RunningTeam, desk: Desk
) -> None:
    desk.gate.clear()
    inputs = [f"row {number}" for number in range(6)]
    created = await client.post("/v1/batches", json={"team": "desk", "inputs": inputs, "concurrency": 2})
    path = created.headers["location"]
    await until(lambda: desk.running == 2, seconds=30)
    paused = await client.post(f"{path}/pause", json={})

    bucket = await crew.bus.key_value(crew.subjects.gateway_bucket, BATCH_GROUP)

    async def released() -> bool:
        stored = await read_record(bucket, paused.json()["id"])
        return stored is not None and not stored.record.feeder

    async def counts_of_two() -> Any:
        counts = (await client.get(path)).json()["counts"]
        return counts if counts["completed"] == 2 else None

    await until(released, seconds=30)
    desk.gate.set()
    counts = await until(counts_of_two, seconds=30)
    resumed = await client.post(f"{path}/resume", json={})
    batch = await ended(client, path)

    assert (paused.status_code, paused.json()["status"], resumed.json()["status"]) == (202, "paused", "running")
    assert (counts["completed"], counts["waiting"]) == (2, 4)
    assert (batch["counts"]["completed"], desk.done) == (6, Counter(inputs))


async def test_a_cancelled_batch_sends_no_more_rows_and_ends_those_that_run(
    client: httpx2.AsyncClient, desk: Desk
) -> None:
    desk.gate.clear()
    inputs = [f"row {number}" for number in range(40)]
    created = await client.post("/v1/batches", json={"team": "desk", "inputs": inputs, "concurrency": 5})
    path = created.headers["location"]

    async def working() -> Any:
        """Return the batch when the index of the gateway has the five workflows."""
        batch = (await client.get(path)).json()
        return batch if batch["counts"]["running"] == desk.running == 5 else None

    progress = await until(working, seconds=30)
    cancelled = await client.post(f"{path}/cancel", json={})
    batch = await ended(client, path)
    again = await client.post(f"{path}/cancel", json={})

    assert (progress["status"], progress["counts"]["running"], progress["counts"]["waiting"]) == ("running", 5, 35)
    assert (cancelled.status_code, cancelled.json()["status"]) == (202, "cancelling")
    assert (batch["status"], batch["counts"]["cancelled"], batch["counts"]["not_sent"]) == ("cancelled", 5, 35)
    assert (again.status_code, len(desk.done)) == (409, 5)


async def test_a_batch_keeps_the_limits_of_its_caller_and_belongs_to_it(
    crew: RunningTeam, settings: Settings, desk: Desk
) -> None:
    store = await KeyStore.open(crew.bus, crew.subjects)
    keys = [(await store.create(name, limits=CallerLimits(running=2))).text for name in ("ada", "bob")]
    async with served_gateway(settings, gateway_require_key=True) as address:
        async with http_client(address, keys[0]) as ada:
            body = {"team": "desk", "inputs": [f"row {number}" for number in range(6)], "concurrency": 6}
            path = (await ada.post("/v1/batches", json=body)).headers["location"]
            batch = await ended(ada, path)
        async with http_client(address, keys[1]) as bob:
            read = [(await bob.get(each)).status_code for each in (path, f"{path}/results")]
            cancelled = await bob.post(f"{path}/cancel", json={})
            listed = (await bob.get("/v1/batches")).json()["batches"]

    assert (batch["counts"]["completed"], desk.most) == (6, 2)
    assert (read, cancelled.status_code, listed) == ([404, 404], 404, [])


async def test_another_gateway_continues_with_the_batch_of_a_killed_gateway_and_does_no_row_twice(
    crew: RunningTeam, settings: Settings, desk: Desk, tmp_path: Path
) -> None:
    inputs = [f"row {number}" for number in range(60)]
    async with System(tmp_path / "system", settings) as system:
        first, address = await gateway_process(system)
        async with http_client(address) as client:
            body = {"team": "desk", "inputs": inputs, "concurrency": 4}
            path = (await client.post("/v1/batches", json=body)).headers["location"]

            async def begun() -> bool:
                return len(desk.done) >= 10

            await until(begun, seconds=30)
            desk.gate.clear()
        async with served_gateway(settings) as address, http_client(address) as client:
            await first.kill()
            desk.gate.set()
            batch = await ended(client, path)
            rows = await results(client, path)

    assert (batch["status"], batch["counts"]["completed"]) == ("completed", 60)
    assert [row["answer"] for row in rows] == [each.upper() for each in inputs]
    assert desk.done == Counter(inputs)
