"""A customer-service team: billing, technical and account agents with tools over a small seeded back office."""

from __future__ import annotations

from pointsman_agents.customer_service.team import SAMPLE_REQUEST, team

__all__ = ["SAMPLE_REQUEST", "team"]
