"""Rows of agents and supervisors have queues and times, and include stopped ones."""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.asgi import event_stream
from support.dashboard import until_read, watching
from support.history import TEAM, WORKFLOW, at, completed, dispatched, started, store, succeeded

from pointsman.bus.memory.bus import MemoryBus
from pointsman.core.model.agent_health import Circuit, Circuits
from pointsman.engine.process.heartbeat import team_card
from pointsman.index.rows import AgentRecord
from pointsman.ports.bus import QueueDepth
from pointsman.web import views
from pointsman_schemas.card import AgentCard
from pointsman_schemas.events import AttemptError, Result
from pointsman_schemas.log import AttemptFailed, RetryScheduled
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.team import Team

NOW = datetime.now(UTC)


async def told(bus: MemoryBus) -> dict[str, Any]:
    """Return the page of agents after the index has read the only workflow."""
    async with watching(bus) as dashboard:
        await until_read(dashboard, 1)
        async with event_stream(dashboard.app, "/api/live/agents") as page:
            data: dict[str, Any] = (await page.until("agents")).data
            return data


def failed(agent: str, attempt: int, error: AttemptError) -> AttemptFailed:
    result = Result(
        status="failed", agent=agent, task_id="t1", attempt=attempt, workflow_id=WORKFLOW, error=error,
        started_at=at(1), ended_at=at(2),
    )  # fmt: skip
    return AttemptFailed(at=at(2), event_id=f"e{attempt}", task_id="t1", attempt=attempt, error=error, result=result)


async def test_live_agents_have_their_queue_and_their_times_and_stopped_ones_leave() -> None:
    bus = MemoryBus()
    await bus.registry.announce(AgentCard(name="fitter", description="fits", instance="i1", version="2.1.0"))
    await bus.consumer("agent-fitter", "work", "pointsman.handoff.fitter.>", ack_wait=10)
    await bus.publish("pointsman.handoff.fitter.crew.wf.t.1", b"{}", {})
    await store(bus, *completed())
    agents = {agent["name"]: agent for agent in (await told(bus))["agents"]}

    fitter = agents["fitter"]
    assert (fitter["waiting"], fitter["working"], fitter["instances"], fitter["versions"]) == (1, 0, 1, ["2.1.0"])
    assert (fitter["health"], "tester" in agents) == ("ready", False)
    assert (fitter["record"]["median"], fitter["record"]["wait"], fitter["record"]["succeeded"]) == (2.5, 0.5, 1)


@pytest.mark.parametrize(
    ("instances", "pending", "in_flight", "recent", "health"),
    [
        (1, 0, 0, "", "ready"),
        (1, 0, 2, "", "working"),
        (1, 3, 2, "", "busy"),
        (0, 0, 2, "", "gone"),
        (0, 3, 0, "", "stuck"),
        (1, 3, 2, "++--", "failing"),
        (1, 0, 0, "+++-", "ready"),
        (1, 0, 0, "---", "ready"),
    ],
)
def test_agent_health_follows_from_queue_liveness_and_results(
    instances: int, pending: int, in_flight: int, recent: str, health: str
) -> None:
    cards = [AgentCard(name="fitter", description="fits", instance=f"i{n}", version="1") for n in range(instances)]
    record = AgentRecord("fitter", recent=deque(each == "+" for each in recent))

    (shown,) = views.agents_json(cards, {"fitter": QueueDepth(pending, in_flight)}, {"fitter": record}, {}, NOW)

    assert shown["health"] == health


@pytest.mark.parametrize(("alive", "left", "shown"), [(True, 60, True), (True, 0, False), (False, 60, False)])
async def test_circuit_is_shown_while_open_for_a_live_agent(alive: bool, left: int, shown: bool) -> None:
    bus, now = MemoryBus(), datetime.now(UTC)
    circuit = Circuit(since=now, until=now + timedelta(seconds=left))
    await bus.publish(Subjects().circuits, dump(Circuits(agents={"fitter": circuit})), {})
    if alive:
        await bus.registry.announce(AgentCard(name="fitter", description="fits", instance="i1"))
    await store(bus, *completed())

    agents = {agent["name"]: agent for agent in (await told(bus))["agents"]}

    assert (agents.get("fitter", {}).get("circuit") is not None) is shown


async def test_page_of_agents_lists_teams_and_names_what_shares_a_queue() -> None:
    bus, long_ago = MemoryBus(), datetime.now(UTC) - timedelta(hours=1)
    for number, digest in enumerate(("1" * 16, "2" * 16)):
        card = AgentCard(
            name="fitter", description="fits", instance=f"i{number}", digest=digest, started_at=long_ago,
            problems=("no API key is set",),
        )  # fmt: skip
        await bus.registry.announce(card)
        team = Team(name="shop", approve_plan=bool(number))
        await bus.registry.announce(team_card(team, long_ago, f"s{number}"))
    await bus.consumer("request-shop", "requests", "pointsman.request.shop.*", ack_wait=10)
    await bus.publish("pointsman.request.shop.caller", b"{}", {})
    await store(bus, *completed())

    data = await told(bus)

    (fitter,) = data["agents"]
    assert fitter["versions"] == ["1.0.0+11111111", "1.0.0+22222222"]
    assert ("several versions share one queue" in fitter["mixed"], fitter["problems"]) == (True, ["no API key is set"])
    assert data["teams"] == [
        {"name": "shop", "description": "The team shop", "supervisors": 2, "waiting": 1, "definitions": 2}
    ]


async def test_stuck_and_failed_work_is_counted_on_every_page() -> None:
    bus = MemoryBus()
    await bus.consumer("agent-fitter", "work", "pointsman.handoff.fitter.>", ack_wait=10)
    await bus.publish("pointsman.handoff.fitter.crew.wf.t.1", b"{}", {})
    await bus.registry.announce(AgentCard(name="tester", description="tests", instance="i1", version="1"))
    failures = [failed("tester", attempt, AttemptError(kind="handler", message="no")) for attempt in range(1, 5)]
    await store(bus, *completed()[:-1], *failures)
    shown = await told(bus)

    health = {agent["name"]: agent["health"] for agent in shown["agents"]}
    assert (health["fitter"], health["tester"], shown["live"]["stuck"]) == ("stuck", "failing", 2)


async def test_teams_with_a_supervisor_come_before_those_that_had_one() -> None:
    bus = MemoryBus()
    await store(bus, *completed())
    await bus.registry.announce(team_card(Team(name="shop"), at(0), "s1"))
    live = (await told(bus))["live"]

    assert live["teams"] == ["shop", TEAM]


async def test_team_with_a_task_is_no_agent_and_its_tokens_count_once() -> None:
    first = dispatched("t1", "shop", 1).model_copy(update={"team": True})
    again = RetryScheduled(
        at=at(2), task_id="t2", attempt=2, agent="mall", not_before=at(2), deadline=at(63), team=True
    )
    bus = MemoryBus()
    await bus.registry.announce(AgentCard(name="fitter", description="fits", instance="i1"))
    await store(
        bus, started(), first, again, succeeded("t1", "shop", 1, 2), succeeded("t2", "mall", 3, 4, 2),
        dispatched("t3", "fitter", 4), succeeded("t3", "fitter", 4, 5),
    )  # fmt: skip
    agents = (await told(bus))["agents"]

    assert [agent["name"] for agent in agents] == ["fitter"]


async def test_an_attempt_that_asks_a_person_is_no_failure_of_its_agent() -> None:
    bus, error = MemoryBus(), AttemptError(kind="needs_answer", message="a person must allow the use of refund")
    await bus.registry.announce(AgentCard(name="fitter", description="fits", instance="i1"))
    await store(bus, started(), failed("fitter", 1, error))
    (fitter,) = (await told(bus))["agents"]

    assert (fitter["record"]["failed"], fitter["record"]["failing"]) == (0, 0)
