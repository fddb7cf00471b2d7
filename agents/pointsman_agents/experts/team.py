"""The team of experts, and a question for one expert."""

from __future__ import annotations

from typing import Final

from pointsman import Limits, Router, Team

__all__ = ["SAMPLE_REQUEST", "team"]

SAMPLE_REQUEST: Final = "How long is the notice period when I terminate a lease?"

team = Team(
    name="experts",
    description="Answers questions of law, medicine, technology and finance from its notes",
    agents=("legal", "medical", "technical", "financial"),
    strategy=Router(fallback="technical"),
    limits=Limits(deadline=60.0, task_timeout=30.0, tokens=50_000),
)
