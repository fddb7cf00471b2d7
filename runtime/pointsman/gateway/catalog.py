"""Describe the live agents and teams with their schemas."""

from __future__ import annotations

import asyncio
from difflib import get_close_matches
from time import monotonic
from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from pointsman.engine.process.agent_versions import group_by_name
from pointsman.errors import NotFoundError, PointsmanError
from pointsman.gateway.callers import Caller
from pointsman.gateway.context import CallerArg, Context, ContextArg
from pointsman.gateway.models import AgentView, TeamView, agent_views
from pointsman.gateway.problems import problems
from pointsman.telemetry import get_logger
from pointsman_schemas.ids import TOKEN_PATTERN

__all__ = ["is_known_team", "log_unserved", "router", "teams_of", "unserved_warning"]

_log = get_logger(__name__)

router = APIRouter(prefix="/v1", tags=["catalog"])

_RESTART_S = 3.0  # seconds to wait for a supervisor of a team without a recent workflow
_POLL_INTERVAL_S = 0.1


class AgentPage(BaseModel):
    """The live agents."""

    agents: list[AgentView] = Field(description="The agents, sorted by name.")


class TeamPage(BaseModel):
    """The teams that the caller may use."""

    teams: list[TeamView] = Field(description="The teams, sorted by name.")


@router.get("/agents", summary="List agents", responses=problems())
async def list_agents(context: ContextArg, caller: CallerArg) -> AgentPage:
    """List the live agents. A caller that may only use some teams gets an empty list."""
    cards = await context.client.operations.agents() if caller.teams is None else []
    return AgentPage(agents=agent_views(list(cards)))


@router.get("/teams", summary="List teams", responses=problems())
async def list_teams(context: ContextArg, caller: CallerArg) -> TeamPage:
    """List the teams with a live supervisor that you may use."""
    return TeamPage(teams=await teams_of(context, caller))


@router.get("/teams/{name}", summary="Read a team", responses=problems(404))
async def get_team(
    name: Annotated[str, Path(pattern=TOKEN_PATTERN, description="The name of the team.")],
    context: ContextArg,
    caller: CallerArg,
) -> TeamView:
    """Read a team with its schemas."""
    for team in await teams_of(context, caller):
        if team.name == name:
            return team
    raise NotFoundError(
        f"there is no team {name!r} with a live supervisor that you may use; GET /v1/teams lists these teams"
    )


async def teams_of(context: Context, caller: Caller) -> list[TeamView]:
    """Return the live teams that a caller may use.

    Args:
        context: The parts of the gateway.
        caller: The caller.

    Returns:
        The teams, sorted by name.
    """
    by_name = group_by_name(card for card in await context.client.operations.teams() if caller.may_use(card.name))
    return [
        TeamView(
            name=name,
            description=found[0].description,
            skills=list(found[0].skills),
            examples=list(found[0].examples),
            version=found[0].version,
            supervisors=len(found),
            input_schema=dict(found[0].input_schema),
            output_schema=dict(found[0].output_schema),
        )
        for name, found in sorted(by_name.items())
    ]


async def is_known_team(context: Context, team: str) -> bool:
    """Return True for a team with a recent workflow or a live supervisor.

    If the team has neither, wait up to 3 s, because its supervisor may be restarting.

    Args:
        context: The parts of the gateway.
        team: The team.
    """
    until = monotonic() + _RESTART_S
    while team not in context.index.teams:
        if any(card.name == team for card in await context.client.operations.teams()):
            return True
        if monotonic() >= until:
            return False
        await asyncio.sleep(_POLL_INTERVAL_S)
    return True


async def unserved_warning(context: Context, caller: Caller, team: str) -> str | None:
    """Return a warning for a caller if the team of a stored request has no live supervisor and no known workflow.

    Such a team may be a misspelt name.

    Args:
        context: The parts of the gateway.
        caller: The caller.
        team: The team of the request.

    Returns:
        The warning, with the most similar name of a known team. None if the team is known.
    """
    if team in context.index.teams:
        return None
    try:
        live = {card.name for card in await context.client.operations.teams()}
    except PointsmanError:  # the request is stored, so the answer must not be an error
        return None
    if team in live:
        return None
    usable = [name for name in live | set(context.index.teams) if caller.may_use(name)]
    similar = get_close_matches(team, sorted(usable), 1)
    meant = f"; did you mean {similar[0]}?" if similar else "."
    return (
        f"the team {team!r} has no live supervisor and no known workflow{meant} The request waits until a supervisor "
        f"of the team {team!r} starts; GET /v1/teams lists the teams that have a live supervisor"
    )


async def log_unserved(context: Context, caller: Caller, team: str) -> None:
    """Log the warning of `unserved_warning`. A system that delivers events does not read a warning in the answer.

    Args:
        context: The parts of the gateway.
        caller: The caller.
        team: The team of the request.
    """
    if (warning := await unserved_warning(context, caller, team)) is not None:
        _log.warning("team_unserved", caller=caller.name, team=team, hint=warning)
