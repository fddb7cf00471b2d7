"""Adapters of providers: accounts, lazy clients and omitted fields."""

from __future__ import annotations

from typing import Any

import pytest
from support.adapters import KEY

from pointsman.errors import ModelError
from pointsman.llm.anthropic import AnthropicModel, _messages
from pointsman.llm.foreign_json import Field
from pointsman.llm.openai import OpenAIModel
from pointsman.llm.openai_responses import OpenAIResponsesModel
from pointsman.ports.model import ModelRequest, ToolCall, Turn

ADAPTERS = (OpenAIModel, OpenAIResponsesModel, AnthropicModel)
ASKED = ModelRequest(model="", instructions="i", turns=(Turn("user", "hello"),))
CALL = ToolCall("t1", "weather", '{"city": "Oslo"}')


@pytest.mark.parametrize("adapter", [OpenAIModel, OpenAIResponsesModel])
async def test_error_text_of_a_server_without_a_key_is_not_redacted(
    adapter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    model = adapter("m", base_url="http://127.0.0.1:9/v1")
    error = {"code": "server_error", "message": "none of the slots is free"}

    with pytest.raises(ModelError, match="500: none of the slots is free"):
        model.reply(Field({"error": error, "choices": []}), ASKED)
    assert (await model.connect()).api_key == "none", "the SDK requires a key, so the adapter must give a placeholder"
    await model.close()


@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_account_is_a_key_at_a_server_and_the_sdk_does_not_retry(adapter: Any) -> None:
    url = "http://127.0.0.1:9/v1"
    models = [adapter("m", api_key="a"), adapter("m", api_key="b"), adapter("m", api_key="a", base_url=url)]
    same = adapter("n", api_key="a", timeout=900.0)
    client = await same.connect()

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

    monkeypatch.setattr("pointsman.llm.provider_model.load_sdk", load)

    with pytest.raises(ModelError, match=f"Loading: {adapter.provider}"):
        await adapter("m", api_key=KEY, base_url="http://127.0.0.1:9/v1").complete(ASKED)


def test_anthropic_is_sent_no_blank_text() -> None:
    block = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}}

    assert _messages([Turn("assistant", " \n", (CALL,))], "") == [{"role": "assistant", "content": [block]}]
