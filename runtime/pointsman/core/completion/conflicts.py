"""Where results contradict each other, as far as it shows in data: fields of one name with different short values.

Prose is for the synthesizer to compare; what is said here holds without a model.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import JsonValue

__all__ = ["find_conflicts"]

_MAX_VALUE_CHARS = 60
"""Characters up to which a text is a verdict rather than prose: two agents never write a sentence alike."""
_PER_AGENT_FIELDS = frozenset({"confidence", "summary"})
"""Fields that tell of an agent itself: how sure it is, and how it puts it. In these two may differ and still agree."""


def find_conflicts(outputs: Mapping[str, JsonValue]) -> tuple[str, ...]:
    """One sentence for each field that at least two of `outputs`, by the tasks they are of, fill differently, such as
    `verdict: legal says yes; risk says no`."""
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
            return f"{value:.10g}"
        case str() if 0 < len(value.strip()) <= _MAX_VALUE_CHARS:
            return value.strip()
        case _:
            return None
