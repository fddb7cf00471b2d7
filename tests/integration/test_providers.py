"""The adapters with the real SDKs over real HTTP, against a provider of our own on loopback."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, TypeAlias

import anthropic as anthropic_sdk  # imported here, as it takes seconds: not within the first test's time
import openai as openai_sdk
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import BaseModel
from support.providers import Answer, Call, FakeProvider

from pointsman.context import Context
from pointsman.errors import ConfigurationError, ModelError, Refused, TaskError
from pointsman.llm.anthropic import AnthropicModel
from pointsman.llm.openai import OpenAIModel
from pointsman.llm.openai_responses import OpenAIResponsesModel
from pointsman.llm.reading import strict_json
from pointsman.llm.selection import DEFAULT_MODELS, model_from
from pointsman.llm_agent import LLMAgent
from pointsman.ports import Model, ModelRequest, ToolCall, ToolSpec, Turn
from pointsman.telemetry import traces
from pointsman.testing.clock import VirtualClock
from pointsman.tools import tool
from pointsman_schemas.events import Budget, Usage

SDKS = (anthropic_sdk, openai_sdk)
KEY = "sk-test-0123456789abcdef"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
WEATHER = ToolSpec("weather", "The weather of a city", SCHEMA)

Connect: TypeAlias = Callable[[FakeProvider], Model]


def openai(provider: FakeProvider) -> Model:
    return OpenAIModel("gpt-4.1", api_key=KEY, base_url=provider.openai_url, timeout=5)


def anthropic(provider: FakeProvider) -> Model:
    return AnthropicModel("claude-haiku-4-5", api_key=KEY, base_url=provider.url, timeout=5)


def responses(provider: FakeProvider) -> Model:
    return OpenAIResponsesModel("gpt-4.1", api_key=KEY, base_url=provider.openai_url, timeout=5)


IDS: dict[Connect, str] = {openai: "chatcmpl-test", responses: "resp_test", anthropic: "msg_test"}
both = pytest.mark.parametrize("connect", [openai, responses, anthropic])


@asynccontextmanager
async def talking(connect: Connect, *answers: Answer) -> AsyncIterator[tuple[FakeProvider, Model]]:
    async with FakeProvider.saying(*answers) as provider:
        model = connect(provider)
        try:
            yield provider, model
        finally:
            await model.close()


def asking(text: str = "hello", **more: Any) -> ModelRequest:
    turns = more.pop("turns", (Turn("user", text),))
    return ModelRequest(model="", instructions="Be brief.", turns=turns, **more)


@both
async def test_a_text_comes_back_with_its_usage_and_its_price(connect: Connect) -> None:
    async with talking(connect, Answer("Good day.", usage=(1000, 100))) as (provider, model):
        reply = await model.complete(asking(temperature=0.0, max_tokens=50))

    price = 0.0028 if model.provider == "openai" else 0.0015
    assert (reply.text, reply.finish, reply.calls, reply.model) == ("Good day.", "stop", (), model.name)
    assert reply.usage.model_copy(update={"cost": 0.0}) == Usage(calls=1, input_tokens=1000, output_tokens=100)
    assert reply.usage.cost == pytest.approx(price)
    sent = provider.calls[0].body
    assert (sent["model"], sent["temperature"]) == (model.name, 0.0)
    assert [sent[name] for name in LIMITS if name in sent] == [50]


@tool
async def weather_of(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"


@both
@pytest.mark.parametrize("factor", [1.0, 1.5], ids=["right", "short"])
async def test_a_call_uses_more_than_is_left_only_by_what_the_estimate_of_its_input_is_short(
    connect: Connect, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget, usual, estimate, taken = 4_000, 1_000, 500, int(500 * factor)
    allowed: list[int] = []
    monkeypatch.setattr("pointsman.model_calls.estimated_input", lambda _: estimate)

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
        context = Context.for_test("go on")
        context.handoff = context.handoff.model_copy(update={"budget": Budget(tokens=budget)})
        with pytest.raises(TaskError, match="all that the allowance left") as raised:
            await agent.run(context.handoff, context)
        await model.close()

    assert raised.value.kind == "limit"
    assert allowed == [usual, usual, budget - 2 * (400 + usual) - estimate]
    assert context.usage.tokens == budget + taken - estimate


@both
async def test_parallel_tool_calls_and_their_results_keep_their_pairs(connect: Connect) -> None:
    wanted = Answer("Let me look.", calls=(("weather", {"city": "Oslo"}), ("weather", {"city": "Rome"})))
    async with talking(connect, wanted, Answer("Rain and sun.")) as (provider, model):
        first = await model.complete(asking(tools=(WEATHER,)))
        told = tuple(Turn("tool", f"result of {call.arguments}", call_id=call.id) for call in first.calls)
        asked = Turn("assistant", first.text, first.calls)
        second = await model.complete(asking(turns=(Turn("user", "hello"), asked, *told), tools=(WEATHER,)))

    assert first.finish == "tool_calls"
    assert [(call.name, call.arguments) for call in first.calls] == [
        ("weather", '{"city": "Oslo"}'),
        ("weather", '{"city": "Rome"}'),
    ]
    assert second.text == "Rain and sun."
    assert "Oslo" in provider.calls[1].prompt


@both
async def test_a_result_without_its_call_is_refused_by_the_provider_so_the_pairing_is_really_checked(
    connect: Connect,
) -> None:
    turns = (Turn("user", "hello"), Turn("tool", "42", call_id="call_9"))
    async with talking(connect, Answer("never said")) as (_, model):
        with pytest.raises(ModelError, match="has no call"):
            await model.complete(asking(turns=turns))


@both
async def test_structured_output_is_asked_for_in_the_provider_s_own_way(connect: Connect) -> None:
    async with talking(connect, Answer(data={"city": "Oslo"})) as (provider, model):
        reply = await model.complete(asking(output_schema=SCHEMA, output_name="place"))

    assert (reply.data, reply.finish, reply.calls) == ({"city": "Oslo"}, "stop", ())
    sent = provider.calls[0].body
    if isinstance(model, OpenAIResponsesModel):
        asked = {"type": "json_schema", "name": "place", "schema": SCHEMA, "strict": False}
        assert (sent["text"]["format"], sent["store"]) == (asked, False)
    elif model.provider == "openai":
        assert sent["response_format"]["json_schema"] == {"name": "place", "schema": SCHEMA, "strict": False}
    else:
        assert sent["tool_choice"] == {"type": "tool", "name": "place"}


@both
async def test_tools_may_be_used_before_the_structured_answer(connect: Connect) -> None:
    wanted = Answer(calls=(("weather", {"city": "Oslo"}),))
    async with talking(connect, wanted, Answer(data={"city": "Oslo"})) as (provider, model):
        first = await model.complete(asking(output_schema=SCHEMA, output_name="place", tools=(WEATHER,)))
        turns = (
            Turn("user", "hello"),
            Turn("assistant", "", first.calls),
            Turn("tool", "rain", call_id=first.calls[0].id),
        )
        second = await model.complete(asking(output_schema=SCHEMA, output_name="place", tools=(WEATHER,), turns=turns))

    assert (first.finish, first.data) == ("tool_calls", None)
    assert second.data == {"city": "Oslo"}
    assert "weather" in provider.calls[0].tools


@both
@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
async def test_what_may_pass_is_retryable_and_one_call_is_one_call(connect: Connect, status: int) -> None:
    async with talking(connect, Answer("busy", status=status)) as (provider, model):
        with pytest.raises(ModelError) as caught:
            await model.complete(asking())

    assert (caught.value.retryable, caught.value.status) == (True, status)
    assert str(status) in str(caught.value)
    assert len(provider.calls) == 1


@both
@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
async def test_what_was_turned_down_is_terminal_and_shows_no_key(connect: Connect, status: int) -> None:
    async with talking(connect, Answer(f"Incorrect API key provided: {KEY}", status=status)) as (provider, model):
        with pytest.raises(ModelError) as caught:
            await model.complete(asking())

    assert (caught.value.retryable, caught.value.status) == (False, status)
    assert str(status) in str(caught.value)
    assert "0123456789" not in str(caught.value)
    assert len(provider.calls) == 1


@both
@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (("retry-after", "7"), 7.0),
        (("retry-after-ms", "1500"), 1.5),
        (("retry-after", format_datetime(datetime.now(UTC) - timedelta(hours=1))), 0.0),
        (("retry-after", "soon"), None),
        (("retry-after", "nan"), None),
        (("retry-after", "1e12"), 86_400.0),
    ],
)
async def test_retry_after_is_read_whatever_its_form(
    connect: Connect, header: tuple[str, str], seconds: float | None
) -> None:
    async with talking(connect, Answer("slow down", status=429, headers=(header,))) as (_, model):
        with pytest.raises(ModelError) as caught:
            await model.complete(asking())

    assert caught.value.retry_after == seconds


@both
@pytest.mark.parametrize("broken", [Answer("half an answer", drop=20), Answer("no byte of it", drop=0)])
async def test_a_dropped_connection_is_retryable(connect: Connect, broken: Answer) -> None:
    async with talking(connect, broken) as (_, model):
        with pytest.raises(ModelError) as caught:
            await model.complete(asking())

    assert caught.value.retryable


@both
async def test_an_answer_that_never_comes_ends_at_the_timeout(connect: Connect) -> None:
    async with FakeProvider.saying(Answer("late", delay=30)) as provider:
        model: Model = connect(provider)
        model._timeout = 0.2  # type: ignore[attr-defined]
        with pytest.raises(ModelError, match="timed out") as caught:
            await model.complete(asking())
        await model.close()

    assert caught.value.retryable


@both
@pytest.mark.parametrize("body", [b"<html>proxy error</html>", b"{}", b'{"choices": []}', b"null"])
async def test_an_answer_of_another_kind_is_an_error_and_not_an_empty_text(connect: Connect, body: bytes) -> None:
    async with talking(connect, Answer(body=body)) as (_, model):
        with pytest.raises(ModelError):
            await model.complete(asking())


async def test_an_error_that_a_gateway_wraps_in_a_200_keeps_its_class() -> None:
    body = b'{"error": {"code": 402, "message": "out of credit"}}'
    async with talking(openai, Answer(body=body)) as (_, model):
        with pytest.raises(ModelError, match="402: out of credit") as caught:
            await model.complete(asking())

    assert not caught.value.retryable


async def test_a_used_up_quota_is_a_429_that_is_not_tried_again() -> None:
    body = b'{"error": {"code": "insufficient_quota", "message": "You exceeded your current quota"}}'
    async with talking(openai, Answer(status=429, body=body)) as (_, model):
        with pytest.raises(ModelError, match="exceeded your current quota") as caught:
            await model.complete(asking())

    assert not caught.value.retryable


@both
@pytest.mark.parametrize(
    ("answer", "finish", "text"),
    [
        (Answer(refusal="I will not."), "refusal", "I will not."),
        (Answer(finish="content_filter"), "refusal", ""),
        (Answer("It was a dark and", finish="length"), "length", "It was a dark and"),
    ],
)
async def test_refusals_and_cut_answers_say_so(connect: Connect, answer: Answer, finish: str, text: str) -> None:
    async with talking(connect, answer) as (_, model):
        reply = await model.complete(asking(output_schema=SCHEMA))

    assert (reply.finish, reply.text, reply.data) == (finish, text, None)
    assert reply.usage.calls == 1


@both
async def test_a_reply_without_usage_still_counts_as_a_call(connect: Connect) -> None:
    async with talking(connect, Answer("hi", usage=None)) as (_, model):
        reply = await model.complete(asking())

    assert reply.usage == Usage(calls=1)


@both
async def test_arguments_that_are_not_json_do_not_break_the_history(connect: Connect) -> None:
    call = ToolCall("call_0", "weather", "{city: Oslo")
    turns = (
        Turn("user", "hello"),
        Turn("assistant", "", (call,)),
        Turn("tool", "bad arguments", call_id="call_0", is_error=True),
    )
    async with talking(connect, Answer("sorry")) as (_, model):
        reply = await model.complete(asking(turns=turns, tools=(WEATHER,)))

    assert reply.text == "sorry"


# Streams


@both
async def test_a_streamed_answer_is_told_piece_by_piece_and_is_the_same_in_the_end(connect: Connect) -> None:
    said: list[str] = []
    wanted = Answer("Let me look at the sky.", calls=(("weather", {"city": "Oslo"}), ("weather", {"city": "Rome"})))
    async with talking(connect, wanted, wanted) as (provider, model):
        whole = await model.complete(asking(tools=(WEATHER,)))
        streamed = await model.complete(asking(tools=(WEATHER,), on_text=said.append))

    assert len(said) > 2
    assert "".join(said) == "Let me look at the sky."
    assert [(call.id, call.name) for call in streamed.calls] == [(call.id, call.name) for call in whole.calls]
    assert [strict_json(call.arguments) for call in streamed.calls] == [{"city": "Oslo"}, {"city": "Rome"}]
    assert (streamed.text, streamed.finish, streamed.usage, streamed.model) == (
        whole.text, whole.finish, whole.usage, whole.model,
    )  # fmt: skip
    assert [call.body.get("stream", False) for call in provider.calls] == [False, True]


@both
@pytest.mark.parametrize(
    "answer",
    [Answer(data={"city": "Oslo"}), Answer(refusal="I will not."), Answer("It was a dark and", finish="length"),
     Answer("hi", usage=None)],
    ids=["data", "refusal", "length", "no usage"],
)  # fmt: skip
async def test_a_streamed_answer_ends_as_a_whole_one_does(connect: Connect, answer: Answer) -> None:
    async with talking(connect, answer, answer) as (_, model):
        whole = await model.complete(asking(output_schema=SCHEMA))
        streamed = await model.complete(asking(output_schema=SCHEMA, on_text=lambda _: None))

    assert (streamed.text, streamed.data, streamed.finish) == (whole.text, whole.data, whole.finish)
    assert streamed.usage == whole.usage


ERRORS: dict[Connect, Callable[[str], dict[str, Any]]] = {
    openai: lambda code: {"error": {"message": "it broke", "type": code, "code": None}},
    responses: lambda code: {"type": "error", "code": code, "message": "it broke", "sequence_number": 9},
    anthropic: lambda code: {"type": "error", "error": {"type": code, "message": "it broke"}},
}


@both
@pytest.mark.parametrize(
    ("code", "status", "retryable"),
    [("rate_limit_exceeded", 429, True), ("overloaded_error", 529, True), ("server_error", 500, True),
     ("never_heard_of", 500, True), ("invalid_request_error", 400, False), ("insufficient_quota", 402, False)],
)  # fmt: skip
async def test_an_error_inside_of_a_stream_has_the_class_it_would_have_by_itself(
    connect: Connect, code: str, status: int, retryable: bool
) -> None:
    said: list[str] = []
    broken = Answer("It was a dark and stormy night", error=ERRORS[connect](code))
    async with talking(connect, broken) as (_, model):
        with pytest.raises(ModelError, match="it broke") as caught:
            await model.complete(asking(on_text=said.append))

    assert said  # half of it had been said, and is no answer
    assert (caught.value.status, caught.value.retryable) == (status, retryable)


@both
async def test_a_stream_that_is_cut_off_is_no_answer_and_counts_as_a_call(connect: Connect) -> None:
    said: list[str] = []
    async with talking(connect, Answer("It was a dark and stormy night", drop=700)) as (_, model):
        with pytest.raises(ModelError, match="no answer") as caught:
            await model.complete(asking(on_text=said.append))

    assert caught.value.retryable
    assert caught.value.usage is not None
    assert caught.value.usage.calls == 1


@both
async def test_a_stream_that_ends_without_saying_so_is_no_answer(connect: Connect) -> None:
    async with talking(connect, Answer(body=b"")) as (_, model):
        with pytest.raises(ModelError) as caught:
            await model.complete(asking(on_text=lambda _: None))

    assert caught.value.retryable


@both
@pytest.mark.parametrize("answer", [
    Answer("prompt is too long: 210000 tokens > 200000 maximum", status=400),
    Answer("This model's maximum context length is 128000 tokens.", status=400),
    Answer("too large", status=413),
], ids=["anthropic", "openai", "413"])  # fmt: skip
async def test_a_conversation_too_long_for_the_model_is_called_that_and_not_sent_again(
    connect: Connect, answer: Answer
) -> None:
    async with talking(connect, answer) as (provider, model):
        agent = LLMAgent(name="a", description="d", instructions="i", model=model)
        context = Context.for_test("hello")
        with pytest.raises(ModelError, match="too long for this model") as caught:
            await agent.run(context.handoff, context)

    assert (caught.value.kind, caught.value.retryable) == ("context_overflow", False)
    assert len(provider.calls) == 1


async def test_a_response_that_failed_has_its_error_s_class() -> None:
    body = b'{"id": "r", "object": "response", "status": "failed", "output": [], "error": ' \
           b'{"code": "rate_limit_exceeded", "message": "slow down"}}'  # fmt: skip
    async with talking(responses, Answer(body=body)) as (_, model):
        with pytest.raises(ModelError, match="slow down") as caught:
            await model.complete(asking())

    assert (caught.value.status, caught.value.retryable) == (429, True)


# Several models


async def test_the_next_model_of_a_chain_is_asked_when_the_one_before_it_fails() -> None:
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


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The spans of everybody, whoever opens them: the SDKs' own, too."""
    import opentelemetry.trace as otel

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(otel, "_TRACER_PROVIDER", provider)
    traces.use(provider)
    yield exporter
    traces.use(None)
    provider.shutdown()


@both
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


@both
async def test_an_agent_with_a_tool_and_an_output_type_gets_through_a_rate_limit(connect: Connect) -> None:
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


@both
async def test_a_refusal_is_one_call_and_ends_refused(connect: Connect) -> None:
    class Place(BaseModel):
        city: str

    async with talking(connect, Answer(refusal="Not that.")) as (provider, model):
        agent = LLMAgent(name="w", description="d", instructions="i", model=model, output=Place)
        context = Context.for_test("x", agent="w")
        with pytest.raises(Refused, match="Not that"):
            await agent.run(context.handoff, context)

    assert len(provider.calls) == 1


class _Hurried(VirtualClock):
    """Sleeps are noted and over at once."""

    def __init__(self) -> None:
        super().__init__(datetime.now(UTC))
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def test_the_model_follows_from_the_name_and_the_name_from_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "POINTSMAN_MODEL"):
        monkeypatch.delenv(name, raising=False)

    def chosen(spec: str | None = None) -> str:
        model = model_from(spec)
        return f"{model.provider}:{model.name}"

    assert chosen() == "offline:offline"
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
        model_from("openai:gpt-4.1")
    with pytest.raises(ConfigurationError, match="ANTHROPIC_API_KEY"):
        model_from("anthropic:claude-haiku-4-5")
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    assert chosen() == f"anthropic:{DEFAULT_MODELS['anthropic']}"
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert chosen() == f"openai:{DEFAULT_MODELS['openai']}"
    assert chosen("anthropic:claude-x") == "anthropic:claude-x"
    assert isinstance(model_from("openai-responses:gpt-5"), OpenAIResponsesModel)
    monkeypatch.setenv("POINTSMAN_MODEL", "offline")
    assert chosen() == "offline:offline"
    with pytest.raises(ConfigurationError, match="'mystery:9'; expected"):
        model_from("mystery:9")


def test_a_server_of_one_s_own_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")

    assert model_from("openai:local").name == "local"


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
