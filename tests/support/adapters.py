"""The three model adapters with the real SDKs, connected to fake providers on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import anthropic as anthropic_sdk  # imported here, because the import takes seconds
import openai as openai_sdk
import pytest
from pydantic import JsonValue

from pointsman.llm.anthropic import AnthropicModel
from pointsman.llm.openai import OpenAIModel
from pointsman.llm.openai_responses import OpenAIResponsesModel
from pointsman.ports.model import Model, ModelRequest, ToolSpec, Turn
from support.providers import Answer, FakeProvider

__all__ = [
    "KEY",
    "LIMITS",
    "SCHEMA",
    "WEATHER_TOOL",
    "Connect",
    "anthropic",
    "asking",
    "both",
    "closing",
    "every",
    "openai",
    "responses",
    "talking",
]

SDKS = (anthropic_sdk, openai_sdk)
KEY = "test.0123456789abcdef"  # does not match the pattern of any provider's keys
SCHEMA: dict[str, JsonValue] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_PATIENCE_S = 30.0  # seconds; a busy machine delays an answer, and a repeated call would be counted
LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
WEATHER_TOOL = ToolSpec("weather", "The weather of a city", SCHEMA)

Connect: TypeAlias = Callable[[FakeProvider], Model]


def openai(provider: FakeProvider) -> Model:
    return OpenAIModel("gpt-4.1", api_key=KEY, base_url=provider.openai_url, timeout=_PATIENCE_S)


def anthropic(provider: FakeProvider) -> Model:
    return AnthropicModel("claude-haiku-4-5", api_key=KEY, base_url=provider.url, timeout=_PATIENCE_S)


def responses(provider: FakeProvider) -> Model:
    return OpenAIResponsesModel("gpt-4.1", api_key=KEY, base_url=provider.openai_url, timeout=_PATIENCE_S)


both = pytest.mark.parametrize("connect", [openai, anthropic])
every = pytest.mark.parametrize("connect", [openai, responses, anthropic])


@asynccontextmanager
async def closing(model: Model) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await model.close()


@asynccontextmanager
async def talking(connect: Connect, *answers: Answer) -> AsyncIterator[tuple[FakeProvider, Model]]:
    async with FakeProvider.saying(*answers) as provider:
        model = connect(provider)
        async with closing(model):
            yield provider, model


def asking(text: str = "hello", **more: Any) -> ModelRequest:
    turns = more.pop("turns", (Turn("user", text),))
    return ModelRequest(model="", instructions="Be brief.", turns=turns, **more)
