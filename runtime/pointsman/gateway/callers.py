"""The caller of a request: its name, the teams it may use, and its limits."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from pointsman.gateway.problems import ProblemError
from pointsman.index.callers import CallerLimits

__all__ = ["LOCAL_CALLER", "Caller"]

LOCAL_CALLER = "local"
"""The name of a caller on loopback that sends no key."""


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
                403, "team_not_allowed", f"{self.name} may not use the team {team!r}; use a key that may use this team"
            )

    def require_operator(self) -> None:
        """Refuse a caller that is not an operator.

        Raises:
            ProblemError: The caller is not an operator.
        """
        if not self.operator:
            raise ProblemError(
                403, "operator_only", f"{self.name} is not an operator; use a key that was made with --operator"
            )
