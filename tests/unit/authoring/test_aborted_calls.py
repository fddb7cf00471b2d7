"""An aborted model call is counted by its reported or estimated usage."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support import factory
from support.contexts import new_context
from support.waiting import in_time, until

from pointsman.authoring.context import Context
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.authoring.ports import CallPermit
from pointsman.authoring.tools import tool
from pointsman.errors import ModelError, TaskError
from pointsman.llm.output_budget import estimate_input_tokens
from pointsman.llm.prices import PRICES
from pointsman.ports.model import Model, ModelReply, ModelRequest, ToolCall
from pointsman.testing.clock import VirtualClock
from pointsman.testing.models import Script, ScriptedModel, text_reply
from pointsman_schemas.events import Budget, ErrorKind, Usage
from pointsman_schemas.team import Pipeline, RetryPolicy, Stage, Team

SAID = "Good day, dear reader. "
SAID_TOKENS = 8  # estimated from the number of characters


def says(request: ModelRequest) -> None:
    assert request.on_text is not None
    request.on_text(SAID)


def breaks(request: ModelRequest) -> ModelReply:
    says(request)
    raise ModelError("overloaded", retryable=False)


def breaks_and_tells(request: ModelRequest) -> ModelReply:
    says(request)
    raise ModelError("overloaded", retryable=False, usage=Usage(calls=1, output_tokens=100))


class Slow(ScriptedModel):
    """A model that starts an answer and never ends it."""

    async def complete(self, request: ModelRequest) -> ModelReply:
        self.requests.append(request)
        says(request)
        await asyncio.Event().wait()
        raise AssertionError("the event was set, but nothing sets it")


class Kept:
    """Limits that allow everything, and record each released amount."""

    def __init__(self, kept: list[tuple[int, float | None]]) -> None:
        self.kept = kept

    async def acquire(self, model: Model, tokens: int, patience: float) -> CallPermit:
        return CallPermit(lambda used, retry_after: self.kept.append((used, retry_after)))


@tool
async def look(what: str) -> str:
    """Looks."""
    return "seen"


def teller(model: ScriptedModel, **more: Any) -> LLMAgent:
    return LLMAgent(name="teller", description="Tells", instructions="Tell.", model=model, stream=True, **more)


@pytest.mark.parametrize(
    ("script", "used"),
    [
        (ModelError("dropped", retryable=False, usage=Usage(calls=1)), 0),
        (breaks, SAID_TOKENS),
        (breaks_and_tells, 100),
        (ModelError("bad key", retryable=False), None),
    ],
    ids=["dropped", "in the middle of its answer", "at a length it tells", "never begun"],
)
async def test_broken_call_without_usage_is_counted_by_estimate(
    script: Script, used: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, context = ScriptedModel(script), Context.for_test()
    monkeypatch.setitem(PRICES, "scripted", (500_000, 1_000_000))

    with pytest.raises(ModelError):
        await teller(model).run(context.handoff, context)

    taken = estimate_input_tokens(model.requests[0])
    expected = Usage()
    if used is not None:
        expected = Usage(calls=1, input_tokens=taken, output_tokens=used, cost=taken / 2 + used)
    assert context.usage == expected


async def test_broken_call_of_the_offline_model_uses_no_tokens() -> None:
    model, context = ScriptedModel(breaks), Context.for_test()
    model.provider = "offline"

    with pytest.raises(ModelError):
        await teller(model).run(context.handoff, context)

    assert context.usage == Usage(calls=1)


async def test_cancelled_attempt_has_its_usage_in_the_outcome() -> None:
    model, clock = Slow(), VirtualClock()
    team = Team(name="t", strategy=Pipeline(stages=(Stage(agent="teller"),)), retry=RetryPolicy(attempts=1))

    async with factory.team(team, [teller(model, timeout=5)], clock=clock) as client:
        workflow = await client.submit("t", "a story")
        await until(lambda: model.requests)  # the model has said its text, too
        outcome = await in_time(clock, workflow.outcome(20), 1.0)

    assert "no result within" in outcome.reason
    taken = estimate_input_tokens(model.requests[0])
    assert outcome.usage == Usage(calls=1, input_tokens=taken, output_tokens=SAID_TOKENS)
    assert outcome.tasks[0].usage == outcome.usage


@pytest.mark.parametrize(("provider", "lost"), [("scripted", 2), ("offline", 0)])
async def test_call_interrupted_by_a_worker_crash_counts_its_input(provider: str, lost: int) -> None:
    model, context = ScriptedModel(text_reply("here")), new_context(deliveries=3)
    model.provider = provider

    await teller(model).run(context.handoff, context)

    taken = estimate_input_tokens(model.requests[0])
    assert context.usage == Usage(calls=lost + 1, input_tokens=lost * taken + 10, output_tokens=5)


async def test_a_worker_that_dies_at_each_answer_uses_up_the_budget() -> None:
    model, context = ScriptedModel(text_reply("here")), new_context(update={"budget": Budget(calls=2)}, deliveries=3)

    with pytest.raises(TaskError, match="2 calls used of 2 allowed"):
        await teller(model).run(context.handoff, context)

    assert model.requests == []


@pytest.mark.parametrize("told", [Usage(), Usage(calls=1)], ids=["nothing", "only the call"])
async def test_answer_without_usage_is_counted_by_estimate(
    told: Usage,
) -> None:
    call = ToolCall("c", "look", '{"what": "the tea, please"}')
    model = ScriptedModel(ModelReply(SAID, (call,), usage=told), ModelReply(SAID, usage=told))
    kept: list[tuple[int, float | None]] = []
    context = new_context(rate_limiter=Kept(kept))

    await teller(model, tools=[look]).run(context.handoff, context)

    first, second = (estimate_input_tokens(request) for request in model.requests)
    called = SAID_TOKENS + 9  # estimated from the characters of the call's arguments
    assert context.usage == Usage(calls=2, input_tokens=first + second, output_tokens=called + SAID_TOKENS)
    assert kept == [(first + called, None), (second + SAID_TOKENS, None)]


async def test_an_aborted_call_still_counts_in_the_budget() -> None:
    dropped = ModelError("dropped", retryable=True, retry_after=0.0, usage=Usage(calls=1))
    model, context = ScriptedModel(dropped, text_reply("here")), Context.for_test()
    whole = ScriptedModel(text_reply("here"))
    await teller(whole).run(context.handoff, context)
    enough_for_one = estimate_input_tokens(whole.requests[0]) + 100
    context = new_context(update={"budget": Budget(tokens=enough_for_one)})

    with pytest.raises(TaskError) as caught:
        await teller(model).run(context.handoff, context)

    assert (caught.value.kind, len(model.requests)) == (ErrorKind.LIMIT, 1)
