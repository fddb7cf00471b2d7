"""Score texts against descriptions without a model. The score counts shared stems, and rare stems count more.

A word matches only if a description contains it, so descriptions must contain synonyms themselves. This module has only
two lists: words to ignore, and word endings to remove.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["MATCH_THRESHOLD", "MatchEntry", "Matcher", "clauses", "stems"]

MATCH_THRESHOLD: Final = 0.2
"""Smallest score of a match. If all words have equal weight, a description matches if it contains at least a fifth of
the words of the text."""

_STOP_WORDS_TEXT = """
a about after again all also am an and any anything are aren as ask at be because been before being but by can cannot
could couldn did do does doesn doing don each else few for from get gets give got had has hasn have haven he hello help
her hers hey hi him his how i if in into is isn it its just kindly know let like ll m make may me might mine my need no
not now of off on once one only or other our out over own per please re s same see she should so some something still
such t than thank thanks that the their them then there these they this those though to today too under until up us use
ve very want was wasn way we were what when where which while who why will with without won would wouldn yesterday you
your yours back ever even really since tell urgent user customer agent task work works id ids lot lots much many more
most several enough less least long often both either neither nor none nothing nobody someone somebody anyone anybody
everyone everybody everything shall must been whose whom another always already soon later around show find look looks
suggest suggests ca wo
"""
"""Words that are ignored, because they occur in requests on every subject."""
_STOP_WORDS = frozenset(_STOP_WORDS_TEXT.split())

_SUFFIXES = (
    *("ations", "ation", "ments", "ment", "ings", "ing", "ers", "ies", "ied", "ed", "er", "es", "ly"),
    *("s", "e", "y"),
)
_MIN_STEM_CHARS = 3  # smallest number of letters of a stem, so "red" and "used" do not lose their ending
_WORD = re.compile(r"[a-z0-9]+")
_ID = re.compile(r"\b[A-Za-z]{1,5}[-_]\d+\b")

_SENTENCE = re.compile(r"(?<=[.!?;])\s+|\n+|(?<=[?!;])")
_SOFT_BREAK = re.compile(
    r",\s+(?:(?:and|but|also|then)\s+)*|\s+(?:and|but|then|plus)(?:\s+(?:also|then))?\s+", re.IGNORECASE
)


def stems(text: str) -> tuple[str, ...]:
    """Return the distinct stems of a text's meaningful words, in order, without ids such as `C-1001`."""
    words = _WORD.findall(_ID.sub(" ", text.lower().replace("n't", " ")))
    return tuple(dict.fromkeys(_stem(word) for word in words if word not in _STOP_WORDS and (len(word) > 1)))


def clauses(text: str) -> tuple[str, ...]:
    """Return the parts of a text that could be for different agents: its sentences, split at commas and `and`."""
    parts = (
        part.strip(" \t.,;!") for sentence in _SENTENCE.split(text) for part in _SOFT_BREAK.split(sentence) if part
    )
    return tuple(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class MatchEntry:
    """An agent or a tool that can be chosen.

    Attributes:
        name: The name.
        keywords: The most important words about the entry, such as its name and its skills.
        text: The description of the entry.
        examples: Example requests for the entry. They also contain words that do not describe the entry.
    """

    name: str
    keywords: str
    text: str
    examples: str = ""


class Matcher:
    """Scores texts against a list of entries. A stem that few entries contain counts more than a common stem."""

    KEYWORD_WEIGHT = 1.5
    """Factor for a word in the keywords of an entry, compared with a word in its text."""
    EXAMPLE_WEIGHT = 0.5
    """Factor for a word that only an example request contains. Not each word of an example describes the entry:
    "May I send more requests?" is not about sending."""

    def __init__(self, menu: Sequence[MatchEntry]) -> None:
        self._weights: dict[str, Mapping[str, float]] = {
            item.name: dict.fromkeys(stems(item.examples), self.EXAMPLE_WEIGHT)
            | dict.fromkeys(stems(item.text), 1.0)
            | dict.fromkeys(stems(_split_name(item.keywords)), self.KEYWORD_WEIGHT)
            for item in menu
        }
        self._rare = math.log1p(len(menu))
        self._idf = {
            stem: math.log1p(len(menu) / sum(stem in words for words in self._weights.values()))
            for words in self._weights.values()
            for stem in words
        }

    def scores(self, text: str) -> dict[str, float]:
        """Return the score of each entry by name: the share of the text that the entry covers, from 0 to 1.

        The best entry is first. Entries with equal scores are sorted by name.
        """
        wanted = stems(text)
        whole = sum(self._idf.get(stem, self._rare) for stem in wanted)
        found = {
            name: min(1.0, sum(self._idf[stem] * words[stem] for stem in wanted if stem in words) / whole)
            if whole
            else 0.0
            for name, words in self._weights.items()
        }
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))

    def cover(self, text: str, least: float) -> tuple[str, ...]:
        """Return the names of entries that together cover a text, the best first.

        Each further entry must cover a part of the text that no earlier entry covers. `least` is the smallest such
        part, as a share of the whole text.
        """
        chosen: list[str] = []
        rest = dict.fromkeys(stems(text))
        whole = sum(self._idf.get(stem, self._rare) for stem in rest)
        while rest and whole:
            added = {
                name: sum(self._idf[stem] * words[stem] for stem in rest if stem in words) / whole
                for name, words in self._weights.items()
                if name not in chosen
            }
            best = min(added, key=lambda name: (-added[name], name), default=None)
            if best is None or added[best] <= 0 or (chosen and added[best] < least):
                break
            chosen.append(best)
            rest = {stem: None for stem in rest if stem not in self._weights[best]}
        return tuple(chosen)


def _split_name(name: str) -> str:
    return re.sub(r"[_-]", " ", name)


def _stem(word: str) -> str:
    if word.isdecimal():
        return word
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= _MIN_STEM_CHARS:
            word = word[: -len(suffix)]
            break
    if word[-1] in "ey" and len(word) > _MIN_STEM_CHARS:
        word = word[:-1]
    if len(word) > _MIN_STEM_CHARS and word[-1] == word[-2]:
        word = word[:-1]
    return word
