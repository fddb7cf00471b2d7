"""List teams as models."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from pointsman.gateway.callers import Caller
from pointsman.gateway.catalog import is_known_team, teams_of
from pointsman.gateway.context import CallerArg, Context, ContextArg
from pointsman.gateway.problems import ProblemError, openai_problems
from pointsman_schemas.ids import is_token

__all__ = ["require_model", "router"]

router = APIRouter(prefix="/v1/models", tags=["openai"])


class Model(BaseModel):
    """A team as a model."""

    id: str = Field(description="The name of the team.")
    object: Literal["model"] = Field(default="model", description="Always `model`.")
    created: int = Field(default=0, description="Always 0, because a team has no time of creation.")
    owned_by: str = Field(default="pointsman", description="Always `pointsman`.")
    description: str = Field(default="", description="The requests that the team serves.")


class ModelList(BaseModel):
    """The teams that the caller may use, as models."""

    object: Literal["list"] = Field(default="list", description="Always `list`.")
    data: list[Model] = Field(description="The models.")


@router.get("", summary="List models", responses=openai_problems())
async def list_models(context: ContextArg, caller: CallerArg) -> ModelList:
    """List the teams with a live supervisor as models."""
    teams = await teams_of(context, caller)
    return ModelList(data=[Model(id=team.name, description=team.description) for team in teams])


@router.get("/{model}", summary="Read a model", responses=openai_problems(404))
async def get_model(
    model: Annotated[str, Path(min_length=1, max_length=64, description="The name of the team.")],
    context: ContextArg,
    caller: CallerArg,
) -> Model:
    """Read a team as a model."""
    team = await require_model(context, caller, model)
    described = {each.name: each.description for each in await teams_of(context, caller)}
    return Model(id=team, description=described.get(team, ""))


async def require_model(context: Context, caller: Caller, model: str) -> str:
    """Return the team of a model.

    Args:
        context: The parts of the gateway.
        caller: The caller.
        model: The name of the model.

    Returns:
        The team.

    Raises:
        ProblemError: No team of the caller has this name.
    """
    if not (is_token(model) and caller.may_use(model) and await is_known_team(context, model)):
        raise ProblemError(
            404, "model_not_found", f"the model {model[:80]!r} does not exist; GET /v1/models lists the models"
        )
    return model
