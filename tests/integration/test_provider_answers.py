"""All parts of a provider's answer are read: text, calls, data and usage. Requests have the provider's format."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.adapters import SCHEMA, WEATHER_TOOL, Connect, anthropic, asking, every, openai, responses, talking
from support.providers import Answer, stream_of

from pointsman.errors import ModelError
from pointsman.ports.model import ToolCall, Turn

CALLED = (
    Turn("user", "hello"),
    Turn("assistant", "Let me look.", (ToolCall("c1", "weather", '{"city": "Oslo"}'), ToolCall("c2", "weather", "[]"))),
    Turn("tool", "rain", call_id="c1"),
    Turn("tool", "bad arguments", call_id="c2", is_error=True),
    Turn("assistant", "", (ToolCall("c3", "weather", "{}"),)),
    Turn("tool", "?", call_id="c3"),
)
OSLO = '{"city": "Oslo"}'
SENT: dict[Connect, dict[str, Any]] = {
    openai: {
        "model": "gpt-4.1", "temperature": 0.0, "max_completion_tokens": 50,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": "Let me look.", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": OSLO}},
                {"id": "c2", "type": "function", "function": {"name": "weather", "arguments": "[]"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "rain"},
            {"role": "tool", "tool_call_id": "c2", "content": "bad arguments"},
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "c3", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c3", "content": "?"},
        ],
        "tools": [{"type": "function", "function": {
            "name": "weather", "description": "The weather of a city", "parameters": SCHEMA}}],
        "response_format": {
            "type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": False}},
    },
    responses: {
        "model": "gpt-4.1", "temperature": 0.0, "max_output_tokens": 50, "store": False, "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": "Let me look."},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": OSLO},
            {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "[]"},
            {"type": "function_call_output", "call_id": "c1", "output": "rain"},
            {"type": "function_call_output", "call_id": "c2", "output": "bad arguments"},
            {"type": "function_call", "call_id": "c3", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c3", "output": "?"},
        ],
        "tools": [{"type": "function", "name": "weather", "description": "The weather of a city",
                   "parameters": SCHEMA, "strict": False}],
        "text": {"format": {"type": "json_schema", "name": "place", "schema": SCHEMA, "strict": False}},
    },
    anthropic: {
        "model": "claude-haiku-4-5", "temperature": 0.0, "max_tokens": 50, "system": "Be brief.",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hello"}]},
            {"role": "assistant", "content": [
                {"type": "text", "text": "Let me look."},
                {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Oslo"}},
                {"type": "tool_use", "id": "c2", "name": "weather", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "rain", "is_error": False},
                {"type": "tool_result", "tool_use_id": "c2", "content": "bad arguments", "is_error": True}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c3", "name": "weather", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c3", "content": "?", "is_error": False}]},
        ],
        "tools": [
            {"name": "weather", "description": "The weather of a city", "input_schema": SCHEMA},
            {"name": "place", "description": "Give the final answer.", "input_schema": SCHEMA},
        ],
        "tool_choice": {"type": "any"},
    },
}  # fmt: skip


@every
async def test_a_request_is_written_whole_in_the_provider_s_own_words(connect: Connect) -> None:
    async with talking(connect, Answer("ok")) as (provider, model):
        await model.complete(
            asking(
                turns=CALLED,
                tools=(WEATHER_TOOL,),
                output_schema=SCHEMA,
                output_name="place",
                max_tokens=50,
                temperature=0.0,
            )
        )

    assert provider.calls[0].body == SENT[connect]


@every
async def test_parallel_tool_calls_and_their_results_keep_their_pairs(connect: Connect) -> None:
    wanted = Answer("Let me look.", calls=(("weather", {"city": "Oslo"}), ("weather", {"city": "Rome"})))
    async with talking(connect, wanted, Answer("Rain and sun.")) as (provider, model):
        first = await model.complete(asking(tools=(WEATHER_TOOL,)))
        told = tuple(Turn("tool", f"result of {call.arguments}", call_id=call.id) for call in first.calls)
        asked = Turn("assistant", first.text, first.calls)
        second = await model.complete(asking(turns=(Turn("user", "hello"), asked, *told), tools=(WEATHER_TOOL,)))

    assert first.finish == "tool_calls"
    assert [(call.name, call.arguments) for call in first.calls] == [
        ("weather", '{"city": "Oslo"}'),
        ("weather", '{"city": "Rome"}'),
    ]
    assert second.text == "Rain and sun."
    assert "Oslo" in provider.calls[1].prompt


@every
async def test_fake_provider_refuses_a_result_without_its_call(
    connect: Connect,
) -> None:
    turns = (Turn("user", "hello"), Turn("tool", "42", call_id="call_9"))
    async with talking(connect, Answer("never said")) as (_, model):
        with pytest.raises(ModelError, match="has no call"):
            await model.complete(asking(turns=turns))


@every
async def test_arguments_that_are_not_json_do_not_break_the_history(connect: Connect) -> None:
    call = ToolCall("call_0", "weather", "{city: Oslo")
    turns = (
        Turn("user", "hello"),
        Turn("assistant", "", (call,)),
        Turn("tool", "bad arguments", call_id="call_0", is_error=True),
    )
    async with talking(connect, Answer("sorry")) as (_, model):
        reply = await model.complete(asking(turns=turns, tools=(WEATHER_TOOL,)))

    assert reply.text == "sorry"


async def test_tokens_that_anthropic_s_cache_gave_or_took_are_input() -> None:
    usage = {"input_tokens": 3, "output_tokens": 2, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 40}
    said = {"id": "m", "type": "message", "role": "assistant", "model": "claude-haiku-4-5", "stop_reason": "end_turn",
            "content": [{"type": "text", "text": "hi"}], "usage": usage}  # fmt: skip
    events = stream_of("/v1/messages", said, None)
    async with talking(anthropic, Answer(body=json.dumps(said).encode()), Answer(body=events)) as (_, model):
        replies = [await model.complete(asking()), await model.complete(asking(on_text=lambda _: None))]

    assert [(reply.usage.input_tokens, reply.usage.output_tokens) for reply in replies] == [(143, 2)] * 2
