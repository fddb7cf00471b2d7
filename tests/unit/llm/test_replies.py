"""What each adapter makes of a reply as its provider would write it: text, calls, data, its end, or an error."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

import anthropic as anthropic_sdk  # imported here, as it takes seconds: not within a test's time
import openai as openai_sdk
import pytest
from anthropic.types import Message
from openai.types.chat import ChatCompletion
from openai.types.responses import Response, ResponseErrorEvent
from support.adapters import KEY

from pointsman.errors import ModelError
from pointsman.llm.anthropic import AnthropicModel, _messages
from pointsman.llm.openai import OpenAIModel, _Whole, reading
from pointsman.llm.openai_responses import OpenAIResponsesModel
from pointsman.llm.prices import PRICES
from pointsman.ports import ModelReply, ModelRequest, ToolCall, Turn
from pointsman_schemas.events import Usage

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
ADAPTERS = (OpenAIModel, OpenAIResponsesModel, AnthropicModel)


def asking(**more: Any) -> ModelRequest:
    return ModelRequest(model="", instructions="i", turns=(Turn("user", "hello"),), **more)


def chat(body: Mapping[str, Any], **more: Any) -> ModelReply:
    """`body` are the fields of the only choice, `message` among them, and of the completion beside it."""
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": None}, **body}
    whole = {"id": "c1", "model": "m-1", "choices": [choice], "usage": None, **body}
    return OpenAIModel("m", api_key=KEY)._reply(ChatCompletion.construct(**whole), asking(**more))


def responses(body: Mapping[str, Any], **more: Any) -> ModelReply:
    whole = {"id": "r1", "model": "m-1", "status": "completed", "output": [], **body}
    return OpenAIResponsesModel("m", api_key=KEY)._reply(Response.construct(**whole), asking(**more))


def messages(body: Mapping[str, Any], **more: Any) -> ModelReply:
    whole = {"id": "a1", "model": "m-1", "stop_reason": "end_turn", "content": [], **body}
    return AnthropicModel("m", api_key=KEY)._reply(Message.construct(**whole), asking(**more))


def called(**more: Any) -> dict[str, Any]:
    """A message of chat completions with one call."""
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
        ({"message": called(), "finish_reason": "length"}, None, "", (CALL,), None, "length"),
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
def test_a_reply_has_its_id_its_model_and_the_price_of_that_or_of_the_model_it_was_asked_for_by(
    read: Any, model: str, answers: str, known: str, cost: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PRICES, known, (1.0, 2.0))
    monkeypatch.setattr(f"{__name__}.asking", lambda: ModelRequest(model=model, instructions="", turns=()))

    reply = read({**SPOKEN, "model": answers, "usage": COUNTS})

    assert (reply.model, reply.id) == (answers, {chat: "c1", responses: "r1", messages: "a1"}[read])
    assert reply.usage == Usage(calls=1, input_tokens=1_000_000, output_tokens=500_000, cost=cost)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("usage", [None, NO_COUNTS])
def test_what_a_server_leaves_out_is_filled_in(read: Any, usage: Any) -> None:
    reply = read({**SPOKEN, "model": None, "id": None, "usage": usage})

    assert (reply.model, reply.id, reply.usage) == ("m", "", Usage(calls=1))


FAILED = {"code": "server_error", "message": "it broke"}


@pytest.mark.parametrize(
    ("read", "body", "words", "usage"),
    [
        (chat, {"choices": [], "error": {"code": 503, "message": "away"}}, "openai answered 503: away", None),
        (chat, {"choices": [], "error": "away"}, "openai answered 200 .*: no choices", None),
        (chat, {"choices": None}, "no choices", None),
        (chat, {"message": said("hi"), "finish_reason": None}, "does not say how it ended", None),
        (responses, {"status": "failed"}, "a response of status 'failed'", None),
        (responses, {"output": None}, "a response of status 'completed'", None),
        (responses, {"status": "failed", "error": FAILED}, "500: it broke", Usage(calls=1)),
        (
            responses,
            {"status": "failed", "error": {**FAILED, "code": "x"}, "usage": {"input_tokens": 3, "output_tokens": 2}},
            "500: it broke",
            Usage(calls=1, input_tokens=3, output_tokens=2),
        ),
        (messages, {"content": None}, "without content or without a reason", None),
        (messages, {"content": [TEXT], "stop_reason": None}, "without content or without a reason", None),
    ],
)
def test_what_is_no_reply_is_an_error_that_may_pass(
    read: Any, body: dict[str, Any], words: str, usage: Usage | None
) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        read(body)

    assert (caught.value.retryable, caught.value.usage) == (True, usage)


@pytest.mark.parametrize("adapter", [OpenAIModel, OpenAIResponsesModel])
async def test_a_server_that_needs_no_key_has_no_word_taken_out_of_what_it_says(
    adapter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    model = adapter("m", base_url="http://127.0.0.1:9/v1")
    error = {"code": "server_error", "message": "none of the slots is free"}

    with pytest.raises(ModelError, match="500: none of the slots is free"):
        model._reply(ChatCompletion.construct(error=error, choices=[]), asking())
    assert model._connected(openai_sdk).api_key == "none", "the SDK wants one"
    await model.close()


# A stream of chat completions, which is put together here


def delta(finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"id": "c1", "choices": [{"index": 0, "delta": more, "finish_reason": finish}]}


def part(index: int, name: str | None, arguments: str | None, id: str | None = None) -> dict[str, Any]:
    return {"index": index, "id": id, "function": {"name": name, "arguments": arguments}}


def test_chunks_make_the_completion_they_are_of() -> None:
    whole = _Whole()
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

    told = [whole.add(chunk) for chunk in chunks]

    assert told == ["", "", "Let me ", "look.", *[""] * 8]
    assert whole.completion() == {
        "object": "chat.completion", "created": 0, "id": "c1", "model": "m-1",
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
        "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {
            "role": "assistant", "content": "Let me look.", "refusal": "no", "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}},
                {"id": "t2", "type": "function", "function": {"name": "sun", "arguments": "{}"}},
            ]}}],
    }  # fmt: skip
    assert _Whole().completion()["choices"] == []


def streaming(*events: Any) -> Any:
    """A client of the SDK whose response is a stream of these events."""

    async def stream() -> AsyncIterator[Any]:
        for event in events:
            yield event

    async def create(**_: object) -> AsyncIterator[Any]:
        return stream()

    return SimpleNamespace(responses=SimpleNamespace(create=create))


DELTA = SimpleNamespace(type="response.output_text.delta", delta="so")
BEGUN = SimpleNamespace(type="response.created")
ERROR = ResponseErrorEvent.construct(type="error", code=None, message="it broke", param=None, sequence_number=1)


@pytest.mark.parametrize("end", ["completed", "incomplete", "failed"])
async def test_a_streamed_response_is_what_its_last_event_has(end: str) -> None:
    told: list[str] = []
    last = SimpleNamespace(type=f"response.{end}", response="the response")

    whole = await OpenAIResponsesModel("m", api_key=KEY)._streamed(
        streaming(BEGUN, DELTA, last, DELTA), {}, told.append
    )

    assert (whole, told) == ("the response", ["so"])


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ((DELTA, ERROR), "openai answered 500: it broke"),
        ((DELTA,), "openai answered 200 with something that is not a reply: a stream without an end"),
    ],
)
async def test_a_streamed_response_that_does_not_end_is_an_error(events: tuple[Any, ...], said: str) -> None:
    with pytest.raises(ModelError) as caught:
        await OpenAIResponsesModel("m", api_key=KEY)._streamed(streaming(*events), {}, lambda _: None)

    assert (str(caught.value), caught.value.retryable) == (said, True)


class Stream:
    """A stream of the SDK of Anthropic that says "so" and breaks, before or after it has told what it used."""

    def __init__(self, error: Exception, told: Any) -> None:
        self.error, self.told = error, told

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    @property
    async def text_stream(self) -> AsyncIterator[str]:
        yield "so"
        raise self.error

    @property
    def current_message_snapshot(self) -> Message:
        assert self.told is not None
        return Message.construct(usage=Message.construct(**self.told))


def status(code: int, message: str, kind: str | None = None) -> Exception:
    response = SimpleNamespace(request=None, status_code=code, headers={"Retry-After": "3"})
    body = {"error": {"message": message, "type": kind}}
    return anthropic_sdk.APIStatusError("said", response=cast(Any, response), body=body)


TOLD = {"input_tokens": 3, "output_tokens": 2}


@pytest.mark.parametrize(
    ("error", "told", "said", "pause", "usage"),
    [
        (status(200, "a secret", "overloaded_error"), None, "529: a [key] (overloaded_error)", None, None),
        (status(429, "a secret"), None, "429: a [key]", 3.0, None),
        (anthropic_sdk.APIError("x", cast(Any, None), body=None), None, "not a reply: APIError", None, None),
        (json.JSONDecodeError("x", "", 0), TOLD, "not a reply: a stream that cannot be read", None, None),
        (AssertionError(), TOLD, "not a reply: a stream that cannot be read", None, None),
        (OSError("x"), TOLD, "no answer: OSError; the", None, Usage(calls=1, input_tokens=3, output_tokens=2)),
        (OSError("x"), None, "no answer: OSError; the", None, Usage(calls=1)),
    ],
)
async def test_what_breaks_a_stream_of_anthropic_s(
    error: Exception, told: Any, said: str, pause: float | None, usage: Usage | None
) -> None:
    heard: list[str] = []
    model: Any = AnthropicModel("m", api_key="secret", base_url="http://127.0.0.1:9")
    model._sdk, model._loop = anthropic_sdk, asyncio.get_running_loop()
    model._client = SimpleNamespace(messages=SimpleNamespace(stream=lambda **_: Stream(error, told)))

    with pytest.raises(ModelError, match=re.escape(said)) as caught:
        await model.complete(asking(on_text=heard.append))

    assert heard == ["so"]
    assert (caught.value.retryable, caught.value.retry_after, caught.value.usage) == (True, pause, usage)


REQUEST = cast(Any, None)
KNOWN = (
    openai_sdk.APIError("it broke", REQUEST, body=None),
    ModelError("it broke", retryable=False),
    json.JSONDecodeError("it broke", "", 0),
)
BROKE = (openai_sdk.APIConnectionError(request=REQUEST), EOFError("it broke"), OSError("it broke"))


@pytest.mark.parametrize(("error", "known"), [*((each, True) for each in KNOWN), *((each, False) for each in BROKE)])
async def test_what_breaks_a_stream_is_the_connection_where_nobody_has_a_word_for_it(
    error: Exception, known: bool
) -> None:
    async def stream() -> AsyncIterator[str]:
        yield "one"
        raise error

    heard: list[str] = []

    async def hear() -> None:
        async for event in reading("openai", stream()):
            heard.append(event)  # noqa: PERF401  # what was heard before the end counts

    with pytest.raises(Exception, match=r"it broke|gave no answer") as caught:
        await hear()

    assert heard == ["one"]
    if known:
        assert caught.value is error
    else:
        assert isinstance(caught.value, ModelError)
        assert (caught.value.retryable, caught.value.usage) == (True, Usage(calls=1))


# A model is one of an account


@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_an_account_is_a_key_at_a_server_and_the_sdk_has_the_time_of_a_call_and_no_retries(adapter: Any) -> None:
    url = "http://127.0.0.1:9/v1"
    models = [adapter("m", api_key="a"), adapter("m", api_key="b"), adapter("m", api_key="a", base_url=url)]
    same = adapter("n", api_key="a", timeout=900.0)
    client = same._connected(cast(Any, anthropic_sdk if adapter is AnthropicModel else openai_sdk))

    assert len({model.account for model in models}) == 3
    assert same.account == models[0].account
    assert (client.timeout, client.max_retries, client.api_key) == (900.0, 0, "a")
    await same.close()


@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_an_sdk_is_loaded_beside_the_event_loop_by_the_first_call(
    adapter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Loading(Exception):
        pass

    async def load(name: str) -> object:
        raise Loading(name)

    for module in ("openai", "anthropic"):
        monkeypatch.setattr(f"pointsman.llm.{module}.load_sdk", load)

    with pytest.raises(Loading, match=adapter.provider):
        await adapter("m", api_key=KEY, base_url="http://127.0.0.1:9/v1").complete(asking())


def test_anthropic_is_sent_no_blank_text() -> None:
    block = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}}

    assert _messages([Turn("assistant", " \n", (CALL,))]) == [{"role": "assistant", "content": [block]}]
