"""The caller of a request: its name, the teams it may use, and its limits."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict, Field

from pointsman.gateway.problems import ProblemError
from pointsman.settings import Settings

__all__ = ["LOCAL_CALLER", "Caller", "CallerLimits"]

LOCAL_CALLER = "local"
"""The name of the caller on loopback that sends no key."""


class CallerLimits(BaseModel):
    """The limits of a caller. None stands for the default of the gateway."""

    model_config = ConfigDict(frozen=True)

    requests_per_minute: int | None = Field(default=None, ge=1, description="Requests in a minute at one gateway.")
    running: int | None = Field(default=None, ge=1, description="Running workflows.")
    daily_calls: int | None = Field(default=None, ge=0, description="Model calls of workflows in a day (UTC).")
    daily_tokens: int | None = Field(default=None, ge=0, description="Tokens of workflows in a day (UTC).")
    daily_cost: float | None = Field(default=None, ge=0, description="Cost of workflows in a day (UTC), in US dollars.")

    def over(self, settings: Settings) -> CallerLimits:
        """Return the limits with the defaults of the settings in place of None.

        Args:
            settings: The settings.
        """
        return CallerLimits(
            requests_per_minute=self.requests_per_minute or settings.gateway_requests_per_minute,
            running=self.running or settings.gateway_running,
            daily_calls=settings.gateway_daily_calls if self.daily_calls is None else self.daily_calls,
            daily_tokens=settings.gateway_daily_tokens if self.daily_tokens is None else self.daily_tokens,
            daily_cost=settings.gateway_daily_cost if self.daily_cost is None else self.daily_cost,
        )


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request.

    Attributes:
        name: The name, a token of a subject.
        teams: The teams that the caller may use; None for all teams.
        operator: True if the caller may see all workflows and the dead letters.
        limits: The limits, with the defaults of the gateway.
    """

    name: str
    teams: Collection[str] | None = None
    operator: bool = False
    limits: CallerLimits = field(default_factory=CallerLimits)

    def may_use(self, team: str) -> bool:
        """Return True if the caller may use a team.

        Args:
            team: The team.
        """
        return self.teams is None or team in self.teams

    def require_team(self, team: str) -> None:
        """Refuse a team that the caller may not use.

        Args:
            team: The team.

        Raises:
            ProblemError: The caller may not use the team.
        """
        if not self.may_use(team):
            raise ProblemError(
                403, "team_not_allowed", f"{self.name} may not use the team {team!r}; ask for a key with this team"
            )

    def require_operator(self) -> None:
        """Refuse a caller that is no operator.

        Raises:
            ProblemError: The caller is no operator.
        """
        if not self.operator:
            raise ProblemError(
                403, "operator_only", f"{self.name} is no operator; use a key that was made with --operator"
            )
