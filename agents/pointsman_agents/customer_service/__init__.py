"""A customer-service team of billing, technical and account agents. Their tools use a back office with sample data."""

from __future__ import annotations

from pointsman_agents.customer_service.team import SAMPLE_REQUEST, team

__all__ = ["SAMPLE_REQUEST", "team"]
