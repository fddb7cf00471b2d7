"""Define the configuration of a team: its agents, its strategy and the limits of its workflows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, assert_never

from pydantic import BaseModel, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from pointsman_schemas.base import Frozen, closest_match
from pointsman_schemas.events import MAX_DEADLINE_S
from pointsman_schemas.ids import TEAM_SEPARATOR, AgentName, TeamName, is_token, own_agent
from pointsman_schemas.plan_checks import find_graph_faults
from pointsman_schemas.retry import RetryPolicy
from pointsman_schemas.strategies import (
    Adaptive,
    Check,
    Choreography,
    FanOut,
    Fixed,
    Pipeline,
    PlanAndExecute,
    Router,
    Stage,
    Strategy,
)
from pointsman_schemas.threads import ThreadPolicy

__all__ = [
    "ANY",
    "Adaptive",
    "Check",
    "Choreography",
    "DailyLimits",
    "FanOut",
    "Fixed",
    "Limits",
    "Pipeline",
    "PlanAndExecute",
    "RetryPolicy",
    "Router",
    "Stage",
    "Strategy",
    "Team",
    "ThreadPolicy",
]

ANY: Literal["*"] = "*"
"""Every live agent with the role `work`, except teams. Another team is used only if its name is listed."""


class Limits(Frozen):
    """The limits of a workflow. A limit of None is unlimited.

    `tasks`, `replans`, `calls`, `tokens` and `cost` are limits on the workflow and its child workflows together, even
    if the teams of the child workflows have higher limits. When an attempt starts, it reserves a share of the unused
    part. So the used and the reserved amounts together stay within a limit.
    """

    deadline: float = Field(
        default=600.0, strict=True, ge=0.001, le=MAX_DEADLINE_S, description="Time limit of a workflow, in seconds."
    )
    task_timeout: float = Field(
        default=120.0, strict=True, ge=0.001, le=MAX_DEADLINE_S, description="Time limit of an attempt, in seconds."
    )
    answer_timeout: float = Field(
        default=86_400.0,
        strict=True,
        ge=0.001,
        le=MAX_DEADLINE_S,
        description="Seconds until a question to a person expires. The wait for an answer does not count "
        "against the deadline.",
    )
    questions: int = Field(
        default=20,
        strict=True,
        ge=0,
        description="Largest number of questions for information in a workflow. Approvals do not count.",
    )
    messages: int = Field(
        default=20,
        strict=True,
        ge=0,
        le=100,
        description="Largest number of messages to a running workflow. A message has at most 4,000 characters.",
    )
    tasks: int = Field(default=1_000, strict=True, ge=1, description="Largest number of tasks in all plans together.")
    depth: int = Field(default=100, strict=True, ge=1, description="Longest chain of dependencies in a plan.")
    nesting: int = Field(default=5, strict=True, ge=0, le=20, description="Largest number of teams above a team.")
    replans: int = Field(
        default=0,
        strict=True,
        ge=0,
        description="Largest number of new plans after a failure or at the request of a result.",
    )
    plan_repairs: int = Field(
        default=2,
        strict=True,
        ge=0,
        description="Largest number of times that a rejected plan is returned to the planner.",
    )
    files: int = Field(
        default=20,
        strict=True,
        ge=0,
        description="Largest number of files of a request, and of files that one task returns.",
    )
    file_bytes: int = Field(default=104_857_600, strict=True, ge=0, description="Largest size of a file, in bytes.")
    file_types: tuple[str, ...] = Field(
        default=(), description="Allowed media types, such as `application/pdf` or `image/*`; empty to allow all."
    )
    calls: Annotated[int, Field(strict=True, ge=0)] | None = Field(
        default=None, description="Largest number of model calls."
    )
    tokens: Annotated[int, Field(strict=True, ge=0)] | None = Field(
        default=None, description="Largest number of tokens of prompts and answers together."
    )
    cost: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] | None = Field(
        default=None, description="Largest cost in US dollars."
    )


class DailyLimits(Frozen):
    """Limits on the usage of the workflows that end within one day (UTC). A limit of None is unlimited.

    When a limit is reached, a supervisor refuses requests. Running workflows continue, so the usage of the day can
    become higher than the limit. To limit one workflow, use `Limits`.
    """

    calls: Annotated[int, Field(strict=True, ge=0)] | None = Field(
        default=None, description="Largest number of model calls."
    )
    tokens: Annotated[int, Field(strict=True, ge=0)] | None = Field(
        default=None, description="Largest number of tokens of prompts and answers together."
    )
    cost: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] | None = Field(
        default=None, description="Largest cost in US dollars."
    )


class Team(Frozen):
    """The configuration of a team. A team is also an agent, so other teams may use the team."""

    name: TeamName = Field(description="The name of the team.")
    description: str = Field(
        default="", description="A description of the requests that the team serves, for planners of other teams."
    )
    skills: tuple[str, ...] = Field(
        default=(), description="Skills that a plan of another team can name instead of the team."
    )
    agents: Literal["*"] | tuple[AgentName, ...] = Field(
        default=ANY, description="Names of agents or teams; or `ANY` for every live agent that is not a team."
    )
    own_agents: tuple[AgentName, ...] = Field(
        default=(),
        description="The agents that belong to the team, by their names within the team. The workers of these "
        "agents run with `--team`, or the agents name the team. The full name of such an agent begins with "
        "the team's name and `--`. So an agent that has the same short name, but belongs to another team or to no "
        "team, gets none of the tasks.",
    )
    strategy: Strategy = Field(
        default=PlanAndExecute(), description="The strategy, which determines the plan and the end of a workflow."
    )
    limits: Limits = Field(default=Limits(), description="The limits of a workflow.")
    daily: DailyLimits = Field(
        default=DailyLimits(), description="The limits of all workflows of the team in a day (UTC)."
    )
    daily_per_caller: DailyLimits = Field(
        default=DailyLimits(),
        description="The limits of the team's workflows for one caller in a day (UTC). If another team "
        "gives a task to this team, the other team is the caller.",
    )
    retry: RetryPolicy = Field(
        default=RetryPolicy(),
        description="The retry policy of all tasks without a retry policy of their own. The tasks of planners, "
        "synthesizers and other roles are among them.",
    )
    approve_plan: bool = Field(
        default=False, description="True if a person must approve each plan before the tasks of the plan start."
    )
    threads: ThreadPolicy = Field(default=ThreadPolicy(), description="The policy for conversations with the team.")
    refiner: AgentName | None = Field(
        default="refiner", description="The agent that rewrites a task that has failed twice, if it is live."
    )
    judge: AgentName | None = Field(
        default="judge", description="The agent that decides contradictions between results, if it is live."
    )

    @field_validator("agents", mode="before")
    @classmethod
    def _are_names(cls, given: object) -> object:
        """Validate the names. This validator reports one error; the union would report one for each member."""
        if given == ANY or (isinstance(given, list | tuple | set | frozenset) and all(map(is_token, given))):
            return given
        expected = "a list of names is expected, each of 1 to 64 letters, digits, - and _, or ANY"
        raise PydanticCustomError("names", expected)

    @model_validator(mode="after")
    def _uses_its_own_agents(self) -> Self:
        """Replace the names of the team's own agents with their full names."""
        names = {name: own_agent(self.name, name) for name in self.own_agents}
        for name, full in names.items():
            if TEAM_SEPARATOR in name or not is_token(full):
                raise ValueError(
                    f"own_agents has {name!r}; expected the name within the team, so that the full name, {full!r}, has "
                    f"at most 64 letters, digits, - and _, and has {TEAM_SEPARATOR} only once"
                )
        if names:
            for field in type(self).model_fields:
                if field not in ("name", "own_agents"):
                    object.__setattr__(self, field, _with_full_names(getattr(self, field), names, field))
        used = {*self.required_agents(), self.judge, self.refiner}
        if self.agents != ANY and (unused := [name for name, full in names.items() if full not in used]):
            meant = closest_match(unused[0], (each for each in used if each))
            hint = f"did you mean {meant}?" if meant else "list it in agents, or name it in the strategy"
            raise ValueError(f"own_agents has {unused[0]!r}, which the team does not use; {hint}")
        for name in self.required_agents():
            owner = name.partition(TEAM_SEPARATOR)[0] if TEAM_SEPARATOR in name else self.name
            if owner != self.name:
                raise ValueError(
                    f"the agent {name} belongs to the team {owner}; a team uses its own agents and agents without a "
                    "team: run the agent's worker without --team"
                )
        return self

    @field_validator("strategy", mode="before")
    @classmethod
    def _is_a_strategy(cls, given: object) -> object:
        if isinstance(given, BaseModel | Mapping):
            return given
        raise PydanticCustomError("strategy", "a strategy is expected, such as PlanAndExecute()")

    @model_validator(mode="after")
    def _limits_allow_its_plan(self) -> Self:
        if isinstance(self.strategy, Fixed):
            size = self.limits.tasks, self.limits.depth
            if faults := find_graph_faults(self.strategy.plan, *size, allow_equal_tasks=True):
                raise ValueError(f"the limits do not allow the fixed plan: {'; '.join(faults)}")
        return self

    def required_agents(self) -> Mapping[AgentName, str]:
        """Return the agents that the definition of the team names.

        Returns:
            For each agent: its work, which is `works`, `plans`, `classifies`, `synthesizes` or `judges`.
        """
        strategy, named = self.strategy, () if self.agents == ANY else self.agents
        roles: list[tuple[AgentName | None, str]]
        match strategy:
            case PlanAndExecute() | Adaptive():
                roles = [(strategy.planner, "plans"), (strategy.synthesizer, "synthesizes")]
                if isinstance(strategy, PlanAndExecute):
                    roles.append((strategy.fallback, "works"))
            case Router():
                roles = [(strategy.classifier, "classifies"), (strategy.fallback, "works")]
                if strategy.escalate is not None:
                    roles.append((strategy.escalate.planner, "plans"))
                roles.append((strategy.synthesizer, "synthesizes"))
            case Pipeline():
                roles = [(stage.check.judge, "judges") for stage in strategy.stages]
                roles += [(stage.agent, "works") for stage in strategy.stages]
            case Fixed():
                roles = [(check.judge, "judges") for check in strategy.checks.values()]
                roles += [(task.agent or None, "works") for task in strategy.plan.tasks]
                roles.append((strategy.synthesizer, "synthesizes"))
            case FanOut() | Choreography():
                roles = [(strategy.synthesizer, "synthesizes")]
            case _:
                assert_never(strategy)
        return {**dict.fromkeys(named, "works"), **{name: what for name, what in roles if name is not None}}

    def required_skills(self) -> tuple[str, ...]:
        """Return the skills that the team needs.

        Returns:
            The skills. For each skill, the team needs a live agent that has the skill.
        """
        match self.strategy:
            case Pipeline(stages=stages):
                return tuple(dict.fromkeys(stage.skill for stage in stages if stage.skill))
            case FanOut(skills=skills):
                return tuple(dict.fromkeys(skills))
            case Fixed(plan=plan):
                return tuple(dict.fromkeys(task.skill for task in plan.tasks if task.skill))
            case _:
                return ()


_AGENT_FIELDS = frozenset({"agents", "agent", "planner", "synthesizer", "classifier", "fallback", "judge", "refiner"})
"""The fields of a team, of its strategy and of a plan that contain names of agents."""


def _with_full_names(value: Any, names: Mapping[str, AgentName], field: str) -> Any:
    """Return the value of `field`. Replace the names of the team's own agents, at any depth, with their full names."""
    match value:
        case str():
            return names.get(value, value) if field in _AGENT_FIELDS else value
        case BaseModel():
            fields = type(value).model_fields
            changed = {each: _with_full_names(getattr(value, each), names, each) for each in fields}
            return value.model_copy(update={each: new for each, new in changed.items() if new != getattr(value, each)})
        case tuple():
            return tuple(_with_full_names(each, names, field) for each in value)
        case Mapping() if all(isinstance(each, BaseModel) for each in value.values()):
            return {key: _with_full_names(each, names, field) for key, each in value.items()}
        case _:
            return value
