"""`Client.list` filters workflows by team, status, time and correlation id."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.history import at, ended, started, store

from pointsman.bus.memory.bus import MemoryBus
from pointsman.client.client import WORKFLOW_STATUSES, Client
from pointsman_schemas.log import QuestionAsked

WORKFLOWS = {
    "wf_done": ("crew", 0, "c-1", "completed"),
    "wf_failed": ("crew", 60, "c-2", "failed"),
    "wf_shop": ("shop", 120, "c-1", "completed"),
    "wf_asks": ("crew", 180, "c-3", "waiting for an answer"),
    "wf_runs": ("crew", 240, "c-1", "running"),
}


@pytest.fixture
async def client() -> Client:
    """Return a client with five workflows that started one minute apart, and with a queued request."""
    client = Client(MemoryBus())
    for id, (team, seconds, correlation, status) in WORKFLOWS.items():
        entries: list[Any] = [
            started(id, seconds=seconds, team=team).model_copy(update={"correlation_id": correlation})
        ]
        if status == "waiting for an answer":
            entries.append(QuestionAsked(at=at(seconds), question=f"{id}-1", about="plan", expires_at=at(9_999)))
        elif status != "running":
            entries.append(ended(status, seconds, workflow=id))
        pending = (f"{id}-1",) if status == "waiting for an answer" else ()
        await store(client.bus, *entries, workflow=id, team=team, open_questions=pending)
    await client.submit("crew", "queued", request_id="r-9", correlation_id="c-9")
    return client


async def ids(client: Client, team: str | None = None, **filters: Any) -> list[str]:
    return [each.id if each.id in WORKFLOWS else "queued" for each in await client.list(team, **filters)]


async def test_list_without_filters_has_all_workflows_newest_first(client: Client) -> None:
    assert await ids(client) == ["queued", "wf_runs", "wf_asks", "wf_shop", "wf_failed", "wf_done"]


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({"team": "shop"}, ["wf_shop"]),
        ({"status": ["completed"]}, ["wf_shop", "wf_done"]),
        ({"status": ["running", "failed"]}, ["wf_runs", "wf_failed"]),
        ({"status": ["waiting for an answer"]}, ["wf_asks"]),
        ({"status": ["waiting for admission"]}, ["queued"]),
        ({"correlation_id": "c-1"}, ["wf_runs", "wf_shop", "wf_done"]),
        ({"correlation_id": "c-9"}, ["queued"]),
        ({"correlation_id": "c-1", "status": ["completed"], "team": "crew"}, ["wf_done"]),
        ({"until": at(120)}, ["wf_failed", "wf_done"]),
        ({"since": at(120), "until": at(240)}, ["wf_asks", "wf_shop"]),
        ({"since": at(120), "status": ["completed", "failed"]}, ["wf_shop"]),
        ({"since": datetime.now(UTC) + timedelta(days=1)}, []),
        ({"status": ["cancelled"]}, []),
    ],
)
async def test_list_has_the_workflows_that_match_all_filters(
    client: Client, filters: dict[str, Any], found: list[str]
) -> None:
    assert await ids(client, **filters) == found


async def test_limit_counts_matching_workflows_alone(client: Client) -> None:
    assert await ids(client, status=["completed"], limit=1) == ["wf_shop"]
    assert await ids(client, correlation_id="c-1", limit=2) == ["wf_runs", "wf_shop"]


async def test_match_far_back_in_a_long_log_is_found() -> None:
    client = Client(MemoryBus())
    await store(client.bus, started("wf_old"), ended("failed", 1, workflow="wf_old"), workflow="wf_old")
    for number in range(150):
        await store(client.bus, started(f"wf_{number}"), workflow=f"wf_{number}")

    assert await ids(client, status=["failed"], limit=1) == ["queued"]
    assert [each.id for each in await client.list(status=["failed"], limit=1)] == ["wf_old"]


async def test_summary_has_the_correlation_id(client: Client) -> None:
    assert [each.correlation_id for each in await client.list(limit=3)] == ["c-9", "c-1", "c-3"]


async def test_every_status_of_a_summary_is_a_known_status(client: Client) -> None:
    assert {each.status for each in await client.list()} <= set(WORKFLOW_STATUSES)
