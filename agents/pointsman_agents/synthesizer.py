"""Define the synthesizer, which writes the answer of a workflow from the results and names the gaps."""

from __future__ import annotations

from pathlib import Path

from pointsman import LLMAgent, Role, Synthesis, SynthesizerInput

__all__ = ["synthesizer"]

synthesizer = LLMAgent(
    name="synthesizer",
    description="Writes the final answer from the results of the tasks and names what is missing",
    instructions=Path(__file__).with_suffix(".md"),
    role=Role.SYNTHESIZE,
    input=SynthesizerInput,
    output=Synthesis,
    output_name="synthesis",
    max_tokens=6_000,
    stream=True,
    turns=2,  # the answer, and one repair if its JSON is not valid
    concurrency=32,
)
