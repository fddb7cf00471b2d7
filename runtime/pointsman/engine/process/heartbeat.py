"""Announce cards in the registry while their agents run. A team also has a card, so other teams can hand off tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from pointsman.bus.validation import decode_card, encode_card
from pointsman.errors import BusUnavailableError, ConfigurationError, ContractError
from pointsman.ports.bus import Bus
from pointsman.ports.clock import Clock
from pointsman.telemetry import get_logger
from pointsman_schemas.card import AgentCard
from pointsman_schemas.ids import stable_digest
from pointsman_schemas.strategies import Fixed
from pointsman_schemas.strict_json import JsonValue, dump

if TYPE_CHECKING:
    from pointsman_schemas.team import Team

__all__ = ["announce_periodically", "checked_card", "team_card"]

_log = get_logger(__name__)

_RETRY_PAUSE_S = 0.1  # seconds before a refused card is announced again


def team_card(team: Team, started: datetime, instance: str) -> AgentCard:
    """Return the card of a team, which other teams see as an agent.

    The version of the card is a digest of the team's definition. The digest ignores the order of names, because the
    definition may have names in a set, and the order of a set differs between processes.
    """
    definition = team.model_copy(update={"agents": tuple(sorted(team.agents))})
    return checked_card(
        AgentCard(
            name=team.name,
            version=stable_digest(dump(definition)),
            description=team.description or f"The team {team.name}",
            skills=team.skills,
            input_schema=_input_schema(team),
            timeout=team.limits.deadline,
            team=True,
            agents=team.agents if team.agents == "*" else tuple(sorted(team.agents)),
            instance=instance,
            started_at=started,
        )
    )


def _input_schema(team: Team) -> dict[str, JsonValue]:
    return (team.strategy.input_schema or {}) if isinstance(team.strategy, Fixed) else {}


def checked_card(card: AgentCard) -> AgentCard:
    """Return `card` if the registry accepts it.

    Raises:
        ConfigurationError: The card is too large, or a field of the card is not valid, so other processes would ignore
            the card.
    """
    try:
        return decode_card(f"{card.name}.{card.instance}", encode_card(card))
    except ContractError as error:
        raise ConfigurationError(f"the card of {card.name} cannot be announced: {error}") from None


async def announce_periodically(
    bus: Bus, cards: Callable[[], Sequence[AgentCard]], heartbeat: float, clock: Clock
) -> None:
    """Announce the present `cards` again and again, until cancelled."""
    silent = False
    while True:
        try:
            for card in cards():
                await bus.registry.announce(card)
            silent = False
        except BusUnavailableError as error:
            if not silent:
                _log.warning("card_announce_failed", error=str(error), hint="the card is announced again")
            silent = True
        # While the connection is lost, `announce` itself waits for the connection. The short pause only prevents a hot
        # loop if the broker refuses an announcement at once.
        await clock.sleep(_RETRY_PAUSE_S if silent else heartbeat)
