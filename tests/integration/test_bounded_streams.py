"""A full stream that refuses new messages loses no message. A full stream that drops old messages is reported."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs
from support import factory
from support.checker import problems
from support.crew import planner, steps, synthesizer, team, worker
from support.doctor import doctor
from support.waiting import until

from pointsman.authoring.agent import Agent
from pointsman.bus.jetstream.bus import JetStreamBus
from pointsman.settings import Settings
from pointsman_schemas.subjects import Subjects

pytestmark = pytest.mark.timeout(60)

CREW: list[Agent] = [planner, synthesizer, worker]


async def bound(bus: JetStreamBus, stream: str, **limits: Any) -> dict[str, Any]:
    """Change the limits of a stream."""
    info = await bus.api(f"STREAM.INFO.{stream}")
    answer = await bus.api(f"STREAM.UPDATE.{stream}", {**info["config"], **limits})
    assert "error" not in answer, answer
    state: dict[str, Any] = info["state"]
    return state


async def test_a_log_that_is_full_and_refuses_more_loses_nothing(bus: JetStreamBus, settings: Settings) -> None:
    log = Subjects(settings.namespace).log_stream
    async with factory.team(team, CREW, on=settings) as client:
        await (await client.submit("crew", steps("before"))).outcome(20)
        state = await bound(bus, log)
        await bound(bus, log, discard="new", max_msgs=state["messages"] + 40)
        with capture_logs() as lines:
            workflows = [await client.submit("crew", steps("a", "b", serial=True)) for _ in range(10)]
            await until(lambda: [line for line in lines if line["event"] == "inputs_returned"])
        full = await doctor(settings)
        await bound(bus, log, max_msgs=-1)
        outcomes = await asyncio.gather(*(workflow.outcome(30) for workflow in workflows))
        wrong = await problems(client.bus, client.subjects, "crew", [workflow.id for workflow in workflows])

    assert {(outcome.status, outcome.answer) for outcome in outcomes} == {("completed", "a b")}
    assert wrong == []
    assert f"{log} has" in full["streams"]["finding"]


@pytest.mark.parametrize(("kind", "limits"), [("work", {"max_bytes": 50_000_000}), ("log", {"max_msgs": 5_000})])
async def test_stream_that_drops_its_oldest_messages_is_reported(
    bus: JetStreamBus, settings: Settings, kind: str, limits: dict[str, int]
) -> None:
    subjects = Subjects(settings.namespace)
    name = {"work": subjects.work_stream, "log": subjects.log_stream}[kind]
    sound = await doctor(settings)
    await bound(bus, name, **limits)

    with capture_logs() as lines:
        async with factory.team(team, on=settings):
            await until(lambda: [line for line in lines if line["event"] == "stream_near_capacity"])
    (said,) = [line for line in lines if line["event"] == "stream_near_capacity"]
    check = (await doctor(settings))["streams"]

    (limit,) = limits.values()
    assert "streams" not in sound
    assert name in check["finding"]
    assert str(limit) in check["finding"]
    assert said["reason"] in check["finding"]
    assert f"nats stream edit {name}" in check["advice"]


async def test_max_age_of_an_operator_is_kept_and_reported(bus: JetStreamBus, settings: Settings) -> None:
    subjects, two_days = Subjects(settings.namespace), 2 * 86_400 * 10**9
    sound = await doctor(settings)
    await bound(bus, subjects.work_stream, max_age=two_days)

    await bus.set_up()
    check = (await doctor(settings))["streams"]

    assert "streams" not in sound
    assert (await bus.api(f"STREAM.INFO.{subjects.work_stream}"))["config"]["max_age"] == two_days
    assert f"{subjects.work_stream} drops messages after 2 days" in check["finding"]
