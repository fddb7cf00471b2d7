"""Model calls of an LLM agent: retries, delays and cost limits."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from support.contexts import new_context, recorded
from support.loops import InstantClock, Place, double, run

from pointsman.authoring.attempt_state import AttemptState
from pointsman.authoring.context import Context
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.authoring.model_calls import MAX_TRIES, MAX_WAIT_S
from pointsman.authoring.ports import CallPermit
from pointsman.errors import ModelError, TaskError
from pointsman.ports.model import Model, ModelReply, ModelRequest, ToolCall
from pointsman.telemetry import semconv as names
from pointsman.testing.models import ScriptedModel, text_reply, tool_reply
from pointsman_schemas.events import Budget, Usage


@pytest.mark.parametrize(("of", "slept"), [(min, [0.5, 1.0]), (max, [1.0, 2.0])])
async def test_transient_failures_are_tried_again_with_growing_pauses(
    of: Callable[[float, float], float], slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pointsman.authoring.model_calls.random.uniform", of)
    clock = InstantClock()
    busy = ModelError("busy", retryable=True, status=503)
    output, model, context = await run(busy, busy, text_reply("ok"), clock=clock)

    assert output == "ok"
    assert len(model.requests) == MAX_TRIES == 3
    assert clock.slept == slept
    assert [report.error for report in recorded(context).reports] == ["busy", "busy", None]


async def test_only_transient_failures_of_a_chain_are_retried() -> None:
    gone = ScriptedModel(ModelError("no such model", retryable=False))
    busy = ScriptedModel(ModelError("busy", retryable=True), text_reply("here"))
    agent = LLMAgent(name="a", description="d", instructions="i", model=[gone, busy], clock=InstantClock())
    context = Context.for_test()

    assert await agent.run(context.handoff, context) == "here"
    assert (len(gone.requests), len(busy.requests)) == (1, 2)


def later(message: str, seconds: float | None) -> ModelError:
    return ModelError(message, retryable=True, retry_after=seconds)


TURNED_DOWN = ModelError("no such model", retryable=False)


@pytest.mark.parametrize(
    ("first", "second", "slept", "told"),
    [
        (later("one", 5.0), later("two", 2.0), [2.0, 2.0], "two"),
        (later("one", 2.0), later("two", 5.0), [2.0, 2.0], "one"),
        (later("one", 0.0), later("two", 2.0), [0.0, 0.0], "one"),
        (later("one", MAX_WAIT_S), later("two", MAX_WAIT_S + 1), [20.0, 20.0], "one"),
        (later("one", 20.1), TURNED_DOWN, [], "one"),
        (TURNED_DOWN, later("two", 3.0), [3.0, 3.0], "two"),
        (TURNED_DOWN, ModelError("bad request", retryable=False), [], "no such model"),
    ],
)
async def test_chain_reports_the_error_of_the_model_that_recovers_first(
    first: ModelError, second: ModelError, slept: list[float], told: str
) -> None:
    models, clock = [ScriptedModel(*[error] * MAX_TRIES) for error in (first, second)], InstantClock()
    agent = LLMAgent(name="a", description="d", instructions="i", model=models, clock=clock)
    context = Context.for_test()

    with pytest.raises(ModelError, match=told):
        await agent.run(context.handoff, context)

    assert clock.slept == slept


async def test_a_call_that_broke_off_is_counted() -> None:
    broken = ModelError("cut off", retryable=True, usage=Usage(calls=1, input_tokens=7))

    _, _, context = await run(broken, text_reply("here"))

    assert (context.usage.calls, context.usage.input_tokens) == (2, 17)


async def test_only_a_streaming_agent_emits_its_text() -> None:
    def writing(request: ModelRequest) -> ModelReply:
        for piece in ("Good ", "day."):
            if request.on_text is not None:
                request.on_text(piece)
        return text_reply("Good day.")

    _, _, streaming = await run(writing, stream=True)
    _, _, silent = await run(writing)

    assert [delta.text for delta in recorded(streaming).deltas] == ["Good ", "day."]
    assert recorded(silent).deltas == []


async def test_retries_are_bounded_and_the_last_error_is_raised() -> None:
    error, model, _ = await run(*[ModelError("busy", retryable=True, status=429)] * 5)

    assert isinstance(error, ModelError)
    assert (error.retryable, len(model.requests)) == (True, MAX_TRIES)


async def test_a_terminal_failure_is_one_call() -> None:
    error, model, _ = await run(ModelError("bad request", retryable=False, status=400))

    assert isinstance(error, ModelError)
    assert len(model.requests) == 1


async def test_short_provider_pause_is_honoured_and_a_long_one_returned() -> None:
    clock = InstantClock()
    short = ModelError("slow down", retryable=True, retry_after=4.0)
    long = ModelError("slow down", retryable=True, retry_after=MAX_WAIT_S + 1)
    error, model, _ = await run(short, long, clock=clock)

    assert error is long
    assert clock.slept == [4.0]
    assert len(model.requests) == 2


async def test_no_pause_is_begun_that_would_pass_the_deadline() -> None:
    clock = InstantClock()
    model = ScriptedModel(*[later("slow down", seconds) for seconds in (4.0, 5.0)] * 2)
    agent = LLMAgent(name="a", description="d", instructions="i", model=model, clock=clock)
    context = new_context(update={"deadline": clock.now() + timedelta(seconds=5)})

    with pytest.raises(ModelError):
        await agent.run(context.handoff, context)

    assert (clock.slept, len(model.requests)) == ([4.0], 2)


@pytest.mark.parametrize(("budget", "tokens"), [(Budget(calls=1), None), (Budget(tokens=3_000), None), (None, 3_000)])
async def test_a_spent_budget_ends_the_attempt_before_the_next_call(budget: Budget | None, tokens: int | None) -> None:
    spend = tool_reply(("double", {"number": 1}), tokens=(2_000, 1_000))
    error, model, _ = await run(spend, text_reply("2"), tools=[double], budget=budget, tokens=tokens)

    assert isinstance(error, TaskError)
    assert (error.kind, len(model.requests)) == ("limit", 1)
    assert re.fullmatch(r"1 call used of 1 allowed|3000 tokens used of 3000 allowed", str(error))


async def test_a_spent_cost_budget_ends_the_attempt() -> None:
    dear = ModelReply(
        text="", calls=(ToolCall("c", "double", '{"number": 1}'),), finish="tool_calls", usage=Usage(calls=1, cost=0.5)
    )
    error, _, _ = await run(dear, tools=[double], budget=Budget(cost=0.5))

    assert isinstance(error, TaskError)
    assert (error.kind, str(error)) == ("limit", "$0.5 used of $0.5 allowed")


async def test_call_span_has_the_request_and_the_try(monkeypatch: pytest.MonkeyPatch) -> None:
    chat, said = AttemptState.report_chat, list[tuple[tuple[str, ...], dict[str, object]]]()

    def noted(self: AttemptState, *names: str, **more: Any) -> Any:
        said.append((names, more))
        return chat(self, *names, **more)

    monkeypatch.setattr(AttemptState, "report_chat", noted)
    await run(later("busy", 0.0), text_reply({"city": "Oslo"}), output=Place, temperature=0.5, max_tokens=70)
    await run(text_reply("ok"))

    asked = {"max_tokens": 70, "temperature": 0.5, "structured": True}
    assert said == [
        (("scripted", "scripted"), {**asked, "attempt": 1}),
        (("scripted", "scripted"), {**asked, "attempt": 2}),
        (("scripted", "scripted"), {"max_tokens": 8192, "temperature": None, "structured": False, "attempt": 1}),
    ]


async def test_shared_limit_gets_the_patience_and_the_provider_pause() -> None:
    clock, waits, given = InstantClock(), list[float](), list[tuple[int, float | None]]()

    class Meters:
        async def acquire(self, model: Model, tokens: int, patience: float) -> CallPermit:
            waits.append(patience)
            return CallPermit(lambda used, retry_after: given.append((used, retry_after)))

    model = ScriptedModel(later("slow down", 3.0), text_reply("ok"))
    agent = LLMAgent(name="a", description="d", instructions="i", model=model, clock=clock)
    deadline = clock.now() + timedelta(seconds=60)
    context = new_context(update={"deadline": deadline}, rate_limiter=Meters())
    await agent.run(context.handoff, context)

    assert waits == [60.0, 60.0]
    assert given == [(0, 3.0), (15, None)]


async def test_each_call_is_measured_with_time_tokens_cost_and_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[str, float, dict[str, object]]] = []

    def note(name: str, value: float, attributes: dict[str, object]) -> None:
        more = {"gen_ai.token.type", "error.type"} & attributes.keys()
        seen.append((name, value, {key: attributes[key] for key in more}))
        named = ("chat", "scripted", "scripted", "agent")
        of = (names.OPERATION_NAME, names.PROVIDER_NAME, names.REQUEST_MODEL, names.AGENT_NAME)
        assert tuple(attributes[each] for each in of) == named

    monkeypatch.setattr("pointsman.authoring.model_calls.metrics.observe", note)
    monkeypatch.setattr("pointsman.authoring.model_calls.metrics.count", note)
    clock = InstantClock()

    def slow(request: ModelRequest) -> ModelReply:
        clock._elapsed += 2.0
        return ModelReply("ok", usage=Usage(calls=1, input_tokens=10, output_tokens=5, cost=0.25), model="scripted")

    await run(later("busy", 0.0), slow, clock=clock)

    assert seen == [
        (names.MODEL_DURATION, 0.0, {"error.type": "provider_error"}),
        (names.TOKEN_USAGE, 10, {"gen_ai.token.type": "input"}),
        (names.TOKEN_USAGE, 5, {"gen_ai.token.type": "output"}),
        (names.MODEL_COST, 0.25, {}),
        (names.MODEL_DURATION, 2.0, {}),
    ]


async def test_halves_of_letters_in_an_answer_cannot_spoil_the_next_request() -> None:
    broken = ModelReply("so \ud800", (ToolCall("\ud800", "\ud800", '"\ud800"'),), usage=Usage(calls=1, input_tokens=1))
    _, model, _ = await run(broken, text_reply("ok"), tools=[double])

    said = model.requests[1].turns[1]
    assert (said.text, said.calls) == ("so ?", (ToolCall("?", "?", '"?"'),))
