"""A team: which agents a supervisor may use, where its plans come from, and what ends its workflows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, assert_never

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from pointsman_schemas.ids import AgentName, TeamName

__all__ = ["ANY", "Limits", "Router", "Strategy", "Supervisor", "Team"]

ANY: Literal["*"] = "*"
"""Every live agent whose role is `work`."""


class Limits(BaseModel):
    """What ends a workflow. Times are in seconds; None is without a bound.

    `attempts` is per task, and its fallback agent gets one more; `backoff` is the pause before the first retry and
    doubles with each; `depth` is the longest chain of dependencies; `replans` counts plans after the first,
    `plan_repairs` counts refused plans sent back.
    """

    model_config = ConfigDict(frozen=True)

    deadline: Annotated[float, Field(gt=0)] = 600.0
    task_timeout: Annotated[float, Field(gt=0)] = 120.0
    attempts: Annotated[int, Field(ge=1, le=20)] = 3
    backoff: Annotated[float, Field(gt=0)] = 1.0
    tasks: Annotated[int, Field(ge=1)] = 1_000
    depth: Annotated[int, Field(ge=1)] = 100
    replans: Annotated[int, Field(ge=0)] = 0
    plan_repairs: Annotated[int, Field(ge=0)] = 2
    calls: int | None = None
    tokens: int | None = None
    cost: float | None = None


class _Synthesized(BaseModel):
    """No synthesizer is written as null, even where fields that are None are left out: left out means the default."""

    model_config = ConfigDict(frozen=True)

    @model_serializer(mode="wrap")
    def _with_its_null(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"synthesizer": None, **written(self)}


class Supervisor(_Synthesized):
    """A planner agent writes the plan and a synthesizer the answer. With `Limits(replans=n)` it plans again when a task
    has failed for good or a result asks for it."""

    kind: Literal["supervisor"] = "supervisor"
    planner: AgentName = "planner"
    synthesizer: AgentName | None = "synthesizer"
    instructions: str = ""


class Router(_Synthesized):
    """A classifier picks agents. One above `threshold` answers by itself; several go to `escalate` or run side by side;
    none goes to `fallback`, or back to the caller as a question."""

    kind: Literal["router"] = "router"
    classifier: AgentName = "classifier"
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.4
    fallback: AgentName | None = None
    synthesizer: AgentName | None = "synthesizer"
    escalate: Supervisor | None = None


Strategy: TypeAlias = Annotated[Supervisor | Router, Field(discriminator="kind")]


class Team(BaseModel):
    """A supervisor's configuration. `agents` is a list of names, or `ANY` for every live agent."""

    model_config = ConfigDict(frozen=True)

    name: TeamName
    description: str = ""
    agents: Literal["*"] | tuple[AgentName, ...] = ANY
    strategy: Strategy = Supervisor()
    limits: Limits = Limits()

    def needs(self) -> Mapping[AgentName, str]:
        """The agents it names, each with what it does: `works`, `plans`, `classifies` or `synthesizes`."""
        strategy, named = self.strategy, () if self.agents == ANY else self.agents
        roles: list[tuple[AgentName | None, str]]
        match strategy:
            case Supervisor():
                roles = [(strategy.planner, "plans")]
            case Router():
                roles = [(strategy.classifier, "classifies"), (strategy.fallback, "works")]
                if strategy.escalate is not None:
                    roles.append((strategy.escalate.planner, "plans"))
            case _:
                assert_never(strategy)
        roles.append((strategy.synthesizer, "synthesizes"))
        return {**dict.fromkeys(named, "works"), **{name: what for name, what in roles if name is not None}}
