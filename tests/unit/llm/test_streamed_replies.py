"""Adapters parse streamed replies and broken streams."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from support.adapters import KEY, WEATHER_TOOL, Connect, anthropic, asking, every, openai, responses, talking
from support.providers import Answer

from pointsman.errors import ModelError
from pointsman.llm.foreign_json import Field
from pointsman.llm.openai import CHAT_COMPLETIONS, OpenAIModel
from pointsman.ports.model import ModelReply, ToolCall
from pointsman_schemas.events import Usage

TOOLS = (WEATHER_TOOL, WEATHER_TOOL.__class__("sun", "The sun over a city", WEATHER_TOOL.parameters))


def delta(finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"id": "c1", "choices": [{"index": 0, "delta": more, "finish_reason": finish}]}


def part(index: Any, name: str | None, arguments: Any, id: Any = None, **more: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    named = {"index": index, "id": id, "function": {key: value for key, value in function.items() if value is not None}}
    return {**{key: value for key, value in named.items() if value is not None}, **more}


def calling(*parts: dict[str, Any]) -> tuple[ToolCall, ...]:
    """Return the calls of a streamed answer with one of these pieces in each chunk."""
    return streamed(*(delta(tool_calls=[each]) for each in parts), delta("tool_calls")).calls


def streamed(*chunks: dict[str, Any]) -> ModelReply:
    stream = CHAT_COMPLETIONS.stream(asking(tools=TOOLS))
    for chunk in chunks:
        stream.add(Field(chunk))
    return OpenAIModel("m", api_key=KEY).reply(stream.whole(), asking(tools=TOOLS))


def test_chunks_make_the_completion_they_are_of() -> None:
    stream = CHAT_COMPLETIONS.stream(asking(tools=TOOLS))
    chunks = [
        {"id": "c1", "model": "m-1", "choices": [], "usage": None},
        delta(role="assistant", content=""),
        delta(content="Let me "),
        delta(content="look.", tool_calls=[part(1, "sun", "", "t2")]),
        delta(tool_calls=[part(0, "wea", '{"city":', "t1"), part(1, None, "{}")]),
        delta(tool_calls=[part(0, "ther", ' "Oslo"}'), {"index": 1}]),
        delta("tool_calls"),
        {**delta(refusal="n"), "model": ""},
        delta(refusal="o"),
        {"choices": [{"index": 0, "delta": None, "finish_reason": None}]},
        {"id": "c1", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
        {"id": "", "model": None, "choices": None, "usage": None},
    ]

    told = [stream.add(Field(chunk)) for chunk in chunks]

    assert told == ["", "", "Let me ", "look.", *[""] * 8]
    assert stream.whole().value == {
        "id": "c1", "model": "m-1", "usage": {"prompt_tokens": 3, "completion_tokens": 2},
        "choices": [{"index": 0, "finish_reason": "tool_calls", "error": None, "message": {
            "role": "assistant", "content": "Let me look.", "refusal": "no", "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}},
                {"id": "t2", "type": "function", "function": {"name": "sun", "arguments": "{}"}},
            ]}}],
    }  # fmt: skip
    assert CHAT_COMPLETIONS.stream(asking()).whole().get("choices").value == []


OSLO, ROME = '{"city": "Oslo"}', '{"city": "Rome"}'
WEATHER_IN_OSLO, WEATHER_IN_ROME = ToolCall("t1", "weather", OSLO), ToolCall("t2", "weather", ROME)


@pytest.mark.parametrize(
    ("parts", "calls"),
    [
        # each piece has the whole name
        ([part(0, "weather", '{"city":', "t1"), part(0, "weather", ' "Oslo"}', "t1")], (WEATHER_IN_OSLO,)),
        ([part(0, "weather", '{"city":', "t1"), part(0, "weather", ' "Oslo"}')], (WEATHER_IN_OSLO,)),
        ([part(0, "weather", OSLO, "t1"), part(0, "weather", "", "t1")], (WEATHER_IN_OSLO,)),
        # each piece has a longer part of the name
        ([part(0, "wea", None, "t1"), part(0, "weather", OSLO, "t1")], (WEATHER_IN_OSLO,)),
        # no index
        ([part(None, "weather", OSLO, "t1"), part(None, "weather", ROME, "t2")], (WEATHER_IN_OSLO, WEATHER_IN_ROME)),
        ([part(None, "weather", '{"city":', "t1"), part(None, None, ' "Oslo"}')], (WEATHER_IN_OSLO,)),
        # every index 0
        ([part(0, "weather", OSLO, "t1"), part(0, "weather", ROME, "t2")], (WEATHER_IN_OSLO, WEATHER_IN_ROME)),
        ([part(0, "weather", OSLO), part(0, "sun", ROME)],
         (ToolCall("", "weather", OSLO), ToolCall("", "sun", ROME))),
        ([part(0, "weather", OSLO), part(0, "weather", ROME)],
         (ToolCall("", "weather", OSLO), ToolCall("", "weather", ROME))),
        ([part(0, "weather", ""), part(0, "sun", "")], (ToolCall("", "weather", "{}"), ToolCall("", "sun", "{}"))),
        # the index is a text, or starts with another number
        ([part("1", "weather", OSLO, "t1"), part("2", "weather", ROME, "t2")], (WEATHER_IN_OSLO, WEATHER_IN_ROME)),
        ([part(1.0, "weather", '{"city":', "t1"), part(1, None, ' "Oslo"}')], (WEATHER_IN_OSLO,)),
        # no type, another type, ids that are numbers or empty
        ([part(0, "weather", OSLO, 7)], (ToolCall("7", "weather", OSLO),)),
        ([part(0, "weather", OSLO, "")], (ToolCall("", "weather", OSLO),)),
        ([part(0, "weather", OSLO, "t1", type="function")], (WEATHER_IN_OSLO,)),
        # arguments as an object, after an empty object, twice, or longer in each piece
        ([part(0, "weather", {"city": "Oslo"}, "t1")], (WEATHER_IN_OSLO,)),
        ([part(0, "weather", "{}", "t1"), part(0, None, '{"city":'), part(0, None, ' "Oslo"}')], (WEATHER_IN_OSLO,)),
        ([part(0, "weather", OSLO, "t1"), part(0, None, OSLO, "t1")], (WEATHER_IN_OSLO,)),
        ([part(0, "weather", '{"city"', "t1"), part(0, None, OSLO)], (WEATHER_IN_OSLO,)),
        # fields that are not nested in `function`
        ([{"index": 0, "id": "t1", "name": "weather", "arguments": OSLO}], (WEATHER_IN_OSLO,)),
    ],
)  # fmt: skip
def test_pieces_of_calls_are_put_together_as_they_are_meant(
    parts: list[dict[str, Any]], calls: tuple[ToolCall, ...]
) -> None:
    assert calling(*parts) == calls


def test_unknown_tool_name_is_passed_on_as_written() -> None:
    assert [call.name for call in calling(part(0, "look", "{}"))] == ["look"]
    assert [call.name for call in calling(part(0, "lo", ""), part(0, "ok", "{}"))] == ["look"]
    assert [call.name for call in calling(part(0, "look", ""), part(0, "look", "{}"))] == ["look"]


def test_opaque_fields_of_a_stream_equal_those_of_the_whole_turn() -> None:
    thought = {"google": {"thought_signature": "c2lnbmF0dXJlLW9mLXRoZS10aG91Z2h0"}}
    reply = streamed(
        delta(reasoning_content="hm, "),
        delta(reasoning_content="so"),
        delta(reasoning_details=[{"type": "reasoning.text", "index": 0, "text": "hm, "}]),
        delta(reasoning_details=[{"type": "reasoning.text", "index": 0, "text": "so", "signature": "s"}]),
        delta(tool_calls=[part(0, "weather", OSLO, "t1", extra_content=thought)]),
        delta(tool_calls=[part(0, None, "", extra_content=thought)]),
        delta("tool_calls"),
    )

    assert reply.provider_state is not None
    assert {key: value for key, value in reply.provider_state.items() if key != "origin"} == {
        "message": {
            "reasoning_content": "hm, so",
            "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "hm, so", "signature": "s"}],
        },
        "calls": [{"extra_content": thought}],
    }


def events(*data: Any) -> bytes:
    return b"".join(
        b"data: " + (each if isinstance(each, bytes) else json.dumps(each).encode()) + b"\n\n" for each in data
    )


USED = {"input_tokens": 3, "output_tokens": 1}
STARTED = {"type": "message_start", "message": {"id": "a1", "model": "m", "content": [], "usage": USED}}
SO: dict[Connect, Any] = {
    openai: {**delta(content="so"), "usage": {"prompt_tokens": 3, "completion_tokens": 1}},
    responses: {"type": "response.output_text.delta", "delta": "so", "output_index": 0},
    anthropic: {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "so"}},
}
TOLD: dict[Connect, Usage] = {
    openai: Usage(calls=1, input_tokens=3, output_tokens=1),
    responses: Usage(calls=1),
    anthropic: Usage(calls=1, input_tokens=3, output_tokens=1),
}
FAILED: dict[Connect, Callable[[str], Any]] = {
    openai: lambda words: {"error": {"message": words, "type": "overloaded_error"}},
    responses: lambda words: {"type": "error", "code": "overloaded_error", "message": words},
    anthropic: lambda words: {"type": "error", "error": {"type": "overloaded_error", "message": words}},
}


@every
@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (lambda connect: FAILED[connect](f"it was {KEY}"), "answered 529: it was [hidden] (overloaded_error)"),
        (lambda _: b"{not json", "event 3 is not JSON"),
        (lambda _: b"[1, 2]", "event 3 is a list; expected an object"),
        (lambda _: b'"x"', "event 3 is text; expected an object"),
        (lambda _: None, "missing"),
    ],
)
async def test_broken_stream_counts_its_reported_usage(
    connect: Connect, broken: Callable[[Connect], Any], said: str
) -> None:
    heard: list[str] = []
    first = STARTED if connect is anthropic else {"object": "x", "type": "response.created", "response": {}}
    last = broken(connect)
    body = events(first, SO[connect], *(() if last is None else (last,)))
    async with talking(connect, Answer(body=body)) as (_, model):
        with pytest.raises(ModelError, match=re.escape(said)) as caught:
            await model.complete(asking(on_text=heard.append))

    assert heard == ["so"]
    assert (caught.value.retryable, caught.value.usage) == (True, TOLD[connect])


@every
async def test_non_streaming_server_and_streaming_only_server_both_work(
    connect: Connect,
) -> None:
    heard: list[str] = []
    async with talking(connect, Answer("Good day.")) as (provider, model):
        await model.complete(asking())
    async with talking(connect, Answer("Good day.")) as (provider, model):
        whole = Answer(body=None, text="Good day.")
        provider.queue.clear()
        provider.queue.append(lambda call: (call.body.pop("stream"), whole)[1])
        reply = await model.complete(asking(on_text=heard.append))

    assert (reply.text, heard) == ("Good day.", ["Good day."])


async def test_stream_with_the_text_in_its_last_event_alone_shows_the_text() -> None:
    heard: list[str] = []
    item = {"type": "message", "content": [{"type": "output_text", "text": "Good day."}]}
    last = {"type": "response.completed", "response": {"id": "r", "status": "completed", "output": [item]}}
    async with talking(responses, Answer(body=events(last))) as (_, model):
        await model.complete(asking(on_text=heard.append))

    assert heard == ["Good day."]


@pytest.mark.parametrize("end", ["completed", "incomplete", "failed"])
def test_streamed_response_equals_its_last_event(end: str) -> None:
    from pointsman.llm.openai_responses import RESPONSES

    stream = RESPONSES.stream(asking())
    told = [
        stream.add(Field({"type": "response.created", "response": {"id": "resp_0", "status": "in_progress"}})),
        stream.add(Field({"type": "response.output_text.delta", "delta": "so", "output_index": 0})),
        stream.add(Field({"type": f"response.{end}", "response": {"id": "resp_1", "status": end, "output": []}})),
    ]

    assert told == ["", "so", ""]
    assert stream.whole().get("id").value == "resp_1"
    assert stream.whole().get("output").value == [{"type": "message", "content": "so"}], (
        "output must be built from the pieces if a server omits it at the end"
    )


def test_a_streamed_response_without_an_end_is_not_accepted() -> None:
    from pointsman.llm.openai_responses import RESPONSES, OpenAIResponsesModel

    stream = RESPONSES.stream(asking())
    stream.add(Field(SO[responses]))

    with pytest.raises(ModelError, match="output is missing"):
        OpenAIResponsesModel("m", api_key=KEY).reply(stream.whole(), asking())
