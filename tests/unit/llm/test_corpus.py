"""Every provider answer becomes a reply or a model error. Usage counts, limits hold, and the chain continues."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import JsonValue
from support.contexts import new_context
from support.corpus import MODELS, Case, cases
from support.loops import InstantClock
from support.providers import Answer, FakeProvider

from pointsman.authoring.context import Context
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.errors import ModelError, ModelReplyError, TaskError
from pointsman.llm.provider_model import ProviderModel, _Answer
from pointsman.ports.model import ModelReply, ToolCall, Turn
from pointsman_schemas.events import Budget, Step
from pointsman_schemas.strict_json import dump, parse

CASES = cases()
FINISHES = ("stop", "tool_calls", "length", "refusal")
every_case = pytest.mark.parametrize("case", CASES, ids=str)


def test_the_corpus_has_whole_streamed_and_broken_shapes_of_each_dialect() -> None:
    there = {(case.dialect, case.kind, case.is_error) for case in CASES}

    assert there == {(dialect, kind, broken) for dialect in MODELS for kind in ("whole", "stream") for broken in (0, 1)}


SERVERS = (
    "OpenAI", "Azure", "vLLM", "Ollama", "llama.cpp", "LiteLLM", "OpenRouter", "Groq", "Gemini", "DeepSeek",
    "Anthropic", "Bedrock", "Vertex",
)  # fmt: skip


@pytest.mark.parametrize("server", SERVERS)
def test_the_corpus_has_whole_streamed_and_broken_shapes_of_each_server(server: str) -> None:
    ours = [case for case in CASES if server.lower() in case.name.lower()]

    assert {case.kind for case in ours if not case.is_error} == {"whole", "stream"}
    assert any(case.is_error for case in ours)


def as_data(reply: ModelReply) -> dict[str, Any]:
    """Return the expected reply of a case in the form of the corpus."""
    return {
        "text": reply.text,
        "calls": [[call.id, call.name, json.loads(call.arguments)] for call in reply.calls],
        "data": reply.data,
        "finish": reply.finish,
        "usage": [reply.usage.input_tokens, reply.usage.output_tokens],
        "model": reply.model,
    }


def check_error(error: ModelError, expected: dict[str, Any]) -> None:
    assert error.usage is not None
    assert error.usage.calls == 1
    seen = {
        "path": getattr(error, "path", None),
        "status": error.status,
        "retryable": error.retryable,
        "retry_after": error.retry_after,
        "usage": [error.usage.input_tokens, error.usage.output_tokens],
    }
    assert {key: seen[key] for key in expected if key != "words"} == {k: v for k, v in expected.items() if k != "words"}
    assert expected.get("words", "") in str(error)
    assert isinstance(error, ModelReplyError) == ("path" in expected)


@every_case
def test_a_recorded_shape_is_read_as_it_is_meant(case: Case) -> None:
    if case.is_error:
        with pytest.raises(ModelError) as caught:
            case.read(case.model(), case.body)
        check_error(caught.value, case.expected["error"])
        return

    reply = case.read(case.model(), case.body)

    expected = case.expected["reply"]
    seen = as_data(reply)
    assert {key: seen[key] for key in expected if key in seen} == {
        key: expected[key] for key in expected if key in seen
    }
    assert reply.usage.calls == 1


@pytest.mark.parametrize("dialect", MODELS)
async def test_the_corpus_is_read_over_a_connection_by_the_real_sdk(dialect: str) -> None:
    """The recorded answers are served over HTTP and read by the SDK."""
    ours = [case for case in CASES if case.dialect == dialect]
    async with FakeProvider(deque(Answer(body=case.sent) for case in ours)) as provider:
        model = MODELS[dialect]("m", api_key="a-key-that-is-long-enough", base_url=provider.openai_url, timeout=5)
        try:
            for case in ours:
                shown: list[str] = []
                request = case.asking(on_text=shown.append if case.kind == "stream" else None)
                if case.is_error:
                    with pytest.raises(ModelError) as caught:
                        await model.complete(request)
                    check_error(caught.value, case.expected["error"])
                    continue
                reply = await model.complete(request)
                expected = {key: value for key, value in case.expected["reply"].items() if key in as_data(reply)}
                assert {key: as_data(reply)[key] for key in expected} == expected, str(case)
                if case.kind == "stream" and "shown" in case.expected["reply"]:
                    assert "".join(shown) == case.expected["reply"]["shown"], str(case)
        finally:
            await model.close()


# Opaque data


def next_turns(reply: ModelReply) -> tuple[Turn, ...]:
    """Return the conversation after a reply, with tool results or with a question about the answer."""
    calls = tuple(
        ToolCall(call.id or f"own_{place}", call.name, call.arguments) for place, call in enumerate(reply.calls)
    )
    said = Turn("assistant", reply.text or ("" if calls else "(nothing)"), calls, provider_state=reply.provider_state)
    answers = [Turn("tool", "rain", call_id=call.id) for call in calls] or [Turn("user", "Once more.")]
    return (Turn("user", "hello"), said, *answers)


@pytest.mark.parametrize("case", [case for case in CASES if "sends_back" in case.expected.get("reply", {})], ids=str)
def test_opaque_data_of_a_turn_returns_to_its_model_only(case: Case) -> None:
    model = case.model()
    reply = case.read(model, case.body)

    again = json.dumps(model._body(case.asking(turns=next_turns(reply))))
    elsewhere = json.dumps(model._body(replace(case.asking(turns=next_turns(reply)), model="another")))

    for part in case.expected["reply"]["sends_back"]:
        assert json.dumps(part)[1:-1] in again
        assert json.dumps(part)[1:-1] not in elsewhere
    assert all(call.name in again for call in reply.calls)


@pytest.mark.parametrize("case", [case for case in CASES if "sends_no" in case.expected.get("reply", {})], ids=str)
def test_opaque_data_that_the_server_does_not_know_any_more_stays_here(case: Case) -> None:
    model = case.model()
    reply = case.read(model, case.body)

    body = model._body(case.asking(turns=next_turns(reply)))

    for part in case.expected["reply"]["sends_no"]:
        assert part not in json.dumps(body)
    assert body["include"] == ["reasoning.encrypted_content"], (
        "encrypted reasoning must be requested, so that it can be sent back"
    )


def test_thinking_precedes_the_call_it_led_to() -> None:
    case = next(case for case in CASES if "thinking before a call" in case.name and case.kind == "whole")
    model = case.model()
    reply = case.read(model, case.body)

    body = model._body(case.asking(turns=next_turns(reply)))

    assert body["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "The user asks for Oslo.", "signature": "EqQBCgIYAhIM"},
        {"type": "redacted_thinking", "data": "EmwKAhgBEgy"},
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}},
    ]


def attempted(read: Callable[[], ModelReply]) -> ModelReply | ModelError:
    try:
        return read()
    except ModelError as error:
        return error


# Bytes


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([case for case in CASES if not case.is_error]), st.lists(st.integers(1, 40), min_size=1), st.data()
)
def test_reply_is_the_same_for_any_chunks(case: Case, sizes: list[int], data: st.DataObject) -> None:
    model, sent = MODEL_OF.setdefault(case.dialect, case.model()), case.sent

    def read(body: bytes) -> ModelReply:
        answer = _Answer(model.dialect.stream(case.asking()), None, model._raise_error)
        rest = body
        while rest:
            for size in sizes:
                answer.feed(rest[:size], is_events=case.kind == "stream")
                rest = rest[size:]
        return model.reply(answer.finish(), case.asking())

    assert as_data(read(sent)) == as_data(case.read(model, case.body))
    cut = attempted(lambda: read(sent[: data.draw(st.integers(0, len(sent)))]))
    assert cut.retryable if isinstance(cut, ModelError) else cut.finish in FINISHES


@pytest.mark.parametrize("dialect", MODELS)
@pytest.mark.parametrize("depth", [120, 900, 100_000])
def test_deeply_nested_reply_is_an_error(dialect: str, depth: int) -> None:
    model = MODELS[dialect]("m", api_key="k", base_url="http://127.0.0.1:9/v1")
    case = next(case for case in CASES if case.dialect == dialect and not case.is_error and case.kind == "whole")
    whole = json.dumps(case.body | {"usage": None})
    body = whole.replace('"usage": null', '"usage": ' + '{"usage": ' * depth + "1" + "}" * depth)
    deep = '[{"type": "thinking", "x": ' + "[" * depth + "]" * depth + '}, {"type": "text", "text": "hi"}]'
    for text in (body, re.sub(r'"content": (?:"[^"]*"|\[.*?\])', lambda _: f'"content": {deep}', whole, count=1)):
        answer = _Answer(model.dialect.stream(case.asking()), None, model._raise_error)
        answer.feed(text.encode(), is_events=False)
        try:
            reply = model.reply(answer.finish(), case.asking())
            json.dumps(model._body(case.asking(turns=next_turns(reply))))
        except ModelError:
            assert depth > 100


# Agents


BROKEN = [case for case in CASES if case.expected.get("error", {}).get("path")]


@pytest.mark.parametrize("case", BROKEN[:: max(1, len(BROKEN) // 8)], ids=str)
async def test_unreadable_reply_is_counted_and_the_next_model_asked(case: Case) -> None:
    tokens = case.expected["error"]["usage"]
    async with FakeProvider.saying(Answer(body=case.sent)) as broken, FakeProvider.saying(Answer("here")) as good:
        stream = case.kind == "stream"
        models = [case.model(base_url=broken.openai_url), MODELS["chat_completions"]("n", base_url=good.openai_url)]
        agent = LLMAgent(name="a", description="d", instructions="i", model=models, stream=stream, clock=InstantClock())
        context = Context.for_test("hello")
        answer = await agent.run(context.handoff, context)
        await agent.close()

    assert (answer, len(broken.calls), len(good.calls)) == ("here", 1, 1)
    assert context.usage.calls == 2
    assert context.usage.input_tokens >= tokens[0] + 11
    assert context.usage.output_tokens >= tokens[1] + 7


@pytest.mark.parametrize("dialect", MODELS)
async def test_a_limit_of_calls_holds_for_replies_that_cannot_be_read(dialect: str) -> None:
    case = next(case for case in BROKEN if case.dialect == dialect and case.kind == "whole")
    async with FakeProvider(deque([Answer(body=case.sent)] * 9)) as provider:
        model = case.model(base_url=provider.openai_url)
        agent = LLMAgent(name="a", description="d", instructions="i", model=model, clock=InstantClock())
        context = new_context(update={"budget": Budget(calls=1)})
        with pytest.raises(TaskError, match="used of 1 allowed") as caught:
            await agent.run(context.handoff, context)
        await agent.close()

    assert (caught.value.kind, len(provider.calls), context.usage.calls) == ("limit", 1, 1)


# Mutations


LEAVES: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-5, 5),
    st.floats(),
    st.sampled_from(
        [
            "",
            " ",
            "0",
            "7",
            "x",
            "stop",
            "tool_calls",
            "MAX_TOKENS",
            "{}",
            "[",
            "<think>",
            "\ud800",
            "null",
            "1\x1f",
            "\u00b2",
            10**400,
        ]
    ),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["type", "text", "content", "function", "name", "id", "index", "error", "message", "usage"]
            ),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Yield the paths of a value and of all its parts."""
    found = [path]
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        found += places(inner, (*path, key))
    return found


def changed(value: Any, path: tuple[Any, ...], how: str, new: Any) -> Any:
    if not path:
        return [new] if how == "wrap" else new
    copy = dict(value) if isinstance(value, dict) else list(value)
    key = path[0]
    if len(path) > 1:
        copy[key] = changed(copy[key], path[1:], how, new)
    elif how == "drop":
        del copy[key]
    elif how == "twice" and isinstance(copy, list):
        copy.insert(key, copy[key])
    elif how == "wrap":
        copy[key] = [copy[key]]
    else:
        copy[key] = new
    return copy


@st.composite
def mutated(draw: st.DrawFn) -> tuple[Case, Any]:
    case = draw(st.sampled_from(CASES))
    body = case.body
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places(body)))
        body = changed(body, path, draw(st.sampled_from(["set", "drop", "twice", "wrap"])), draw(VALUES))
        if case.kind == "stream" and not isinstance(body, list):
            body = [body]
    return case, body


MODEL_OF: dict[str, ProviderModel] = {}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(mutated())
def test_mutated_reply_is_a_reply_or_a_model_error(found: tuple[Case, Any]) -> None:
    case, body = found
    model = MODEL_OF.setdefault(case.dialect, case.model())

    reply = attempted(lambda: case.read(model, body, lambda _: None))

    assert reply.usage is not None
    assert reply.usage.calls == 1
    assert min(reply.usage.input_tokens, reply.usage.output_tokens) >= 0
    if isinstance(reply, ModelError):
        assert str(reply)
        return
    assert reply.finish in FINISHES
    assert (reply.finish == "tool_calls") == bool(reply.calls)
    for text in (
        reply.text,
        reply.model,
        reply.id,
        *(part for c in reply.calls for part in (c.id, c.name, c.arguments)),
    ):
        assert isinstance(text, str)
    assert step_of(reply).provider_state == reply.provider_state
    json.dumps(model._body(case.asking(turns=next_turns(reply))), allow_nan=False)


def step_of(reply: ModelReply) -> Step:
    """Return a step with the state of the reply, after a round trip through JSON."""
    step = Step(workflow_id="wf_1", task_id="t1", attempt=1, agent="a", name="answer-1", at=datetime.now(UTC),
                provider_state=dict(reply.provider_state) if reply.provider_state is not None else None)  # fmt: skip
    return parse(Step, dump(step))


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(MODELS)), VALUES)
def test_any_json_is_a_reply_or_a_model_error(dialect: str, body: JsonValue) -> None:
    case = next(case for case in CASES if case.dialect == dialect)
    model = MODEL_OF.setdefault(dialect, case.model())

    whole, streamed = replace(case, kind="whole"), replace(case, kind="stream")
    for each, given_body in ((whole, body), (streamed, [body])):
        usage = attempted(partial(each.read, model, given_body)).usage
        assert usage is not None
        assert usage.calls == 1
