"""A streamed answer arrives in pieces, and ends or fails like an answer that is not streamed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.adapters import WEATHER_TOOL, Connect, anthropic, asking, every, openai, responses, talking
from support.contexts import recorded
from support.providers import Answer

from pointsman.authoring.context import Context
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.authoring.tools import tool
from pointsman.errors import ModelError
from pointsman.llm.json_extraction import parse_strict_json
from pointsman_schemas.events import Usage
from pointsman_schemas.role_io import Synthesis


@every
async def test_streamed_answer_arrives_in_pieces_and_equals_the_whole_one(connect: Connect) -> None:
    said: list[str] = []
    wanted = Answer("Let me look at the sky.", calls=(("weather", {"city": "Oslo"}), ("weather", {"city": "Rome"})))
    async with talking(connect, wanted, wanted) as (provider, model):
        whole = await model.complete(asking(tools=(WEATHER_TOOL,)))
        streamed = await model.complete(asking(tools=(WEATHER_TOOL,), on_text=said.append))

    assert len(said) > 2
    assert "".join(said) == "Let me look at the sky."
    assert [(call.id, call.name) for call in streamed.calls] == [(call.id, call.name) for call in whole.calls]
    assert [parse_strict_json(call.arguments) for call in streamed.calls] == [{"city": "Oslo"}, {"city": "Rome"}]
    assert (streamed.text, streamed.finish, streamed.usage, streamed.model) == (
        whole.text, whole.finish, whole.usage, whole.model,
    )  # fmt: skip
    assert [call.body.get("stream", False) for call in provider.calls] == [False, True]


@every
async def test_structured_answer_is_streamed_as_the_text_of_its_answer(connect: Connect) -> None:
    text = 'It is "mild",\nand 12 °C. 😀'
    wanted = Answer(data={"answer": text})
    first = Answer(text="Let me look.", calls=(("weather", {"city": "Oslo"}),))

    @tool
    async def weather(city: str) -> str:
        """The weather of a city."""
        return "mild"

    async with talking(connect, first, wanted) as (_, model):
        agent = LLMAgent(
            name="a", description="d", instructions="i", model=model, output=Synthesis, tools=[weather], stream=True
        )
        context = Context.for_test("hello")
        answer = await agent.run(context.handoff, context)

    calls: dict[str, list[str]] = {}
    for piece in recorded(context).deltas:
        calls.setdefault(piece.call, []).append(piece.text)
    *_, pieces = calls.values()
    assert answer == {"answer": text}
    assert "".join(pieces) == text
    assert len(pieces) > 3


@every
async def test_truncated_stream_is_a_failed_call(connect: Connect) -> None:
    said: list[str] = []
    async with talking(connect, Answer("It was a dark and stormy night", drop=700)) as (_, model):
        with pytest.raises(ModelError, match="no answer") as caught:
            await model.complete(asking(on_text=said.append))

    assert caught.value.retryable
    assert caught.value.usage is not None
    assert caught.value.usage.calls == 1


PINGS: dict[Connect, bytes] = {
    openai: b": keep-alive\n\n",
    responses: b": keep-alive\n\n",
    anthropic: b'event: ping\ndata: {"type": "ping"}\n\n',
}


@every
async def test_keep_alives_hold_a_call_no_longer_than_its_timeout(connect: Connect) -> None:
    async with talking(connect, Answer(alive=PINGS[connect])) as (_, model):
        model._timeout = 0.5  # type: ignore[attr-defined]
        with pytest.raises(ModelError, match="timed out") as caught:
            await model.complete(asking(on_text=lambda _: None))

    assert (caught.value.retryable, caught.value.usage) == (True, Usage(calls=1))


@every
@pytest.mark.parametrize("broken", ["after a whole call", "after keep-alives"])
async def test_tool_call_of_a_broken_stream_is_not_run_and_the_stream_is_retried(
    connect: Connect, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pointsman.authoring.model_calls._backoff", lambda _: 0.0)
    ran: list[str] = []

    @tool
    async def weather(city: str) -> str:
        """The weather of a city."""
        ran.append(city)
        return "rain"

    wanted = Answer(calls=(("weather", {"city": "Oslo"}),))
    whole = replace(wanted, unended=True) if broken == "after a whole call" else Answer(body=PINGS[connect] * 3)
    async with talking(connect, whole, wanted, Answer("Rain.")) as (provider, model):
        agent = LLMAgent(name="a", description="d", instructions="i", model=model, tools=[weather], stream=True)
        context = Context.for_test("hello")
        answer = await agent.run(context.handoff, context)

    assert (answer, ran, len(provider.calls)) == ("Rain.", ["Oslo"], 3)
