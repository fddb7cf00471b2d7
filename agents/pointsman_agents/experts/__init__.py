"""Four experts, each with its own notes, and a router that sends a question to one expert."""

from __future__ import annotations

from pointsman_agents.classifier import classifier
from pointsman_agents.experts.agents import financial, legal, medical, technical
from pointsman_agents.experts.team import SAMPLE_REQUEST, team

__all__ = ["SAMPLE_REQUEST", "classifier", "financial", "legal", "medical", "team", "technical"]
