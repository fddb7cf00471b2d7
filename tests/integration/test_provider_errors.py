"""A failure at a provider counts as one call. The error states if and when to retry."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any, cast

import pytest
from support.adapters import KEY, Connect, asking, every, openai, talking
from support.providers import Answer, FakeProvider

from pointsman.errors import ConfigurationError, ModelError
from pointsman.llm.anthropic import AnthropicModel
from pointsman.llm.errors import error_from_connection
from pointsman.llm.openai import OpenAIModel
from pointsman.llm.openai_responses import OpenAIResponsesModel
from pointsman.ports.model import Model
from pointsman_schemas.events import Usage


@every
@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
async def test_transient_status_is_retryable_and_one_call(connect: Connect, status: int) -> None:
    async with talking(connect, Answer("busy", status=status)) as (provider, model):
        with pytest.raises(ModelError) as caught:
            await model.complete(asking())

    assert (caught.value.retryable, caught.value.status) == (True, status)
    assert str(status) in str(caught.value)
    assert len(provider.calls) == 1


@every
@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
async def test_rejected_call_is_terminal_and_hides_the_key(connect: Connect, status: int) -> None:
    async with talking(connect, Answer(f"Incorrect API key provided: {KEY}", status=status)) as (provider, model):
        with pytest.raises(ModelError) as caught:
            await model.complete(asking())

    assert (caught.value.retryable, caught.value.status) == (False, status)
    assert str(status) in str(caught.value)
    assert "0123456789" not in str(caught.value)
    assert len(provider.calls) == 1


@every
@pytest.mark.parametrize("broken", [Answer("half an answer", drop=20), Answer("no byte of it", drop=0)])
async def test_a_dropped_connection_is_retryable(connect: Connect, broken: Answer) -> None:
    async with talking(connect, broken) as (_, model):
        with pytest.raises(ModelError) as caught:
            await model.complete(asking())

    assert caught.value.retryable
    assert caught.value.usage is not None  # the cost is unknown, but the call counts
    assert caught.value.usage.calls == 1


@every
async def test_unreachable_provider_is_not_a_call_and_its_address_is_named(connect: Connect) -> None:
    async with FakeProvider.saying() as provider:
        model, url = connect(provider), provider.url
    with pytest.raises(ModelError, match=f"cannot be reached at {url}.*: .*; check the base URL") as caught:
        await model.complete(asking())
    await model.close()

    assert caught.value.retryable
    assert caught.value.usage is None


@every
async def test_an_answer_that_never_comes_ends_at_the_timeout(connect: Connect) -> None:
    async with FakeProvider.saying(Answer("late", delay=30)) as provider:
        model: Model = connect(provider)
        model._timeout = 0.2  # type: ignore[attr-defined]
        with pytest.raises(ModelError, match="timed out") as caught:
            await model.complete(asking())
        await model.close()

    assert caught.value.retryable
    assert caught.value.usage == Usage(calls=1)


async def test_an_error_that_a_gateway_wraps_in_a_200_keeps_its_class() -> None:
    body = b'{"error": {"code": 402, "message": "out of credit"}}'
    async with talking(openai, Answer(body=body)) as (_, model):
        with pytest.raises(ModelError, match="402: out of credit") as caught:
            await model.complete(asking())

    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("status", "code", "said", "kind"),
    [
        (429, "insufficient_quota", "openai answered 429: You exceeded your quota (insufficient_quota): the "
         "account has no credit or quota left: check the provider's plan and billing", "provider_error"),
        (400, "context_length_exceeded", "openai answered 400: You exceeded your quota (context_length_exceeded): "
         "the input is too long for this model", "context_overflow"),
    ],
)  # fmt: skip
async def test_an_error_code_overrides_its_status_and_is_not_retried(
    status: int, code: str, said: str, kind: str
) -> None:
    body = json.dumps({"error": {"code": code, "message": "You exceeded your quota"}}).encode()
    async with talking(openai, Answer(status=status, body=body)) as (_, model):
        with pytest.raises(ModelError) as caught:
            await model.complete(asking())

    assert (str(caught.value), caught.value.kind, caught.value.retryable) == (said, kind, False)


@every
async def test_closed_model_reopens_and_each_event_loop_has_its_own_client(connect: Connect) -> None:
    async with talking(connect, Answer("one"), Answer("two")) as (_, model):
        said = []
        for _ in range(2):
            said.append((await model.complete(asking())).text)
            client = cast(Any, model)._client
            await model.close()
            assert client.is_closed()

        async def connected() -> object:
            return await cast(Any, model).connect()

        here, elsewhere = await connected(), await asyncio.to_thread(asyncio.run, connected())

    assert said == ["one", "two"]
    assert here is not elsewhere


class ConnectError(Exception):
    """An error with the name that the HTTP clients of both SDKs use."""


def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    error = error_from_connection("openai", ConnectError("refused"), "https://me:secret@proxy.local:8443/v1")

    assert "https://proxy.local:8443/v1: refused" in str(error)
    assert "secret" not in str(error)


@pytest.mark.parametrize("model", [OpenAIModel, OpenAIResponsesModel, AnthropicModel])
@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:9/v1",
        "localhost",
        "localhost:8000",
        "ftp://host",
        "http://",
        "http://[::1/v1",
        "http://host:port/v1",
    ],
)
def test_invalid_base_url_is_refused_at_once(model: Callable[..., Model], url: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"base URL of (openai|anthropic) is '{re.escape(url)}'; expected http://HOST:PORT"
    ):
        model("m", api_key=KEY, base_url=url)
