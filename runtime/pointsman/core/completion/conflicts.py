"""Find contradictions in the data of results: fields with the same name and different short values.

A synthesizer compares the prose of results. This module compares their data, which needs no model.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import JsonValue

__all__ = ["find_conflicts"]

_MAX_VALUE_CHARS = 60
"""Longest text that is compared, in characters. A longer text is prose. Two agents never write the same prose, so a
difference is not a contradiction."""
_MAX_NUMBER = 1e308  # a greater integer cannot be formatted as a number with an exponent
_PER_AGENT_FIELDS = frozenset({"confidence", "summary"})
"""Fields that are not compared, because each agent has its own confidence and its own words for a summary."""


def find_conflicts(outputs: Mapping[str, JsonValue]) -> tuple[str, ...]:
    """Return one sentence for each field that at least two outputs fill differently.

    An example is `verdict: legal says yes; risk says no`.

    Args:
        outputs: The outputs, by task id.

    Returns:
        The sentences.
    """
    said: dict[str, dict[str, str]] = {}
    for who, output in outputs.items():
        if isinstance(output, dict):
            for field, value in output.items():
                if field not in _PER_AGENT_FIELDS and (short := _shorten(value)) is not None:
                    said.setdefault(field, {})[who] = short
    return tuple(
        f"{field}: {'; '.join(f'{who} says {what}' for who, what in values.items())}"
        for field, values in said.items()
        if len({what.casefold() for what in values.values()}) > 1
    )


def _shorten(value: JsonValue) -> str | None:
    match value:
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return f"{value:.10g}" if abs(value) < _MAX_NUMBER else str(value)[:_MAX_VALUE_CHARS]
        case str() if 0 < len(value.strip()) <= _MAX_VALUE_CHARS:
            return value.strip()
        case _:
            return None
