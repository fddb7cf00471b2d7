"""What a model call costs, by the published prices that genai-prices keeps; an unknown model costs 0, never a guess."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Final

from pointsman.util.environment import normalise_variables
from pointsman.util.threads import run_in_thread
from pointsman_schemas.events import Usage

__all__ = ["PRICES", "load_sdk", "with_cost", "with_known_cost"]

PRICES: Final[dict[str, tuple[float, float]]] = {}
"""Your own prices, which come first: US dollars for a million input and output tokens, by model name, such as
`PRICES["my-model"] = (1.0, 2.0)` for a model you host or a rate you negotiated."""

_MILLION = 1_000_000


async def load_sdk(name: str) -> ModuleType:
    """Load the provider's SDK and the price table in a thread: each takes seconds to load.

    The SDK reads variables by itself, so blank ones are removed first.
    """
    normalise_variables(f"{name.upper()}_")
    return await run_in_thread(_load, name)


def with_cost(provider: str, model: str, usage: Usage, asked: str = "") -> Usage:
    """`usage` with its cost in US dollars, without discounts for caching or batches. `asked` is the name `model` was
    asked for by, as providers answer with a dated one."""
    if own := PRICES.get(model) or PRICES.get(asked):
        cost = (usage.input_tokens * own[0] + usage.output_tokens * own[1]) / _MILLION
        return usage.model_copy(update={"cost": cost})
    import genai_prices  # only calls that cost something need it

    tokens = genai_prices.Usage(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)
    try:
        price = genai_prices.calc_price(tokens, model_ref=model, provider_id=provider)
    except LookupError:
        return usage
    return usage.model_copy(update={"cost": float(price.total_price)})


_PRICED_PROVIDERS: Final = frozenset({"openai", "anthropic"})


async def has_price(provider: str, model: str) -> bool:
    """Return True if the cost of a call is known: a price of one's own, a published one, or a model that reports costs.

    A model of another provider than those of the shipped adapters is one's own, and reports its costs itself. The price
    table is loaded outside of the event loop.
    """
    return model in PRICES or provider not in _PRICED_PROVIDERS or await run_in_thread(_has_price, provider, model)


def _has_price(provider: str, model: str) -> bool:
    return model in PRICES or with_cost(provider, model, Usage(input_tokens=_MILLION, output_tokens=_MILLION)).cost > 0


def with_known_cost(provider: str, model: str, usage: Usage) -> Usage:
    """As `with_cost`, where nothing has to be loaded for it. A provider's call has loaded the table with its SDK."""
    known = model in PRICES or "genai_prices" in sys.modules
    return with_cost(provider, model, usage) if known else usage


def _load(name: str) -> ModuleType:
    with_cost(name, "", Usage())  # the first look into the table loads it, not the import
    return import_module(name)
