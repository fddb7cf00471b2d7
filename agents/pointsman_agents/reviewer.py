"""Define the reviewer, which accepts a stage's result, requests another attempt, or stops the pipeline."""

from __future__ import annotations

from pathlib import Path

from pointsman import LLMAgent, Review, ReviewInput, Role

__all__ = ["reviewer"]

reviewer = LLMAgent(
    name="reviewer",
    description="Judges what a stage of a pipeline made, and says what is wrong with it",
    instructions=Path(__file__).with_suffix(".md"),
    role=Role.JUDGE,
    input=ReviewInput,
    output=Review,
    output_name="review",
    max_tokens=1_000,
    turns=2,  # the review, and one repair if its JSON is not valid
    concurrency=32,
)
