"""The command `list` filters workflows by team, status, time and correlation id."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from support.history import at, ended, started, store

from pointsman.cli.commands import workflows
from pointsman.client.client import Client
from pointsman.errors import ConfigurationError

NOWHERE: dict[str, Any] = {"url": None, "namespace": None, "json": True}


@pytest.fixture
def listed(client: Client, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs `list` with two workflows: `wf_a` has failed, and `wf_b` of another request runs."""
    first = started("wf_a").model_copy(update={"correlation_id": "c-a"})
    asyncio.run(store(client.bus, first, ended("failed", 60, workflow="wf_a"), workflow="wf_a"))
    asyncio.run(store(client.bus, started("wf_b", seconds=3_600, team="shop"), workflow="wf_b", team="shop"))

    def run(**options: Any) -> list[str]:
        workflows.list_(**{**NOWHERE, **options})
        return [json.loads(line)["workflow_id"] for line in capsys.readouterr().out.splitlines()]

    return run


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, ["wf_b", "wf_a"]),
        ({"team": "shop"}, ["wf_b"]),
        ({"status": ["failed"]}, ["wf_a"]),
        ({"status": ["failed", "Running"]}, ["wf_b", "wf_a"]),
        ({"status": ["waiting-for-an-answer"]}, []),
        ({"since": at(1_800).isoformat()}, ["wf_b"]),
        ({"until": at(1_800).isoformat()}, ["wf_a"]),
        ({"correlation_id": "c-a"}, ["wf_a"]),
        ({"correlation_id": "c-a", "status": ["running"]}, []),
    ],
)
def test_list_prints_the_workflows_that_match(listed: Any, options: dict[str, Any], found: list[str]) -> None:
    assert listed(**options) == found


@pytest.mark.parametrize("text", ["waiting for an answer", "waiting_for_an_answer", " Waiting-For-An-Answer "])
def test_words_of_a_status_may_be_parted_in_any_way(text: str) -> None:
    assert workflows._parse_status(text) == "waiting for an answer"


def test_unknown_status_is_refused_with_the_similar_and_all_statuses() -> None:
    with pytest.raises(ConfigurationError, match=r"--status is 'runing'; did you mean running\? Statuses: waiting"):
        workflows.list_(status=["runing"], **NOWHERE)
    with pytest.raises(ConfigurationError, match=r"--status is 'blue'; give one of waiting-for-admission"):
        workflows.list_(status=["blue"], **NOWHERE)


@pytest.mark.parametrize("team", [None, "crew"])
def test_empty_list_with_filters_points_to_the_list_without(
    client: Client, capsys: pytest.CaptureFixture[str], team: str | None
) -> None:
    asyncio.run(store(client.bus, started()))

    workflows.list_(team, status=["failed"], url=None, namespace=None, json=False)

    assert capsys.readouterr().out == "No workflow matches. `pointsman list` shows the newest workflows.\n"
