"""Define the refiner, which rewrites the intent of a task that has failed more than once."""

from __future__ import annotations

from pathlib import Path

from pointsman import LLMAgent, Refinement, RefinerInput, Role

__all__ = ["refiner"]

refiner = LLMAgent(
    name="refiner",
    description="Rewrites a task that has failed twice, knowing the error",
    instructions=Path(__file__).with_suffix(".md"),
    role=Role.REFINE,
    input=RefinerInput,
    output=Refinement,
    output_name="refinement",
    max_tokens=1_000,
    turns=2,  # the intent, and one repair if the JSON is not valid
    concurrency=32,
)
