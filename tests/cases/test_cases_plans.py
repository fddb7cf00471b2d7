"""Reported faults of other systems with plans: unreadable plans and wrong names of agents."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from support import factory
from support.adapters import openai
from support.crew import planner, steps, synthesizer, team, worker
from support.providers import Answer, Call, FakeProvider

from pointsman.authoring.agent import agent
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.client.client import Client
from pointsman.settings import Settings
from pointsman_schemas.card import Role
from pointsman_schemas.log import AttemptFailed, PlanAccepted, PlanRejected, TaskDispatched
from pointsman_schemas.plan import Plan
from pointsman_schemas.role_io import PlannerInput

pytestmark = pytest.mark.timeout(120)


# Plans that cannot be read

GOOD = '{"goal": "g", "tasks": [{"id": "t1", "agent": "worker", "intent": "say it", "input": {"say": "said"}}]}'
READ_AT_ONCE = {
    "fenced": f"```json\n{GOOD}\n```",
    "prose": f"Here is the plan you asked for: {GOOD} Tell me if it will do.",
    "byte order mark": "\ufeff" + GOOD,
    "spaces": " " * 200_000 + GOOD,
}
UNREADABLE = {
    "two objects": f"{GOOD} or {GOOD}",
    "trailing comma": GOOD.replace("}]}", "}],}"),
    "single quotes": GOOD.replace('"', "'"),
    "missing field": GOOD.replace('"agent": "worker", ', ""),
    "null field": GOOD.replace('"worker"', "null"),
    "an array": f"[{GOOD}, {GOOD}]",
    "a number for a name": GOOD.replace('"worker"', "7"),
    "nothing but spaces": " " * 200_000,
    "prose alone": "I would ask the worker. " * 400,
}


async def test_planner_without_valid_json_is_asked_once_more(
    settings: Settings,
) -> None:
    async with FakeProvider() as provider:
        for name, text in {**READ_AT_ONCE, **UNREADABLE}.items():
            for stays in ("", " for ever"):
                provider.when(f'"{name}{stays}"', _writes(text, stays=bool(stays)))
        written = LLMAgent(
            name="planner",
            description="Plans",
            instructions="Plan.",
            role=Role.PLAN,
            input=PlannerInput,
            output=Plan,
            output_name="plan",
            model=openai(provider),
            concurrency=32,
        )
        async with factory.team(team, [written, synthesizer, worker], on=settings) as client:

            async def ask(request: str) -> tuple[Any, list[Any]]:
                workflow = await client.submit("crew", request)
                return await workflow.outcome(30), list(await client.entries(workflow.id))

            at_once = await asyncio.gather(*map(ask, READ_AT_ONCE))
            repaired = await asyncio.gather(*map(ask, UNREADABLE))
            hopeless = await asyncio.gather(*(ask(f"{name} for ever") for name in UNREADABLE))

    asked = Counter(json.loads(call.prompt.split("<input>\n")[1].split("\n</input>")[0])["request"]
                    for call in provider.calls)  # fmt: skip
    assert {(outcome.status, outcome.answer) for outcome, _ in [*at_once, *repaired]} == {("completed", "said")}
    assert {outcome.status for outcome, _ in hopeless} == {"failed"}
    assert asked == {
        **dict.fromkeys(READ_AT_ONCE, 1),
        **dict.fromkeys(UNREADABLE, 2),
        **dict.fromkeys((f"{name} for ever" for name in UNREADABLE), 2),
    }
    for (outcome, entries), text in zip(hopeless, UNREADABLE.values(), strict=True):
        (failed,) = (entry for entry in entries if isinstance(entry, AttemptFailed))
        assert failed.error.message in outcome.reason
        assert failed.result is not None
        kept = failed.result.output
        assert kept is None if not text.strip() else isinstance(kept, str) and kept[:4000] == text[:4000]
        assert len(str(kept)) < 4100


def _writes(text: str, *, stays: bool) -> Callable[[Call], Answer]:
    return lambda call: Answer(GOOD if not stays and "cannot be used" in call.prompt else text)


# Names of agents that do not exist, or that nearly match

NEARLY = [
    "WORKER",
    '"worker"',
    "work-er",
    "'worker'",
    "manager",
    "planner",
    "synthesizer",
    "crew",
    "",
    "*",
    "worker\n\nx",
]


async def test_misspelled_agent_name_goes_back_to_the_planner(
    settings: Settings,
) -> None:
    async def ask(client: Client, name: str) -> tuple[Any, list[PlanRejected], list[TaskDispatched]]:
        right = steps("a")
        wrong = right["tasks"][0] | {"agent": name}
        workflow = await client.submit("crew", {"tasks": [wrong], "repaired": right})
        outcome = await workflow.outcome(30)
        entries = await client.entries(workflow.id)
        return (
            outcome,
            [entry for entry in entries if isinstance(entry, PlanRejected)],
            [entry for entry in entries if isinstance(entry, TaskDispatched) and entry.task_id == "a"],
        )

    async with factory.team(team, [planner, synthesizer, worker], on=settings) as client:
        trimmed = await asyncio.gather(*(ask(client, name) for name in ("worker ", "\tworker\n")))
        nearly = await asyncio.gather(*(ask(client, name) for name in NEARLY))

    for outcome, rejected, dispatched in trimmed:
        assert (outcome.status, rejected, len(dispatched)) == ("completed", [], 1)
    for outcome, rejected, dispatched in nearly:
        assert (outcome.status, len(dispatched)) == ("completed", 1)
        (once,) = rejected
        assert "not one of: worker" in once.problems[0]


async def test_agent_that_joins_during_a_repair_can_be_planned(settings: Settings) -> None:
    come = asyncio.Event()

    @agent(name="planner", description="Names who is not there yet", role=Role.PLAN)
    async def hopeful(asked: PlannerInput) -> Plan:
        if asked.problems:
            async with asyncio.timeout(20):
                await come.wait()
        return Plan.model_validate(
            {"tasks": [{"id": "t1", "agent": "worker", "intent": "say it", "input": {"say": 1}}]}
        )

    async with factory.team(team, [hopeful, synthesizer], on=settings) as client:
        workflow = await client.submit("crew", "say it")
        async for event in workflow.events():
            if isinstance(event, PlanRejected):
                break
        async with factory.team((), [worker], on=settings):
            come.set()
            outcome = await workflow.outcome(20)
            entries = await client.entries(workflow.id)

    assert outcome.status == "completed"
    assert sum(isinstance(entry, PlanRejected) for entry in entries) == 1
    assert sum(isinstance(entry, PlanAccepted) for entry in entries) == 1
