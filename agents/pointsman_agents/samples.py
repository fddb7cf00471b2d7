"""Define helpers that the shipped teams share. The tools of these teams answer from small tables of sample data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from pointsman import TaskError
from pointsman.llm.offline.keyword_matching import MatchEntry, Matcher

__all__ = ["USE_TOOLS", "best_entries", "format_dollars", "look_up_entry"]

ValueT = TypeVar("ValueT")

USE_TOOLS: Final = (
    "Use your tools before you answer. Say only what they say, in two to four sentences, with names, ids, amounts and "
    "dates exactly as they give them."
)
"""Instructions that the specialists of the shipped teams have in common."""


def look_up_entry(table: Mapping[str, ValueT], key: str, what: str) -> ValueT:
    """Return the entry of `table` under `key`.

    Args:
        table: The sample data.
        key: The key that a model passed to a tool.
        what: The kind of entry for the error message, such as "patient".

    Returns:
        The entry.

    Raises:
        TaskError: The table has no such key. The message lists the keys.
    """
    if key not in table:
        raise TaskError(f"there is no {what} {key}; there are {', '.join(table)}")
    return table[key]


def best_entries(entries: Sequence[str], question: str, *, least: float) -> list[str]:
    """Return the entries that match `question` best.

    Args:
        entries: Texts of the form "Title: text".
        question: The text that the entries are compared with.
        least: The smallest accepted score of a match, from 0 to 1. A match with a lower score may be accidental.

    Returns:
        The best entries. There are several if they match equally well, and none if the best score is below `least`.
    """
    scores = Matcher([MatchEntry(entry, entry.partition(":")[0], entry) for entry in entries]).scores(question)
    best = max(scores.values())
    return [entry for entry in entries if best >= least and scores[entry] == best]


def format_dollars(cents: int) -> str:
    """Format an amount of US cents in dollars."""
    return f"${cents / 100:,.2f}"
