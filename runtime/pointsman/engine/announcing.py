"""A team's card, kept in the registry while its supervisor runs: other teams know then that they may hand it work."""

from __future__ import annotations

from datetime import datetime

from pointsman.errors import BusUnavailable
from pointsman.ports import Bus, Clock
from pointsman.telemetry import get_logger
from pointsman_schemas.card import AgentCard
from pointsman_schemas.team import Team

__all__ = ["keep_announced", "team_card"]

_log = get_logger(__name__)

_AGAIN = 0.1  # seconds before a card that was not taken is announced again; the try itself waits for the broker


def team_card(team: Team, started: datetime, instance: str) -> AgentCard:
    """The team as an agent of others."""
    return AgentCard(
        name=team.name,
        description=team.description or f"The team {team.name}",
        skills=team.skills,
        timeout=team.limits.deadline,
        team=True,
        instance=instance,
        started_at=started,
    )


async def keep_announced(bus: Bus, card: AgentCard, heartbeat: float, clock: Clock) -> None:
    """Announce `card` until cancelled."""
    silent = False
    while True:
        try:
            await bus.registry.announce(card)
            silent = False
        except BusUnavailable as error:
            if not silent:
                _log.warning("card_not_announced", error=str(error), hint="it is tried again")
            silent = True
        await clock.sleep(_AGAIN if silent else heartbeat)
