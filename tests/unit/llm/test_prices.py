"""Prices of model calls come from the SDK's table or from the user's table."""

from __future__ import annotations

import sys
import threading

import pytest

from pointsman.llm.prices import PRICES, load_sdk, with_cost, with_known_cost
from pointsman_schemas.events import Usage


def test_dated_model_has_the_price_of_the_undated_one() -> None:
    usage = Usage(calls=1, input_tokens=1_000_000, output_tokens=1_000_000)

    assert with_cost("openai", "gpt-4.1", usage).cost > 0
    assert with_cost("openai", "gpt-4.1-2025-04-14", usage).cost == with_cost("openai", "gpt-4.1", usage).cost
    assert with_cost("anthropic", "claude-haiku-4-5-20251001", usage).cost > 0
    assert with_cost("openai", "mine", usage).cost == with_cost("anthropic", "gpt-4.1", usage).cost == 0.0
    read, written = Usage(input_tokens=1_000_000), Usage(output_tokens=1_000_000)
    assert 0 < with_cost("openai", "gpt-4.1", read).cost < with_cost("openai", "gpt-4.1", written).cost


def test_an_own_price_takes_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRICES, "gpt-4.1", (1.0, 2.0))

    usage = with_cost("openai", "gpt-4.1", Usage(calls=1, input_tokens=1_000_000, output_tokens=500_000))

    assert usage.cost == 2.0


def test_immediate_price_loads_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRICES, "mine", (1.0, 2.0))
    monkeypatch.delitem(sys.modules, "genai_prices", raising=False)
    usage = Usage(calls=1, input_tokens=1_000_000, output_tokens=500_000)

    own, known = (with_known_cost("openai", name, usage).cost for name in ("mine", "gpt-4.1"))

    assert (own, known, "genai_prices" in sys.modules) == (2.0, 0.0, False)


async def test_an_sdk_and_the_price_table_are_loaded_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[tuple[str, bool]] = []

    def load(name: str, *_: object) -> str:
        loaded.append((name, threading.current_thread() is threading.main_thread()))
        return name

    monkeypatch.setattr("pointsman.llm.prices.with_cost", load)
    monkeypatch.setattr("pointsman.llm.prices.import_module", load)

    assert await load_sdk("openai") == "openai"  # type: ignore[comparison-overlap]
    assert loaded == [("openai", False)] * 2
