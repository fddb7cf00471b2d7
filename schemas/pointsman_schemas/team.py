"""A team: which agents a supervisor may use, where its plans come from, and what ends its workflows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, assert_never

from pydantic import BaseModel, Field, field_validator
from pydantic_core import PydanticCustomError

from pointsman_schemas.base import Frozen, Options
from pointsman_schemas.ids import AgentName, TeamName, is_token
from pointsman_schemas.strategies import (
    Adaptive,
    Check,
    Choreography,
    FanOut,
    Pipeline,
    Router,
    Stage,
    Strategy,
    Supervisor,
)

__all__ = [
    "ANY",
    "Adaptive",
    "Check",
    "Choreography",
    "FanOut",
    "Limits",
    "Pipeline",
    "Router",
    "Stage",
    "Strategy",
    "Supervisor",
    "Team",
]

ANY: Literal["*"] = "*"
"""Every live agent whose role is `work` and that is not a team: a team is used where it is named."""


class Limits(Options, Frozen):
    """What ends a workflow. Times are in seconds; None is without a bound.

    `attempts` is per task, and its fallback agent gets one more; `backoff` is the pause before the first retry and
    doubles with each; `approval` is how long a person's answer is waited for, which does not count against the
    deadline; `depth` is the longest chain of dependencies, `nesting` how many teams may be above one; `replans`
    counts plans made again after a failure or a hint, `plan_repairs` refused plans sent back. `tasks` of plans,
    `replans`, `calls` of models, `tokens` and `cost`, in US dollars, bound the workflow and all that the teams below it
    do for it, whatever their own limits; each attempt gets a share when it starts.
    """

    deadline: Annotated[float, Field(gt=0)] = 600.0
    task_timeout: Annotated[float, Field(gt=0)] = 120.0
    attempts: Annotated[int, Field(ge=1, le=20)] = 3
    backoff: Annotated[float, Field(gt=0)] = 1.0
    approval: Annotated[float, Field(gt=0, le=2_592_000)] = 86_400.0
    tasks: Annotated[int, Field(ge=1)] = 1_000
    depth: Annotated[int, Field(ge=1)] = 100
    nesting: Annotated[int, Field(ge=0, le=20)] = 5
    replans: Annotated[int, Field(ge=0)] = 0
    plan_repairs: Annotated[int, Field(ge=0)] = 2
    calls: int | None = None
    tokens: int | None = None
    cost: float | None = None


class Team(Options, Frozen):
    """A supervisor's configuration. `agents` is a list of names, of agents or teams, or `ANY` for every live agent.

    A team is an agent, too: `description` and `skills` are what the planners of other teams know of it. With
    `approve_plan` a person must allow each plan before any of it runs. Where an agent named `refiner` is alive it
    rewrites a task that has failed twice, and one named `judge` decides between results that contradict each other.
    """

    name: TeamName
    description: str = ""
    skills: tuple[str, ...] = ()
    agents: Literal["*"] | tuple[AgentName, ...] = ANY
    strategy: Strategy = Supervisor()
    limits: Limits = Limits()
    approve_plan: bool = False
    refiner: AgentName | None = "refiner"
    judge: AgentName | None = "judge"

    @field_validator("agents", mode="before")
    @classmethod
    def _of_names(cls, given: object) -> object:
        """One error for what is neither ANY nor a list of names, where the union would tell one for each."""
        if given == ANY or (isinstance(given, list | tuple | set | frozenset) and all(map(is_token, given))):
            return given
        expected = "a list of names is expected, each of 1 to 64 letters, digits, - and _, or ANY"
        raise PydanticCustomError("names", expected)

    @field_validator("strategy", mode="before")
    @classmethod
    def _made(cls, given: object) -> object:
        if isinstance(given, BaseModel | Mapping):
            return given
        raise PydanticCustomError("strategy", "a strategy is expected, such as Supervisor()")

    def needs(self) -> Mapping[AgentName, str]:
        """The agents it names, each with what it does: `works`, `plans`, `classifies`, `synthesizes` or `judges`."""
        strategy, named = self.strategy, () if self.agents == ANY else self.agents
        roles: list[tuple[AgentName | None, str]]
        match strategy:
            case Supervisor() | Adaptive():
                roles = [(strategy.planner, "plans"), (strategy.synthesizer, "synthesizes")]
                if isinstance(strategy, Supervisor):
                    roles.append((strategy.fallback, "works"))
            case Router():
                roles = [(strategy.classifier, "classifies"), (strategy.fallback, "works")]
                if strategy.escalate is not None:
                    roles.append((strategy.escalate.planner, "plans"))
                roles.append((strategy.synthesizer, "synthesizes"))
            case Pipeline():
                roles = [(stage.check.judge, "judges") for stage in strategy.stages]
                roles += [(stage.agent, "works") for stage in strategy.stages]
            case FanOut() | Choreography():
                roles = [(strategy.synthesizer, "synthesizes")]
            case _:
                assert_never(strategy)
        return {**dict.fromkeys(named, "works"), **{name: what for name, what in roles if name is not None}}

    def needs_skills(self) -> tuple[str, ...]:
        """The skills it asks for: each must be had by a live agent that the team may use."""
        match self.strategy:
            case Pipeline(stages=stages):
                return tuple(dict.fromkeys(stage.skill for stage in stages if stage.skill))
            case FanOut(skills=skills):
                return tuple(dict.fromkeys(skills))
            case _:
                return ()
