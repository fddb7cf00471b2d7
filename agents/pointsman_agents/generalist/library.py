"""Define a few topics as sample data, each with facts and a piece of code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pointsman.llm.offline.keyword_matching import stems

__all__ = ["TOPICS", "Topic", "topic_of"]


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic, with facts and a piece of code. Each fact is one sentence."""

    facts: tuple[str, ...]
    code: str


TOPICS: Final = {
    "AI trends": Topic(
        (
            "Agents that plan, call tools and check what came of it take over from single prompts.",
            "Small models on a laptop do what needed a data centre before.",
            "Structured output by JSON Schema lets programs use what a model says.",
        ),
        'reply = {"city": "Northwind", "degrees": 21}\nassert {"city", "degrees"} <= reply.keys()\n',
    ),
    "event streaming": Topic(
        (
            "A log of events is kept, and whoever comes late reads it from the start.",
            "Consumers acknowledge what they have done, so nothing is lost when one of them dies.",
        ),
        'log = ["placed", "paid"]\nfor position, event in enumerate(log, 1):\n    print(position, event)\n',
    ),
    "sorting algorithms": Topic(
        (
            "Merge sort is stable and never slower than n log n.",
            "Timsort finds runs that are in order already and merges them.",
        ),
        'words = sorted(["pear", "fig"], key=len)\nassert words == ["fig", "pear"]\n',
    ),
}


def topic_of(question: str) -> str | None:
    """Return the topic that `question` names, or None.

    `question` names a topic if at least half of the topic's words are in `question`. Of several topics, the topic with
    the largest share of its words is returned.
    """
    asked = set(stems(question))
    shares = {name: len(asked & set(stems(name))) / len(stems(name)) for name in TOPICS}
    best = max(shares, key=lambda name: shares[name])
    return best if shares[best] >= 0.5 else None
