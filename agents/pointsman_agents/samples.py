"""What the shipped teams share: each answers from small tables of sample data, by tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from pointsman.errors import NotFound
from pointsman.llm.matching import Described, Matcher

__all__ = ["USE_TOOLS", "fitting", "known", "money"]

ValueT = TypeVar("ValueT")

USE_TOOLS: Final = (
    "Use your tools before you answer. Say only what they say, in two to four sentences, with names, ids, amounts and "
    "dates exactly as they give them."
)
"""What every specialist is told, before what is its own."""


def known(table: Mapping[str, ValueT], key: str, what: str) -> ValueT:
    """What stands in `table` under `key`. Raises `NotFound`, with what there is, when nothing does."""
    if key not in table:
        raise NotFound(f"there is no {what} {key}; there are {', '.join(table)}")
    return table[key]


def fitting(entries: Sequence[str], question: str, *, least: float) -> list[str]:
    """The entries, "Title: what it says", that fit `question` best, several when they do so equally well. None when
    even the best says less than the share `least` of what the question means: fewer words in common are chance."""
    scores = Matcher([Described(entry, entry.partition(":")[0], entry) for entry in entries]).scores(question)
    best = max(scores.values())
    return [entry for entry in entries if best >= least and scores[entry] == best]


def money(cents: int) -> str:
    """An amount in dollars, from its cents."""
    return f"${cents / 100:,.2f}"
