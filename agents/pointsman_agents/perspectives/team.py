"""The panel as a team, and a question for the panel."""

from __future__ import annotations

from typing import Final

from pointsman import FanOut, Limits, Team

__all__ = ["SAMPLE_REQUEST", "team"]

SAMPLE_REQUEST: Final = "Should we do P-101, the move of the Pro plan to a price by usage?"

team = Team(
    name="perspectives",
    description="Looks at a proposal from several sides at once, and names where they disagree",
    skills=("proposals", "decisions"),
    agents=("finance", "demand", "operations", "risk"),
    strategy=FanOut(
        min_success_ratio=0.5, intent="Say from your own point of view whether the proposal should be done"
    ),
    limits=Limits(deadline=120.0, task_timeout=60.0, tokens=100_000),
)
