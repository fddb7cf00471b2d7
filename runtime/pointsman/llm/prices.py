"""What a model call costs, by the published prices that genai-prices keeps; an unknown model costs 0, never a guess."""

from __future__ import annotations

from typing import Final

from pointsman_schemas.events import Usage

__all__ = ["PRICES", "priced"]

PRICES: Final[dict[str, tuple[float, float]]] = {}
"""Your own prices, which come first: US dollars for a million input and output tokens, by model name, such as
`PRICES["my-model"] = (1.0, 2.0)` for a model you host or a rate you negotiated."""

_MILLION = 1_000_000


def priced(provider: str, model: str, usage: Usage) -> Usage:
    """`usage` with its cost in US dollars, without discounts for caching or batches."""
    if own := PRICES.get(model):
        cost = (usage.input_tokens * own[0] + usage.output_tokens * own[1]) / _MILLION
        return usage.model_copy(update={"cost": cost})
    import genai_prices  # its table takes a while to load, and only calls that cost something need it

    tokens = genai_prices.Usage(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)
    try:
        price = genai_prices.calc_price(tokens, model_ref=model, provider_id=provider)
    except LookupError:
        return usage
    return usage.model_copy(update={"cost": float(price.total_price)})
