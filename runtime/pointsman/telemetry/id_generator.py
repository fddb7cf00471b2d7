"""Ids are chosen before the SDK makes the span that has them: it asks here for those that it would draw."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

__all__ = ["ChosenIds", "chosen_ids"]

chosen_ids: ContextVar[tuple[int | None, int] | None] = ContextVar("pointsman_chosen_ids", default=None)
"""Of the span being made: its trace id, None where that is its parent's, and its own."""


class ChosenIds:
    """An SDK id generator that gives out the ids chosen for the span being made, and else those of `ids`."""

    def __init__(self, ids: Any) -> None:
        self._ids = ids

    def generate_trace_id(self) -> int:
        chosen = chosen_ids.get()
        trace_id = chosen[0] if chosen else None
        return int(self._ids.generate_trace_id()) if trace_id is None else trace_id

    def generate_span_id(self) -> int:
        chosen = chosen_ids.get()
        return int(self._ids.generate_span_id()) if chosen is None else chosen[1]

    def is_trace_id_random(self) -> bool:
        return bool(getattr(self._ids, "is_trace_id_random", bool)())
