"""The engineering team, and a request whose first plan searches in the wrong place."""

from __future__ import annotations

from typing import Final

from pointsman import Adaptive, Limits, Team

__all__ = ["SAMPLE_REQUEST", "team"]

SAMPLE_REQUEST: Final = "Find the bug in checkout, propose a fix, and draft a Slack note."

team = Team(
    name="engineering",
    description="Finds what is wrong with a service, and informs those who wait",
    skills=("bugs", "incidents"),
    agents=("code", "data", "comms", "ops"),
    strategy=Adaptive(
        max_plans=8,
        instructions="One step at a time: what the next agent is to do depends on what the last one found. A message "
        "is drafted last.",
    ),
    limits=Limits(deadline=180.0, task_timeout=60.0, tokens=100_000),
)
