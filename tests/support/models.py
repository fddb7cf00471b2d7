"""The models of both SDKs, talking to a provider of our own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anthropic as anthropic_sdk  # imported here, as it takes seconds: not while a worker must show that it lives
import openai as openai_sdk
import pytest

from pointsman.llm.anthropic import AnthropicModel
from pointsman.llm.openai import OpenAIModel
from pointsman.ports import Model
from support.providers import FakeProvider

SDKS = (anthropic_sdk, openai_sdk)
KEY = "sk-test-0123456789abcdef"


def openai(provider: FakeProvider) -> Model:
    return OpenAIModel("gpt-4.1", api_key=KEY, base_url=provider.openai_url, timeout=20)


def anthropic(provider: FakeProvider) -> Model:
    return AnthropicModel("claude-haiku-4-5", api_key=KEY, base_url=provider.url, timeout=20)


both = pytest.mark.parametrize("connect", [openai, anthropic])


@asynccontextmanager
async def closing(model: Model) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await model.close()
