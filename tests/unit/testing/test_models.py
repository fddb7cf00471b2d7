"""A scripted model gives its answers in order. Then it reports that no answer is left."""

from __future__ import annotations

import pytest

from pointsman.errors import ConfigurationError, ModelError
from pointsman.ports.model import ModelRequest, Turn
from pointsman.testing import ScriptedModel, text_reply, tool_reply


def asking(text: str = "hello") -> ModelRequest:
    return ModelRequest(model="", instructions="", turns=(Turn("user", text),))


async def test_replies_errors_and_functions_come_in_their_order() -> None:
    model = ScriptedModel(
        text_reply("first"), ModelError("overloaded", retryable=True), lambda asked: text_reply(asked.turns[0].text)
    )

    assert (await model.complete(asking("one"))).text == "first"
    with pytest.raises(ModelError, match="overloaded"):
        await model.complete(asking("two"))
    assert (await model.complete(asking("three"))).text == "three"
    assert [request.turns[0].text for request in model.requests] == ["one", "two", "three"]


async def test_exhausted_script_reports_the_expected_calls() -> None:
    model = ScriptedModel(text_reply("only"))
    await model.complete(asking())

    with pytest.raises(ConfigurationError, match=r"no reply for call 2 \(replies: 1\); add a reply"):
        await model.complete(asking())


def test_scripted_reply_has_text_or_data_with_usage() -> None:
    text, data = (
        text_reply("{}", finish="length", tokens=(7, 3)),
        text_reply({"sum": 8}, finish="refusal", tokens=(7, 3)),
    )

    assert [(each.text, each.data, each.finish) for each in (text, data)] == [
        ("{}", None, "length"),
        ('{"sum":8}', {"sum": 8}, "refusal"),
    ]
    assert [(each.usage.calls, each.usage.input_tokens, each.usage.output_tokens) for each in (text, data)] == [
        (1, 7, 3)
    ] * 2


def test_scripted_calls_have_ids_and_raw_arguments() -> None:
    reply = tool_reply(("find", {"id": 1}), ("find", "{broken"), tokens=(7, 3))

    assert [(call.name, call.arguments) for call in reply.calls] == [("find", '{"id":1}'), ("find", "{broken")]
    assert [call.id for call in reply.calls] == ["call_1", "call_2"]
    assert (reply.finish, reply.usage.calls, reply.usage.tokens) == ("tool_calls", 1, 10)
