"""Define the generalist team, and a request in which two parts depend on the third part."""

from __future__ import annotations

from typing import Final

from pointsman import Limits, PlanAndExecute, Team

__all__ = ["SAMPLE_REQUEST", "team"]

SAMPLE_REQUEST: Final = "Research the latest AI trends and write a blog post with code examples"

team = Team(
    name="generalist",
    description="Researches a topic, writes about it, and shows code",
    skills=("research", "writing", "programming"),
    agents=("research", "writing", "code"),
    strategy=PlanAndExecute(instructions="Writing needs research. Code needs research."),
    limits=Limits(deadline=180.0, task_timeout=60.0, tokens=100_000),
)
