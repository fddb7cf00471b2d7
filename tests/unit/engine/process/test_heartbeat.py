"""A process announces only cards that the registry accepts."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from support.factory import echo

from pointsman.authoring.agent import agent
from pointsman.bus.memory.bus import MemoryBus
from pointsman.engine.process.heartbeat import checked_card, team_card
from pointsman.engine.worker.engine import Worker
from pointsman.errors import ConfigurationError
from pointsman.settings import Settings
from pointsman_schemas.card import AgentCard
from pointsman_schemas.team import Team


@agent(name="large", description="x" * 70_000)
async def large(request: str) -> str:
    return request


def test_worker_with_a_card_that_is_too_large_does_not_start() -> None:
    with pytest.raises(ConfigurationError, match=r"the card of large cannot be announced: .*; shorten its description"):
        Worker(MemoryBus(), [echo("a"), large], Settings())


def test_team_with_a_card_that_is_too_large_does_not_start() -> None:
    team = Team(name="crew", description="x" * 70_000)

    with pytest.raises(ConfigurationError, match="the card of crew cannot be announced"):
        team_card(team, datetime(2026, 1, 1, tzinfo=UTC), "s1")


def test_card_with_a_schema_that_was_not_checked_is_refused() -> None:
    card = AgentCard(name="a", description="does it", instance="i").model_copy(update={"input_schema": {"type": "int"}})

    with pytest.raises(ConfigurationError, match="not a JSON Schema: type is 'int'"):
        checked_card(card)
