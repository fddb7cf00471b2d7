"""An unusable key, proxy or CA file is named. No request is sent or counted, and the chain's next model is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.adapters import KEY, WEATHER_TOOL, Connect, asking, every, talking
from support.corpus import MODELS
from support.loops import InstantClock
from support.providers import Answer, FakeProvider

from pointsman.authoring.context import Context
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.cli.support.environment_checks import check_own_model
from pointsman.errors import ConfigurationError, ModelError
from pointsman.llm.errors import error_from_connection
from pointsman.llm.factory import model_from
from pointsman.ports.model import ToolSpec
from pointsman.settings import Settings

VARIABLES = {"chat_completions": "OPENAI_API_KEY", "responses": "OPENAI_API_KEY", "messages": "ANTHROPIC_API_KEY"}
SPECS = {"chat_completions": "openai:m", "responses": "openai-responses:m", "messages": "anthropic:m"}
BAD_KEYS = [
    ("sk-te st", "white space"),
    ("sk-te\tst", "white space"),
    ("sk-a\nsk-b", "white space"),
    ("sk-tést", r"U\+00E9"),
    ("sk-test\u200b", r"U\+200B"),
    ("“sk-test”", r"U\+201C"),
    ("sk-test\x00", r"U\+0000"),
]


@pytest.mark.parametrize("dialect", MODELS)
@pytest.mark.parametrize(("key", "what"), BAD_KEYS)
def test_a_key_that_no_header_can_carry_is_a_configuration_error_with_its_variable(
    dialect: str, key: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "\x00" not in key:
        monkeypatch.setenv(VARIABLES[dialect], key)
        with pytest.raises(ConfigurationError, match=f"{VARIABLES[dialect]} contains .*{what}") as caught:
            model_from(SPECS[dialect])
        assert key not in str(caught.value)
    with pytest.raises(ConfigurationError, match=f"api_key contains .*{what}"):
        MODELS[dialect]("m", api_key=key)


@pytest.mark.parametrize("dialect", MODELS)
@pytest.mark.parametrize("around", ["\n", " ", "\t\r\n", "\u00a0"])
async def test_white_space_around_a_key_is_no_part_of_it(
    dialect: str, around: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeProvider.saying(Answer("one"), Answer("two")) as provider:
        monkeypatch.setenv(VARIABLES[dialect], f"{around}{KEY}{around}")
        url = provider.openai_url
        models = [MODELS[dialect]("m", base_url=url), MODELS[dialect]("m", base_url=url, api_key=f"{KEY}{around}")]
        for model in models:
            await model.complete(asking())
            await model.close()

    sent = [call.headers.get("authorization", "") + call.headers.get("x-api-key", "") for call in provider.calls]
    assert [header.endswith(KEY) for header in sent] == [True, True]


UNUSABLE: list[tuple[dict[str, str], str]] = [
    ({"ALL_PROXY": "socks5://me:secret@127.0.0.1:1"},
     "ALL_PROXY is 'socks5://127.0.0.1:1': for a SOCKS proxy, install .*socksio"),
    ({"HTTPS_PROXY": "ftp://127.0.0.1:1"}, "HTTPS_PROXY is 'ftp://127.0.0.1:1': name a proxy by http://HOST:PORT"),
    ({"SSL_CERT_FILE": "/nowhere/ca.pem"}, "SSL_CERT_FILE is '/nowhere/ca.pem': there is no such file"),
    ({"SSL_CERT_FILE": "EMPTY"}, "SSL_CERT_FILE is '.*': name a file of certificates in PEM form"),
]  # fmt: skip


@pytest.fixture(params=UNUSABLE, ids=lambda case: "-".join(case[0]))
def unusable(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Set environment variables with which no client can be created. Return the expected error."""
    variables, message = request.param
    for name in ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    empty = tmp_path / "empty.pem"
    empty.write_text("no certificate", encoding="utf-8")
    for name, value in variables.items():
        monkeypatch.setenv(name, str(empty) if value == "EMPTY" else value)
    return str(message)


@every
async def test_a_client_that_cannot_be_made_is_a_model_error_and_no_call(connect: Connect, unusable: str) -> None:
    async with talking(connect, Answer("never")) as (provider, model):
        with pytest.raises(ModelError, match=unusable) as caught:
            await model.complete(asking())

    assert (caught.value.retryable, caught.value.kind, caught.value.usage) == (False, "configuration", None)
    assert "secret" not in str(caught.value)
    assert provider.calls == []


@pytest.mark.usefixtures("unusable")
async def test_the_chain_continues_where_a_client_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeProvider.saying(Answer("here")) as provider:
        first, second = (MODELS["messages"]("m", api_key="k", base_url=provider.url) for _ in range(2))
        with monkeypatch.context() as sound:
            for name in ("ALL_PROXY", "HTTPS_PROXY", "SSL_CERT_FILE"):
                sound.delenv(name, raising=False)
            await second.connect()
        agent = LLMAgent(name="a", description="d", instructions="i", model=[first, second], clock=InstantClock())
        context = Context.for_test("x")
        answer = await agent.run(context.handoff, context)
        await agent.close()

    assert (answer, context.usage.calls, len(provider.calls)) == ("here", 1, 1)


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_doctor_names_what_a_client_cannot_be_made_with(
    provider: str, unusable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{provider.upper()}_API_KEY", KEY)

    check = await check_own_model(Settings(model=f"{provider}:m"))

    assert not check.ok
    assert check.finding.startswith(f"the client of {provider} cannot be made")


async def test_doctor_names_a_key_that_cannot_be_sent_and_a_model_without_a_price(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-te st")
    bad = await check_own_model(Settings(model="openai:gpt-4.1"))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    good = await check_own_model(Settings(model="openai:gpt-4.1"))
    unpriced = await check_own_model(Settings(model="openai:my-own"))

    assert (bad.ok, "OPENAI_API_KEY contains white space" in bad.finding) == (False, True)
    assert (good.ok, good.finding) == (True, "openai:gpt-4.1, OPENAI_API_KEY is set")
    assert "no price is known" in unpriced.finding


class LocalProtocolError(Exception):
    """An error with the name that the HTTP client uses for an invalid header."""


@pytest.mark.parametrize(
    "error", [LocalProtocolError("Illegal header value b'x '"), UnicodeEncodeError("ascii", "é", 0, 1, "x")]
)
def test_a_request_that_cannot_be_written_is_no_call_and_never_will_be(error: Exception) -> None:
    outer = OSError("Connection error.")
    outer.__cause__ = error

    failure = error_from_connection("p", outer)

    assert (failure.retryable, failure.usage) == (False, None)
    assert "cannot be written" in str(failure)


def test_a_certificate_that_is_not_trusted_is_named() -> None:
    outer = type("ConnectError", (Exception,), {})("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")

    failure = error_from_connection("p", outer, "https://proxy.local")

    assert (failure.retryable, failure.usage) == (False, None)
    assert "has a certificate that is not trusted here" in str(failure)


BARE = ToolSpec("ping", "Ping", {"type": "object"})


@every
async def test_a_tool_without_properties_is_sent_with_them(connect: Connect) -> None:
    async with talking(connect, Answer("ok")) as (provider, model):
        await model.complete(asking(tools=(BARE, WEATHER_TOOL)))

    def parameters(tool: dict[str, Any]) -> Any:
        return tool.get("input_schema") or tool.get("parameters") or tool["function"]["parameters"]

    sent = [parameters(tool) for tool in provider.calls[0].body["tools"]]
    assert sent == [{"type": "object", "properties": {}}, WEATHER_TOOL.parameters]
