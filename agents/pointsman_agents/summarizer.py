"""Define the summarizer, which writes the summary of the older turns of a conversation."""

from __future__ import annotations

from pathlib import Path

from pointsman import LLMAgent, Role, SummarizerInput, ThreadSummary

__all__ = ["summarizer"]

summarizer = LLMAgent(
    name="summarizer",
    description="Summarizes the older turns of a conversation",
    instructions=Path(__file__).with_suffix(".md"),
    role=Role.SUMMARIZE,
    input=SummarizerInput,
    output=ThreadSummary,
    output_name="thread_summary",
    max_tokens=3_000,
    turns=2,  # the summary, and one repair if its JSON is not valid
    concurrency=32,
)
