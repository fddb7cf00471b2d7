"""Which model a name means, and which one is taken when nobody names one."""

from __future__ import annotations

from collections.abc import Mapping

from pointsman.errors import ConfigurationError
from pointsman.llm.anthropic import AnthropicModel
from pointsman.llm.network_guard import ACTIVE_GUARDS
from pointsman.llm.offline.model import OfflineModel
from pointsman.llm.openai import OpenAIModel
from pointsman.llm.openai_responses import OpenAIResponsesModel
from pointsman.ports.model import Model
from pointsman.util.environment import variable

__all__ = ["DEFAULT_MODELS", "model_from", "selected_model"]

DEFAULT_MODELS: Mapping[str, str] = {
    "openai": "gpt-4.1-mini",
    "openai-responses": "gpt-4.1-mini",
    "anthropic": "claude-haiku-4-5",
}
"""The model of a provider when only the provider is known: small, cheap, good at tools and structured output, and
without hidden reasoning, so that forced tool calls and temperature are accepted."""

_API_KEY_VARIABLES = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}


def model_from(spec: str | None = None) -> Model:
    """The model for `openai:NAME`, `openai-responses:NAME`, `anthropic:NAME`, a provider alone, or `offline`.

    None stands for `POINTSMAN_MODEL`, else the provider whose key is set (OpenAI before Anthropic), else `offline`. No
    key counts while real models are forbidden: a test that names none must not depend on who runs it.

    Raises:
        ConfigurationError: no such provider, or its key is not set.
    """
    provider, _, name = selected_model(spec).partition(":")
    match provider:
        case "openai":
            return OpenAIModel(name)
        case "openai-responses":
            return OpenAIResponsesModel(name)
        case "anthropic":
            return AnthropicModel(name)
        case _:
            return OfflineModel()


def selected_model(spec: str | None = None) -> str:
    """What `model_from(spec)` makes, as `PROVIDER:NAME` or `offline`. Nothing is loaded.

    Raises:
        ConfigurationError: no such provider. Whether its key is set is not looked at.
    """
    by = "" if spec else ", by POINTSMAN_MODEL"
    spec = spec or variable("POINTSMAN_MODEL") or _model_by_api_key()
    provider, _, name = spec.strip().partition(":")
    if provider not in (*DEFAULT_MODELS, "offline"):
        raise ConfigurationError(
            f"the model is {spec!r}{by}; expected openai:NAME, openai-responses:NAME, anthropic:NAME or offline"
        )
    name = name.strip() or DEFAULT_MODELS.get(provider, "")
    return f"{provider}:{name}" if name else provider


def _model_by_api_key() -> str:
    if ACTIVE_GUARDS:
        return "offline"
    return next((provider for provider, key in _API_KEY_VARIABLES.items() if variable(key)), "offline")
