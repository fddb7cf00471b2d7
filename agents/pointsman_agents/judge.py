"""Define the judge, which decides between results that contradict each other."""

from __future__ import annotations

from pathlib import Path

from pointsman import ConflictRuling, JudgeInput, LLMAgent, Role

__all__ = ["judge"]

judge = LLMAgent(
    name="judge",
    description="Decides between results that contradict each other, and says why",
    instructions=Path(__file__).with_suffix(".md"),
    role=Role.JUDGE,
    input=JudgeInput,
    output=ConflictRuling,
    output_name="ruling",
    max_tokens=2_000,
    turns=2,  # the ruling, and one repair if its JSON is not valid
    concurrency=32,
)
