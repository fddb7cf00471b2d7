"""A model call does not use more than the rest of its attempt's budget, as far as its input can be estimated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import JsonValue
from support.contexts import new_state
from support.loops import InstantClock

from pointsman.authoring.attempt_state import AttemptState
from pointsman.authoring.context import Context
from pointsman.authoring.model_calls import ESTIMATED_ANSWER_TOKENS, ModelCalls
from pointsman.authoring.ports import CallPermit
from pointsman.errors import ModelError, TaskError
from pointsman.llm.output_budget import MIN_ANSWER_TOKENS, MIN_CALL_TOKENS, estimate_input_tokens
from pointsman.llm.prices import PRICES
from pointsman.ports.model import Model, ModelReply, ModelRequest, ToolCall, ToolSpec, Turn
from pointsman.testing.clock import VirtualClock
from pointsman.testing.models import ScriptedModel
from pointsman_schemas.events import Budget, Usage

REQUEST = ModelRequest(model="", instructions="Do it. " * 30, turns=(Turn("user", "the task " * 20),), max_tokens=1_000)
MILLION = 1_000_000


class Priced:
    """A model with inputs of up to `short` times the estimate and answers of up to the limit. Some calls fail."""

    provider, account = "scripted", ""

    def __init__(self, name: str, chance: Random, *, short: float = 1.0) -> None:
        self.name, self.chance, self.short = name, chance, short
        self.asked: list[ModelRequest] = []

    async def complete(self, request: ModelRequest) -> ModelReply:
        self.asked.append(request)
        read = int(self.chance.choice([self.short, self.short / 2]) * estimate_input_tokens(request))
        written = self.chance.choice([request.max_tokens, self.chance.randint(1, request.max_tokens)])
        price = PRICES[self.name]
        cost = (read * price[0] + written * price[1]) / MILLION
        usage = Usage(calls=1, input_tokens=read, output_tokens=written, cost=cost)
        if self.chance.random() < 0.2:
            raise ModelError("not now", retryable=False, usage=usage)
        return ModelReply(text="so", usage=usage, finish="stop", model=self.name)

    async def close(self) -> None:
        return None


class Wordy(Priced):
    """A model whose answer always reaches the limit."""

    async def complete(self, request: ModelRequest) -> ModelReply:
        self.asked.append(request)
        read = int(self.short * estimate_input_tokens(request))
        usage = Usage(calls=1, input_tokens=read, output_tokens=request.max_tokens)
        return ModelReply(text="It was a dark and", usage=usage, finish="length", model=self.name)


@pytest.fixture(autouse=True)
def prices() -> Iterator[None]:
    with patch.dict(PRICES, {"dear": (3.0, 15.0), "cheap": (0.1, 0.4)}):
        yield


def state_with(budget: Budget) -> AttemptState:
    return new_state(Context.for_test("go on").handoff.model_copy(update={"budget": budget}))


def calls(*models: Model, tokens: int | None = None) -> ModelCalls:
    return ModelCalls("agent", models, tokens, VirtualClock())


async def ask(asking: ModelCalls, state: AttemptState) -> None:
    """Call the model until the budget allows no further call."""
    for _ in range(60):
        try:
            await asking.complete(REQUEST, state)
        except ModelError:
            continue
        except TaskError:
            return


@settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.integers(0, 2**64))
async def test_no_sequence_of_calls_exceeds_the_budget_with_exact_estimates(seed: int) -> None:
    chance = Random(seed)
    budget = Budget(tokens=chance.choice([None, 600, 5_000]), cost=chance.choice([None, 0.004, 0.05]))
    tokens = chance.choice([900, 9_000])
    state = state_with(budget)

    await ask(calls(Priced("dear", chance), Priced("cheap", chance), tokens=tokens), state)

    assert state.attempt_usage.usage.tokens <= min(tokens, budget.tokens or tokens)
    assert budget.cost is None or state.attempt_usage.usage.cost <= budget.cost + 1e-12


async def test_answer_gets_the_budget_left_by_the_input() -> None:
    model, estimate = Wordy("cheap", Random(1)), estimate_input_tokens(REQUEST)

    with pytest.raises(TaskError, match="cut off after 100 tokens; the budget has no more tokens"):
        await calls(model).complete(REQUEST, state_with(Budget(tokens=estimate + 100)))
    await calls(model).complete(REQUEST, state_with(Budget(tokens=50_000)))
    await calls(model).complete(REQUEST, state_with(Budget()))

    assert [asked.max_tokens for asked in model.asked] == [100, 1_000, 1_000]


async def test_free_model_answers_with_any_budget() -> None:
    model = ScriptedModel(ModelReply(text="so"))
    model.provider = "offline"

    await calls(model).complete(REQUEST, state_with(Budget(tokens=1, cost=0.000001)))

    assert [asked.max_tokens for asked in model.requests] == [1_000]


async def test_call_with_an_unaffordable_input_is_not_made() -> None:
    model, left = Priced("cheap", Random(1)), estimate_input_tokens(REQUEST) + MIN_ANSWER_TOKENS - 1

    with pytest.raises(TaskError, match=f"takes some .* tokens, and {left} tokens are left of {left}") as raised:
        await calls(model).complete(REQUEST, state_with(Budget(tokens=left)))

    assert (raised.value.kind, model.asked) == ("limit", [])


SCHEMA: dict[str, JsonValue] = {"type": "object", "properties": {"city": {"type": "string"}}}


@pytest.mark.parametrize(
    "more",
    [{"tools": (ToolSpec("weather", "", SCHEMA),)}, {"output_schema": SCHEMA}],
    ids=["tools", "an output schema"],
)
async def test_call_without_room_for_a_tool_call_or_object_is_not_made(more: dict[str, Any]) -> None:
    request = replace(REQUEST, **more)
    estimate = estimate_input_tokens(request)
    model = Wordy("cheap", Random(1))

    for room in (MIN_ANSWER_TOKENS, MIN_CALL_TOKENS - 1, MIN_CALL_TOKENS):
        with pytest.raises(TaskError):
            await calls(model).complete(request, state_with(Budget(tokens=estimate + room)))

    assert [asked.max_tokens for asked in model.asked] == [MIN_CALL_TOKENS]


async def test_price_bounds_the_answer_and_selects_a_cheaper_model() -> None:
    dear, cheap = Wordy("dear", Random(1)), Wordy("cheap", Random(1))
    left = (estimate_input_tokens(REQUEST) * 0.1 + 50.5 * 0.4) / MILLION

    with pytest.raises(TaskError, match="cut off after 50 tokens"):
        await calls(dear, cheap).complete(REQUEST, state_with(Budget(cost=left)))

    assert (dear.asked, [asked.max_tokens for asked in cheap.asked]) == ([], [50])


async def test_model_with_free_answers_is_bounded_by_its_input_cost() -> None:
    model = Wordy("reader", Random(1))
    read = estimate_input_tokens(REQUEST) * 3.0 / MILLION

    with patch.dict(PRICES, {"reader": (3.0, 0.0)}):
        with pytest.raises(TaskError, match="is left of"):
            await calls(model).complete(REQUEST, state_with(Budget(cost=read * 0.9)))
        await calls(model).complete(REQUEST, state_with(Budget(cost=read * 1.1)))

    assert [asked.max_tokens for asked in model.asked] == [1_000]


async def test_expensive_model_does_not_end_the_attempt_for_a_cheaper_one() -> None:
    left = (estimate_input_tokens(REQUEST) * 0.1 + 999 * 0.4) / MILLION
    busy = ModelError("busy", retryable=True, retry_after=0.0)
    dear, cheap = Wordy("dear", Random(1)), ScriptedModel(busy, ModelReply(text="so"))
    cheap.name = "cheap"

    asking = replace(calls(dear, cheap), clock=InstantClock())
    reply = await asking.complete(REQUEST, state_with(Budget(cost=left)))

    assert (reply.text, len(cheap.requests), dear.asked) == ("so", 2, [])


async def test_overspend_is_bounded_by_the_estimation_error() -> None:
    estimate = estimate_input_tokens(REQUEST)
    state = state_with(Budget(tokens=estimate + 100))
    model = Wordy("cheap", Random(1), short=2.0)

    await ask(calls(model), state)

    assert len(model.asked) == 1
    assert state.attempt_usage.usage.tokens - (estimate + 100) == estimate


class Told:
    """Limits that allow everything and record each request."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def acquire(self, model: Model, tokens: int, patience: float) -> CallPermit:
        self.asked.append(tokens)
        return CallPermit(lambda used, retry_after: None)


async def test_shared_limit_reserves_the_same_estimate() -> None:
    tools = (ToolSpec("weather", "The weather of a city. " * 100, SCHEMA),)
    told = Told()
    state = new_state(rate_limiter=told)

    for request in (REQUEST, replace(REQUEST, tools=tools), replace(REQUEST, max_tokens=40)):
        await calls(Priced("cheap", Random(1))).complete(request, state)

    bare, with_tools = estimate_input_tokens(REQUEST), estimate_input_tokens(replace(REQUEST, tools=tools))
    assert told.asked == [bare + ESTIMATED_ANSWER_TOKENS, with_tools + ESTIMATED_ANSWER_TOKENS, bare + 40]


def test_every_part_of_a_request_counts_in_the_estimate() -> None:
    schema: dict[str, JsonValue] = {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "a city " * 20}},
    }
    call = ToolCall("1", "weather", '{"city": "Oslo"}' * 10)
    told = (*REQUEST.turns, Turn("assistant", "", (call,)), Turn("tool", "rain " * 30, call_id="1"))
    bare = estimate_input_tokens(REQUEST)

    assert estimate_input_tokens(ModelRequest("", REQUEST.instructions, told)) > bare + 100
    assert (
        estimate_input_tokens(ModelRequest("", REQUEST.instructions, REQUEST.turns, output_schema=schema)) > bare + 400
    )
    tools = (ToolSpec("weather", "", schema),)
    assert estimate_input_tokens(ModelRequest("", REQUEST.instructions, REQUEST.turns, tools)) > bare + 400


@pytest.mark.parametrize(
    ("more", "tokens"),
    [
        ({}, 8),
        ({"turns": (Turn("user", ""),) * 3}, 32),
        ({"turns": (Turn("assistant", "", (ToolCall("", "", ""),) * 2),)}, 32),
        ({"tools": (ToolSpec("", "", {}),) * 2}, 24 + 350 + 2),
        ({"output_schema": {}}, 8 + 350 + 1),
    ],
)
def test_the_framing_of_each_part_counts_in_the_estimate(more: dict[str, Any], tokens: int) -> None:
    assert estimate_input_tokens(ModelRequest(**{"model": "", "instructions": "", "turns": (), **more})) == tokens


@pytest.mark.parametrize(
    ("text", "tokens"), [("word " * 60, 100), ("\u5929\u6c14" * 50, 150), ("\U0001f600" * 50, 100)]
)
def test_wide_letters_take_more_than_plain_ones(text: str, tokens: int) -> None:
    there = estimate_input_tokens(ModelRequest("", "", (Turn("user", text),)))

    assert there - estimate_input_tokens(ModelRequest("", "", (Turn("user", ""),))) == tokens
