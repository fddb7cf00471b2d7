"""Create the model for a name, or the model that the environment selects."""

from __future__ import annotations

from collections.abc import Mapping

from pointsman.errors import ConfigurationError
from pointsman.llm.anthropic import AnthropicModel
from pointsman.llm.network_guard import ACTIVE_GUARDS
from pointsman.llm.offline.model import OfflineModel
from pointsman.llm.openai import OpenAIModel
from pointsman.llm.openai_responses import OpenAIResponsesModel
from pointsman.llm.provider_model import ProviderModel
from pointsman.ports.model import Model
from pointsman.util.environment import variable

__all__ = ["DEFAULT_MODELS", "check_model", "model_from", "selected_model"]

DEFAULT_MODELS: Mapping[str, str] = {
    "openai": "gpt-4.1-mini",
    "openai-responses": "gpt-4.1-mini",
    "anthropic": "claude-haiku-4-5",
}
"""The model of each provider if only the provider is given. These models are small, cheap, and good at tools and
structured output. They have no hidden reasoning, so they accept forced tool calls and a temperature."""

_API_KEY_VARIABLES = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}


def model_from(spec: str | None = None) -> Model:
    """Return the model for a name, without loading the SDK of its provider.

    Args:
        spec: `openai:NAME`, `openai-responses:NAME`, `anthropic:NAME`, only the provider, or `offline`. None means
            `POINTSMAN_MODEL`. If this variable is not set, None means the provider whose key is set (OpenAI before
            Anthropic), and `offline` without a key. While real models are forbidden, keys are ignored, so a test does
            not depend on the developer's environment.

    Raises:
        ConfigurationError: The provider does not exist, or its key or URL cannot be used.
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
    """Return the name of the model that `model_from(spec)` creates, as `PROVIDER:NAME` or `offline`.

    Args:
        spec: As for `model_from`. The key of the provider is not checked.

    Raises:
        ConfigurationError: The provider does not exist.
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


async def check_model(spec: str | None = None) -> Model:
    """Return the model for a name. First check its key, its URL, its proxy and its CA file.

    Nothing is sent. The caller must close the model.

    Args:
        spec: As for `model_from`.

    Raises:
        ConfigurationError: The provider does not exist, or its key or URL cannot be used.
        ModelError: The SDK's client cannot be made.
    """
    model = model_from(spec)
    if isinstance(model, ProviderModel):
        await model.connect()
    return model


def _model_by_api_key() -> str:
    if ACTIVE_GUARDS:
        return "offline"
    return next((provider for provider, key in _API_KEY_VARIABLES.items() if variable(key)), "offline")
