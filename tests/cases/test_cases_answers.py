"""Reported faults of other systems with answers of models: refused, cut or malformed answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel
from support import factory
from support.adapters import anthropic, both, closing, openai
from support.providers import Answer, Call, FakeProvider

from pointsman.authoring.context import Context
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.authoring.tools import tool
from pointsman.client.client import Client
from pointsman.ports.model import Model
from pointsman.settings import Settings
from pointsman.testing.clock import VirtualClock
from pointsman_schemas.card import Role
from pointsman_schemas.plan import Plan
from pointsman_schemas.role_io import Synthesis
from pointsman_schemas.team import PlanAndExecute, Team

pytestmark = pytest.mark.timeout(120)


# Refusals


class Said(BaseModel):
    words: str


REFUSALS = {  # the answer, its provider, the number of calls, and a part of the outcome's reason
    "by field": (Answer(refusal="I will not."), "openai", 1, "I will not."),
    "by filter": (Answer(finish="content_filter"), "openai", 1, "content filter"),
    "by silence": (Answer(), "openai", 2, "gave an empty answer twice"),
    "by stop reason": (Answer(refusal="Not that."), "anthropic", 1, "Not that."),
    "by bare stop reason": (Answer(finish="content_filter"), "anthropic", 1, "content filter"),
    "by no blocks": (Answer(), "anthropic", 2, "gave an empty answer twice"),
}
PLACES: dict[str, type[BaseModel]] = {"plan": Plan, "work": Said, "synthesize": Synthesis}


async def test_refusal_ends_its_task_after_one_call(settings: Settings) -> None:
    def answer(call: Call) -> Answer:
        place = next(place for place in PLACES if f"You {place}." in call.prompt)
        for kind, (refusal, *_) in REFUSALS.items():
            if f'"refuse to {place} {kind}"' in call.prompt:
                return refusal
        who = "openai" if "/chat/" in call.path else "anthropic"
        task = {"id": "t1", "agent": f"work-{who}", "intent": "say something"}
        said: dict[str, dict[str, Any]] = {
            "plan": {"tasks": [task]},
            "work": {"words": "done"},
            "synthesize": {"answer": "ok"},
        }
        return Answer(data=said[place])

    async def ask(client: Client, place: str, kind: str) -> Any:
        return await (await client.submit(f"team-{REFUSALS[kind][1]}", f"refuse to {place} {kind}")).outcome(60)

    asked = [(place, kind) for place in PLACES for kind in REFUSALS]
    async with FakeProvider() as provider:
        provider.when("", answer)
        models = {"openai": openai(provider), "anthropic": anthropic(provider)}
        agents = [
            LLMAgent(
                name=f"{place}-{who}",
                description=place,
                instructions=f"You {place}.",
                role=Role(place),
                model=model,
                output=output,
                concurrency=32,
            )
            for who, model in models.items()
            for place, output in PLACES.items()
        ]
        first, second = (
            Team(name=f"team-{who}", strategy=PlanAndExecute(planner=f"plan-{who}", synthesizer=f"synthesize-{who}"))
            for who in models
        )
        async with factory.team(first, agents, on=settings) as client, factory.team(second, on=settings):
            outcomes = await asyncio.gather(*(ask(client, *each) for each in asked))
        made = Counter(
            (place, kind)
            for place, kind in asked
            for call in provider.calls
            if f"You {place}." in call.prompt and f'"refuse to {place} {kind}"' in call.prompt
        )

    assert made == {(place, kind): REFUSALS[kind][2] for place, kind in asked}
    for (place, kind), outcome in zip(asked, outcomes, strict=True):
        assert outcome.status == "failed"
        assert REFUSALS[kind][3] in outcome.reason
        match place:
            case "plan" | "work":  # the caller gets the agent's own words
                assert outcome.answer.startswith("Could not help, because ")
                assert REFUSALS[kind][3].rstrip(".") in outcome.answer
            case _:  # the caller gets the answer in spite of the refusal
                assert outcome.answer == {"words": "done"}


# Answers that break off


class _Hurried(VirtualClock):
    """A clock whose sleeps return immediately."""

    async def sleep(self, seconds: float) -> None:
        pass


BROKEN_OFF = [
    Answer("half of it", drop=0),
    Answer("half of it", drop=40),
    Answer(body=b'{"error": {"type": "overloaded_error", "message": "Overloaded"}}'),
    Answer(body=b'{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}'),
    Answer(body=b'{"id": "x", "choices": [{"index": 0, "message": {"role": "assis'),
    Answer(body=b""),
    Answer(body=b"\n\n\n"),
]


@both
@pytest.mark.parametrize("broken", BROKEN_OFF, ids=range(len(BROKEN_OFF)))
async def test_broken_answer_is_requested_again_and_no_tool_runs_twice(
    connect: Callable[[FakeProvider], Model], broken: Answer
) -> None:
    runs = 0

    @tool
    async def charge(amount: int) -> str:
        """Charges an amount."""
        nonlocal runs
        runs += 1
        return "charged"

    wanted = Answer(calls=(("charge", {"amount": 5}),))
    async with FakeProvider.saying(broken, wanted, broken, broken, Answer("done")) as provider:
        model, clock = connect(provider), _Hurried(datetime.now(UTC))
        thinker = LLMAgent(name="thinker", description="d", instructions="i", model=model, tools=[charge], clock=clock)
        context = Context.for_test("charge it", agent="thinker")
        async with closing(model):
            output = await thinker.run(context.handoff, context)

    assert (output, runs, len(provider.calls)) == ("done", 1, 5)


# Half a character


@both
async def test_half_a_character_of_a_model_does_not_break_the_next_request(
    connect: Callable[[FakeProvider], Model],
) -> None:
    @tool
    async def note(text: str) -> str:
        """Notes a text."""
        return text

    half = "\ud800"
    called = Answer(half, calls=(("note", {"text": half}),))
    async with FakeProvider.saying(called, Answer(data={"words": half}), Answer(data={"words": "ok"})) as provider:
        model = connect(provider)
        thinker = LLMAgent(name="t", description="d", instructions="i", model=model, tools=[note], output=Said)
        context = Context.for_test("note it", agent="t")
        async with closing(model):
            output = await thinker.run(context.handoff, context)

    assert output == {"words": "ok"}
    assert len(provider.calls) == 3
