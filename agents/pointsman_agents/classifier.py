"""Define the classifier, which selects the agents that can serve a request, and gives a confidence for each agent."""

from __future__ import annotations

from pathlib import Path

from pointsman import ClassifierInput, LLMAgent, Role, Selection

__all__ = ["classifier"]

classifier = LLMAgent(
    name="classifier",
    description="Says which agents a request is for, and how sure it is of each",
    instructions=Path(__file__).with_suffix(".md"),
    role=Role.CLASSIFY,
    input=ClassifierInput,
    output=Selection,
    output_name="selection",
    max_tokens=2_000,
    turns=2,  # the selection, and one repair if its JSON is not valid
    concurrency=32,
)
