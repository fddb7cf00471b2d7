"""Adapters parse replies in the provider's format into text, calls, data, a finish reason or an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from support.adapters import KEY

from pointsman.errors import ModelError
from pointsman.llm.anthropic import AnthropicModel
from pointsman.llm.foreign_json import Field
from pointsman.llm.openai import OpenAIModel
from pointsman.llm.openai_responses import OpenAIResponsesModel
from pointsman.llm.prices import PRICES
from pointsman.ports.model import ModelReply, ModelRequest, ToolCall, Turn
from pointsman_schemas.events import Usage

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def asking(**more: Any) -> ModelRequest:
    return ModelRequest(model="", instructions="i", turns=(Turn("user", "hello"),), **more)


def chat(body: Mapping[str, Any], **more: Any) -> ModelReply:
    """Return a chat completion. `body` has fields of its only choice, such as `message`, and of the completion."""
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": None}, **body}
    whole = {"id": "c1", "model": "m-1", "choices": [choice], "usage": None, **body}
    return OpenAIModel("m", api_key=KEY).reply(Field(whole), asking(**more))


def responses(body: Mapping[str, Any], **more: Any) -> ModelReply:
    whole = {"id": "r1", "model": "m-1", "status": "completed", "output": [], **body}
    return OpenAIResponsesModel("m", api_key=KEY).reply(Field(whole), asking(**more))


def messages(body: Mapping[str, Any], **more: Any) -> ModelReply:
    whole = {"id": "a1", "model": "m-1", "stop_reason": "end_turn", "content": [], **body}
    return AnthropicModel("m", api_key=KEY).reply(Field(whole), asking(**more))


def called(**more: Any) -> dict[str, Any]:
    """Return a message of chat completions with one call."""
    function = {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    return {"role": "assistant", "content": None, "tool_calls": [{**function, **more}]}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


CALL = ToolCall("t1", "weather", '{"city": "Oslo"}')
BARE = ToolCall("t1", "weather", "{}")
CUSTOM = {"type": "custom", "function": None, "custom": {"name": "weather", "input": "x"}}


@pytest.mark.parametrize(
    ("body", "schema", "text", "calls", "data", "finish"),
    [
        ({"message": said('{"a": 1}')}, None, '{"a": 1}', (), None, "stop"),
        ({"message": said('{"a": 1}')}, SCHEMA, '{"a": 1}', (), {"a": 1}, "stop"),
        ({"message": said('{"a": 1}'), "finish_reason": "length"}, SCHEMA, '{"a": 1}', (), None, "length"),
        ({"message": said('{"a": 1}'), "finish_reason": "content_filter"}, SCHEMA, '{"a": 1}', (), None, "refusal"),
        ({"message": {**said(""), "refusal": "no"}}, SCHEMA, "no", (), None, "refusal"),
        ({"message": said("hi"), "finish_reason": "eos"}, None, "hi", (), None, "stop"),
        ({"message": called(), "finish_reason": "tool_calls"}, SCHEMA, "", (CALL,), None, "tool_calls"),
        ({"message": called(), "finish_reason": "stop"}, None, "", (CALL,), None, "tool_calls"),
        ({"message": called(), "finish_reason": "length"}, None, "", (), None, "length"),
        ({"message": called(function={"name": "weather", "arguments": ""})}, None, "", (BARE,), None, "tool_calls"),
        ({"message": called(**CUSTOM), "finish_reason": "tool_calls"}, None, "", (), None, "stop"),
    ],
)
def test_a_chat_completion(
    body: dict[str, Any], schema: Any, text: str, calls: tuple[ToolCall, ...], data: Any, finish: str
) -> None:
    reply = chat(body, output_schema=schema)

    assert (reply.text, reply.calls, reply.data, reply.finish) == (text, calls, data, finish)


def item(*content: dict[str, Any]) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": list(content)}


WROTE = item({"type": "output_text", "text": '{"a": '}, {"type": "output_text", "text": "1}"})
FUNCTION = {"type": "function_call", "id": "fc_9", "call_id": "t1", "name": "weather", "arguments": '{"city": "Oslo"}'}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": []}
FILTERED = {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}
LONG = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}


@pytest.mark.parametrize(
    ("body", "schema", "text", "calls", "data", "finish"),
    [
        ({"output": [REASONING, WROTE]}, None, '{"a": 1}', (), None, "stop"),
        ({"output": [WROTE]}, SCHEMA, '{"a": 1}', (), {"a": 1}, "stop"),
        ({"output": [WROTE], **LONG}, SCHEMA, '{"a": 1}', (), None, "length"),
        ({"output": [WROTE], **FILTERED}, SCHEMA, '{"a": 1}', (), None, "refusal"),
        ({"output": [WROTE, item({"type": "refusal", "refusal": "no"})]}, SCHEMA, "no", (), None, "refusal"),
        ({"output": [FUNCTION]}, SCHEMA, "", (CALL,), None, "tool_calls"),
        ({"output": [FUNCTION], **LONG}, None, "", (), None, "length"),
        ({"output": [{**FUNCTION, "arguments": ""}]}, None, "", (BARE,), None, "tool_calls"),
    ],
)
def test_a_response(
    body: dict[str, Any], schema: Any, text: str, calls: tuple[ToolCall, ...], data: Any, finish: str
) -> None:
    reply = responses(body, output_schema=schema)

    assert (reply.text, reply.calls, reply.data, reply.finish) == (text, calls, data, finish)


TEXT = {"type": "text", "text": '{"a": 1}'}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
USED = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}}
ANSWER = {"type": "tool_use", "id": "t2", "name": "answer", "input": {"a": 1}}


def refused(category: str | None) -> dict[str, Any]:
    return {"stop_reason": "refusal", "stop_details": {"type": "refusal", "explanation": category}}


@pytest.mark.parametrize(
    ("body", "schema", "text", "calls", "data", "finish"),
    [
        ({"content": [THOUGHT, TEXT]}, None, '{"a": 1}', (), None, "stop"),
        ({"content": [TEXT]}, SCHEMA, '{"a": 1}', (), {"a": 1}, "stop"),
        ({"content": [TEXT], "stop_reason": "stop_sequence"}, None, '{"a": 1}', (), None, "stop"),
        ({"content": [ANSWER], "stop_reason": "tool_use"}, SCHEMA, '{"a": 1}', (), {"a": 1}, "stop"),
        ({"content": [ANSWER], "stop_reason": "end_turn"}, SCHEMA, '{"a": 1}', (), {"a": 1}, "stop"),
        (
            {"content": [ANSWER], "stop_reason": "tool_use"},
            None,
            "",
            (ToolCall("t2", "answer", '{"a": 1}'),),
            None,
            "tool_calls",
        ),
        ({"content": [USED, ANSWER], "stop_reason": "tool_use"}, SCHEMA, "", (CALL,), None, "tool_calls"),
        ({"content": [USED], "stop_reason": "end_turn"}, None, "", (CALL,), None, "tool_calls"),
        ({"content": [ANSWER], "stop_reason": "max_tokens"}, SCHEMA, "", (), None, "length"),
        ({"content": [TEXT], "stop_reason": "max_tokens"}, SCHEMA, '{"a": 1}', (), None, "length"),
        ({"content": [TEXT], "stop_reason": "model_context_window_exceeded"}, None, '{"a": 1}', (), None, "length"),
        ({"content": [TEXT], "stop_reason": "pause_turn"}, None, '{"a": 1}', (), None, "length"),
        ({"content": [TEXT], **refused("why")}, SCHEMA, '{"a": 1}', (), None, "refusal"),
        ({**refused("why")}, SCHEMA, "why", (), None, "refusal"),
        ({**refused(None)}, SCHEMA, "", (), None, "refusal"),
        ({"stop_reason": "refusal"}, SCHEMA, "", (), None, "refusal"),
    ],
)
def test_a_message(
    body: dict[str, Any], schema: Any, text: str, calls: tuple[ToolCall, ...], data: Any, finish: str
) -> None:
    reply = messages(body, output_schema=schema)

    assert (reply.text, reply.calls, reply.data, reply.finish) == (text, calls, data, finish)


COUNTS = {"prompt_tokens": 1_000_000, "completion_tokens": 500_000, "input_tokens": 1_000_000, "output_tokens": 500_000}
NO_COUNTS = dict.fromkeys(COUNTS)
SPOKEN = {"message": said("hi"), "output": [WROTE], "content": [TEXT]}
READS = (chat, responses, messages)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize(
    ("model", "answers", "known", "cost"),
    [("", "m-1", "m-1", 2.0), ("", "m-1", "m", 2.0), ("asked", "m-1", "asked", 2.0), ("asked", "m-1", "m", 0.0)],
)
def test_reply_has_its_id_model_and_price(
    read: Any, model: str, answers: str, known: str, cost: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PRICES, known, (1.0, 2.0))
    monkeypatch.setattr(f"{__name__}.asking", lambda: ModelRequest(model=model, instructions="", turns=()))

    reply = read({**SPOKEN, "model": answers, "usage": COUNTS})

    assert (reply.model, reply.id) == (answers, {chat: "c1", responses: "r1", messages: "a1"}[read])
    assert reply.usage == Usage(calls=1, input_tokens=1_000_000, output_tokens=500_000, cost=cost)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("usage", [None, NO_COUNTS])
def test_missing_fields_of_a_server_are_filled_in(read: Any, usage: Any) -> None:
    reply = read({**SPOKEN, "model": None, "id": None, "usage": usage})

    assert (reply.model, reply.id, reply.usage) == ("m", "", Usage(calls=1))


FAILED = {"code": "server_error", "message": "it broke"}


@pytest.mark.parametrize(
    ("read", "body", "words", "usage"),
    [
        (chat, {"choices": [], "error": {"code": 503, "message": "away"}}, "openai answered 503: away", Usage(calls=1)),
        (chat, {"choices": [], "error": "away"}, "openai answered 500: away", Usage(calls=1)),
        (chat, {"choices": None}, "200 with .* not a reply: choices is missing; expected a list", Usage(calls=1)),
        (chat, {"message": said("hi"), "finish_reason": None}, "finish_reason is missing", Usage(calls=1)),
        (responses, {"status": "failed"}, "openai stopped the answer early: failed", Usage(calls=1)),
        (responses, {"output": None}, "output is missing; expected a list of items", Usage(calls=1)),
        (responses, {"status": "failed", "error": FAILED}, "500: it broke", Usage(calls=1)),
        (
            responses,
            {"status": "failed", "error": {**FAILED, "code": "x"}, "usage": {"input_tokens": 3, "output_tokens": 2}},
            "500: it broke",
            Usage(calls=1, input_tokens=3, output_tokens=2),
        ),
        (messages, {"content": None, "stop_reason": None}, "content is missing; expected a list", Usage(calls=1)),
        (messages, {"content": [TEXT], "stop_reason": None}, "stop_reason is missing", Usage(calls=1)),
    ],
)
def test_invalid_reply_is_a_retryable_error(read: Any, body: dict[str, Any], words: str, usage: Usage | None) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        read(body)

    assert (caught.value.retryable, caught.value.usage) == (True, usage)


@pytest.mark.parametrize(
    ("arguments", "tokens", "cut"),
    [
        ('{"city": "Os', 100, True),  # the answer used all requested tokens
        ("city: Oslo", 100, True),
        ('{"city": "Os', 40, True),  # the server stopped at its own limit
        ('{"city": "Os', 0, True),  # the server does not count tokens
        ("city: Oslo", 40, False),  # invalid, but not cut off: the model can correct this
        ('{"city": "Oslo"}', 100, False),
    ],
)
def test_answer_that_was_cut_within_a_call_is_no_call(arguments: str, tokens: int, cut: bool) -> None:
    message = called(function={"name": "weather", "arguments": arguments})
    usage = {"prompt_tokens": 10, "completion_tokens": tokens}

    reply = chat({"message": message, "finish_reason": "tool_calls", "usage": usage}, max_tokens=100)

    assert (reply.finish, bool(reply.calls)) == (("length", False) if cut else ("tool_calls", True))
