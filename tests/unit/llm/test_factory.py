"""A model is created from its name. Without a name, the available keys select the model."""

from __future__ import annotations

import pytest
from support.adapters import KEY

from pointsman.errors import ConfigurationError
from pointsman.llm.factory import DEFAULT_MODELS, model_from
from pointsman.llm.network_guard import resolve_base_url
from pointsman.llm.openai_responses import OpenAIResponsesModel


def test_the_model_follows_from_the_name_and_the_name_from_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "POINTSMAN_MODEL"):
        monkeypatch.delenv(name, raising=False)

    def chosen(spec: str | None = None) -> str:
        model = model_from(spec)
        return f"{model.provider}:{model.name}"

    assert chosen() == "offline:offline"
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
        model_from("openai:gpt-4.1")
    with pytest.raises(ConfigurationError, match="ANTHROPIC_API_KEY"):
        model_from("anthropic:claude-haiku-4-5")
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    assert chosen() == f"anthropic:{DEFAULT_MODELS['anthropic']}"
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert chosen() == f"openai:{DEFAULT_MODELS['openai']}"
    assert chosen("anthropic:claude-x") == "anthropic:claude-x"
    assert chosen(" openai: gpt-x ") == "openai:gpt-x"
    assert isinstance(model_from("openai-responses:gpt-5"), OpenAIResponsesModel)
    monkeypatch.setenv("POINTSMAN_MODEL", "offline")
    assert chosen() == "offline:offline"
    with pytest.raises(ConfigurationError, match="'mystery:9'; expected"):
        model_from("mystery:9")
    monkeypatch.setenv("POINTSMAN_MODEL", "gpt4")
    with pytest.raises(ConfigurationError, match="'gpt4', by POINTSMAN_MODEL; expected"):
        model_from()


def test_an_own_server_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")

    assert model_from("openai:local").name == "local"


def test_the_server_that_is_given_comes_before_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://there:0/v1")

    assert resolve_base_url("openai", "http://here/v1") == "http://here/v1"
    assert resolve_base_url("anthropic", None) is None
    with pytest.raises(ConfigurationError, match="'http://there:0/v1', by OPENAI_BASE_URL; expected"):
        resolve_base_url("openai", None)
    with pytest.raises(ConfigurationError, match="'here'; expected"):
        resolve_base_url("openai", "here")
