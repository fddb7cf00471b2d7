"""What a model call costs, from a table of published prices; a model that is not in it costs 0, never a guess."""

from __future__ import annotations

from typing import Final

from pointsman_schemas.events import Usage

__all__ = ["PRICES", "priced"]

PRICES: Final[dict[str, tuple[float, float]]] = {
    "claude-haiku-4-5": (1.00, 5.00),
    "claude-opus-4-5": (5.00, 25.00),
    "claude-sonnet-4-5": (3.00, 15.00),
    "gpt-4.1": (2.00, 8.00),
    "gpt-4.1-mini": (0.40, 1.60),
    "gpt-4.1-nano": (0.10, 0.40),
    "gpt-4o": (2.50, 10.00),
    "gpt-4o-mini": (0.15, 0.60),
    "gpt-5": (1.25, 10.00),
    "gpt-5-mini": (0.25, 2.00),
    "gpt-5-nano": (0.05, 0.40),
}
"""US dollars for a million input and output tokens, without discounts for caching or batches: list prices of 2025.
Prices change, and so may this: `PRICES["my-model"] = (1.0, 2.0)`."""

_MILLION = 1_000_000


def priced(model: str, usage: Usage) -> Usage:
    """`usage` with its cost. A dated name, such as `gpt-4.1-2025-04-14`, costs what its undated one does."""
    price = PRICES.get(model) or PRICES.get(_undated(model))
    if price is None:
        return usage
    cost = (usage.input_tokens * price[0] + usage.output_tokens * price[1]) / _MILLION
    return usage.model_copy(update={"cost": cost})


def _undated(model: str) -> str:
    """The name up to its date: `-2025-04-14` at OpenAI, `-20251001` at Anthropic."""
    head, _, tail = model.partition("-20")
    return head if tail.replace("-", "").isdecimal() and len(tail.replace("-", "")) == 6 else model
