"""Compute the cost of model calls from published prices. No price is guessed: without a known price, the cost is 0."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Final

from pointsman.util.environment import normalise_variables
from pointsman.util.threads import run_in_thread
from pointsman_schemas.events import Usage

__all__ = ["PRICES", "has_price", "load_sdk", "with_cost", "with_known_cost", "with_named_cost"]

PRICES: Final[dict[str, tuple[float, float]]] = {}
"""Your own prices by the name of the model: US dollars for a million input tokens, and for a million output tokens.
They replace published prices. For example, set `PRICES["my-model"] = (1.0, 2.0)` for a model that you host or for a
rate that you negotiated. Set `(0.0, 0.0)` for a model that costs nothing."""

_MILLION: Final = 1_000_000
_PRICED_PROVIDERS: Final = frozenset({"openai", "anthropic"})
"""The providers of the shipped adapters. An adapter for a different provider must report its costs itself."""


async def load_sdk(name: str) -> ModuleType:
    """Load the provider's SDK and the price table in a thread, because each takes seconds to load.

    The SDK reads environment variables by itself, so blank variables are removed first.

    Returns:
        The module of the SDK.
    """
    normalise_variables(f"{name.upper()}_")
    return await run_in_thread(_load, name)


def with_cost(provider: str | None, model: str, usage: Usage, asked: str = "") -> Usage:
    """Return a usage with its cost in US dollars, without discounts for caching or batches.

    Args:
        provider: The provider. None if the price table must find the provider by the model.
        model: The name of the model that answered. Providers return a name with a date.
        usage: The tokens.
        asked: The name of the model in the request, under which `PRICES` may have the price.
    """
    if own := PRICES.get(model) or PRICES.get(asked):
        cost = (usage.input_tokens * own[0] + usage.output_tokens * own[1]) / _MILLION
        return usage.model_copy(update={"cost": cost})
    import genai_prices  # imported late, because the import takes long, and only a call with a price needs it

    tokens = genai_prices.Usage(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)
    try:
        price = genai_prices.calc_price(tokens, model_ref=model, provider_id=provider)
    except LookupError:
        return usage
    return usage.model_copy(update={"cost": float(price.total_price)})


def with_known_cost(provider: str, model: str, usage: Usage) -> Usage:
    """Return a usage with its cost, or unchanged if the price is not at hand.

    The price table is never loaded here, because loading would block the event loop. The first call of a provider loads
    the table together with the SDK.
    """
    known = model in PRICES or "genai_prices" in sys.modules
    return with_cost(provider, model, usage) if known else usage


def with_named_cost(model: str, usage: Usage) -> Usage:
    """Return a usage with its cost. The cost stays 0 if the price of the model is not known.

    Args:
        model: `PROVIDER:NAME`, such as `openai:gpt-4.1`, or only the name.
        usage: The tokens. A cost that the usage already has is not changed.
    """
    if usage.cost:
        return usage
    provider, is_named, name = model.partition(":")
    if model in PRICES or not is_named:
        return with_cost(None, model, usage)
    return with_cost(provider.removesuffix("-responses"), name, usage)


async def has_price(provider: str, model: str) -> bool:
    """Return True if the cost of a call is known.

    `PRICES` or the price table has the price. The adapter of any other provider must report the cost itself, so the
    cost counts as known. The price table is loaded in a thread.
    """
    if model in PRICES or provider not in _PRICED_PROVIDERS:
        return True
    million = Usage(input_tokens=_MILLION, output_tokens=_MILLION)
    return (await run_in_thread(with_cost, provider, model, million)).cost > 0


def _load(name: str) -> ModuleType:
    with_cost(name, "", Usage())  # look up a price, because only a lookup loads the whole table
    return import_module(name)
