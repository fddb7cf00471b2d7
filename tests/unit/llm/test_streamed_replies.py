"""What each adapter makes of a reply that comes in pieces, and of a stream that breaks."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import anthropic as anthropic_sdk  # imported here, as it takes seconds: not within a test's time
import openai as openai_sdk
import pytest
from anthropic.types import Message
from openai.types.responses import Response, ResponseErrorEvent
from support.adapters import KEY

from pointsman.errors import ModelError
from pointsman.llm.anthropic import AnthropicModel
from pointsman.llm.openai import _ChunkedCompletion, read_stream
from pointsman.llm.openai_responses import OpenAIResponsesModel
from pointsman.ports.model import ModelRequest, Turn
from pointsman_schemas.events import Usage


def delta(finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"id": "c1", "choices": [{"index": 0, "delta": more, "finish_reason": finish}]}


def part(index: int, name: str | None, arguments: str | None, id: str | None = None) -> dict[str, Any]:
    return {"index": index, "id": id, "function": {"name": name, "arguments": arguments}}


def test_chunks_make_the_completion_they_are_of() -> None:
    whole = _ChunkedCompletion()
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
    assert _ChunkedCompletion().completion()["choices"] == []


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
    response = Response.construct(id="resp_1")
    last = SimpleNamespace(type=f"response.{end}", response=response)

    whole = await OpenAIResponsesModel("m", api_key=KEY)._streamed(
        streaming(BEGUN, DELTA, last, DELTA), {}, told.append
    )

    assert whole is response
    assert told == ["so"]


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
        await model.complete(
            ModelRequest(model="", instructions="i", turns=(Turn("user", "hello"),), on_text=heard.append)
        )

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
        async for event in read_stream("openai", stream()):
            heard.append(event)  # noqa: PERF401  # what was heard before the end counts

    with pytest.raises(Exception, match=r"it broke|gave no answer") as caught:
        await hear()

    assert heard == ["one"]
    if known:
        assert caught.value is error
    else:
        assert isinstance(caught.value, ModelError)
        assert (caught.value.retryable, caught.value.usage) == (True, Usage(calls=1))
