"""An agent with a real provider SDK obeys rate limits, retries after transient errors, and makes one call at a time."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import BaseModel
from support.adapters import LIMITS, Connect, anthropic, every, openai, responses, talking
from support.contexts import new_context
from support.providers import Answer, Call, FakeProvider

from pointsman.authoring.context import Context
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.authoring.tools import tool
from pointsman.errors import ModelError, TaskError
from pointsman.telemetry import traces
from pointsman.testing.clock import VirtualClock
from pointsman_schemas.events import Budget


@tool
async def weather_of(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"


class Place(BaseModel):
    """Where something is."""

    city: str


@every
@pytest.mark.parametrize("factor", [1.0, 1.5], ids=["right", "short"])
async def test_call_exceeds_its_budget_only_by_the_estimation_error(
    connect: Connect, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget, usual, estimate, taken = 4_000, 1_000, 500, int(500 * factor)
    allowed: list[int] = []
    monkeypatch.setattr("pointsman.authoring.model_calls.estimate_input_tokens", lambda _: estimate)

    def using_all(call: Call) -> Answer:
        most = next(call.body[name] for name in LIMITS if name in call.body)
        allowed.append(most)
        if most == usual:
            return Answer(calls=(("weather_of", {"city": str(len(allowed))}),), usage=(400, most))
        return Answer("Half an answer", finish="length", usage=(taken, most))

    async with FakeProvider.saying(*[using_all] * 9) as provider:
        model = connect(provider)
        agent = LLMAgent(
            name="a", description="a", instructions="Do it.", model=model, tools=[weather_of], max_tokens=usual
        )
        context = new_context(update={"input": "go on", "budget": Budget(tokens=budget)})
        with pytest.raises(TaskError, match="the budget has no more tokens") as raised:
            await agent.run(context.handoff, context)
        await model.close()

    assert raised.value.kind == "limit"
    assert allowed == [usual, usual, budget - 2 * (400 + usual) - estimate]
    assert context.usage.tokens == budget + taken - estimate


@every
@pytest.mark.parametrize("answer", [
    Answer("prompt is too long: 210000 tokens > 200000 maximum", status=400),
    Answer("This model's maximum context length is 128000 tokens.", status=400),
    Answer("too large", status=413),
], ids=["anthropic", "openai", "413"])  # fmt: skip
async def test_context_overflow_is_reported_and_not_retried(connect: Connect, answer: Answer) -> None:
    async with talking(connect, answer) as (provider, model):
        agent = LLMAgent(name="a", description="d", instructions="i", model=model)
        context = Context.for_test("hello")
        with pytest.raises(ModelError, match="too long for this model") as caught:
            await agent.run(context.handoff, context)

    assert (caught.value.kind, caught.value.retryable) == ("context_overflow", False)
    assert len(provider.calls) == 1


async def test_next_model_of_a_chain_is_asked_if_one_fails() -> None:
    async with (
        FakeProvider.saying(Answer("overloaded", status=529), Answer("no such model", status=404)) as first,
        FakeProvider.saying(Answer("from the second"), Answer("again from the second")) as second,
    ):
        agent = LLMAgent(
            name="a", description="d", instructions="i", model=[anthropic(first), openai(second)], clock=VirtualClock()
        )
        for expected in ("from the second", "again from the second"):
            context = Context.for_test("hello")
            assert await agent.run(context.handoff, context) == expected
            assert context.usage.calls == 1
        await agent.close()

    assert (len(first.calls), len(second.calls)) == (2, 2)


@every
async def test_next_model_of_a_chain_repairs_a_wrong_answer(
    connect: Connect,
) -> None:
    async with (
        FakeProvider.saying(Answer("no such model", status=404), Answer("no such model", status=404)) as first,
        FakeProvider.saying(Answer(data={"city": 7}), Answer(data={"city": "Oslo"})) as second,
    ):
        models = [responses(first), connect(second)]
        agent = LLMAgent(name="a", description="d", instructions="i", model=models, output=Place)
        context = Context.for_test("where?")
        found = await agent.run(context.handoff, context)
        await agent.close()

    assert found == {"city": "Oslo"}
    assert (len(first.calls), len(second.calls), context.usage.calls) == (2, 2, 2)
    assert "valid string" not in second.calls[0].prompt
    assert "valid string" in second.calls[1].prompt


IDS: dict[Connect, str] = {openai: "chatcmpl-test", responses: "resp_test", anthropic: "msg_test"}


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Collect the spans of the process, including those of the SDKs."""
    import opentelemetry.trace as otel

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(otel, "_TRACER_PROVIDER", provider)
    traces.configure(provider)
    yield exporter
    traces.configure(None)
    provider.shutdown()


@every
async def test_a_model_call_is_one_chat_span_and_no_other(connect: Connect, spans: InMemorySpanExporter) -> None:
    async with talking(connect, Answer("hi", usage=(3, 2))) as (_, model):
        agent = LLMAgent(name="greeter", description="Greets", instructions="Greet.", model=model)
        context = Context.for_test("hello", agent="greeter")
        await agent.run(context.handoff, context)

    (chat,) = spans.get_finished_spans()
    assert (chat.name, chat.kind.name) == (f"chat {model.name}", "CLIENT")
    assert dict(chat.attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": model.provider,
        "gen_ai.request.model": model.name,
        "gen_ai.request.max_tokens": 8192,
        "gen_ai.output.type": "text",
        "gen_ai.agent.name": "greeter",
        "gen_ai.response.model": model.name,
        "gen_ai.response.id": IDS[connect],
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 2,
        "pointsman.usage.cost": pytest.approx(0.000022 if model.provider == "openai" else 0.000013),
        "pointsman.attempt": 1,
    }


class _Hurried(VirtualClock):
    """Records the duration of each sleep and returns immediately."""

    def __init__(self) -> None:
        super().__init__(datetime.now(UTC))
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@every
async def test_agent_with_a_tool_and_an_output_type_passes_a_rate_limit(connect: Connect) -> None:
    class Place(BaseModel):
        city: str
        sky: str

    @tool
    async def weather(city: str) -> str:
        """The weather of a city."""
        return f"rain in {city}"

    answers = (
        Answer("slow down", status=429, headers=(("retry-after", "3"),)),
        Answer(calls=(("weather", {"city": "Oslo"}),)),
        Answer("overloaded", status=529),
        Answer(data={"city": "Oslo", "sky": "rain"}),
    )
    async with talking(connect, *answers) as (provider, model):
        clock = _Hurried()
        agent = LLMAgent(
            name="w",
            description="Tells the weather",
            instructions="Tell.",
            model=model,
            output=Place,
            tools=[weather],
            clock=clock,
        )
        context = Context.for_test("Oslo?", agent="w")
        output = await agent.run(context.handoff, context)

    assert output == {"city": "Oslo", "sky": "rain"}
    assert clock.slept[0] == 3.0
    assert 0.5 <= clock.slept[1] <= 1.0
    assert len(provider.calls) == 4
    assert context.usage.calls == 2


@pytest.mark.real_model
@pytest.mark.parametrize("provider", ["openai", "openai-responses", "anthropic"])
async def test_a_real_model_uses_a_tool_and_answers_in_the_type(provider: str) -> None:
    key = f"{provider.partition('-')[0].upper()}_API_KEY"
    if not os.environ.get(key):
        pytest.skip(f"{key} is not set")

    class Stock(BaseModel):
        item: str
        left: int

    @tool
    async def stock(item: str) -> int:
        """How many of an item are left in the store."""
        return 17

    agent = LLMAgent(
        name="stock",
        description="Tells the stock",
        instructions="Answer from the tool.",
        output=Stock,
        model=provider,
        tools=[stock],
    )
    context = Context.for_test("How many anvils are left?", agent="stock", intent="Tell how many anvils are left")
    output = await agent.run(context.handoff, context)
    await agent.model.close()

    assert Stock.model_validate(output).left == 17
    assert context.usage.tokens > 0
