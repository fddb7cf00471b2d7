"""Entries of reference works, "Title: what it says", and which of them fit a question."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.llm.matching import Described, Matcher

__all__ = ["fitting"]


def fitting(entries: Sequence[str], question: str, *, least: float) -> list[str]:
    """The entries that fit `question` best, several when they do so equally well. None when even the best says less
    than the share `least` of what the question means: fewer words in common are chance."""
    scores = Matcher([Described(entry, entry.partition(":")[0], entry) for entry in entries]).scores(question)
    best = max(scores.values())
    return [entry for entry in entries if best >= least and scores[entry] == best]
