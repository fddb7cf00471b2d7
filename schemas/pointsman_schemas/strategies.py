"""Define the strategies. A strategy determines the plan and the end of a workflow. Each strategy has its own `kind`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator
from pydantic_core import PydanticCustomError

from pointsman_schemas.base import Frozen
from pointsman_schemas.ids import TOKEN_PATTERN, AgentName, Skill, TaskId, Token, as_token, is_token
from pointsman_schemas.json_schema import JsonSchema
from pointsman_schemas.plan import Plan, PlannedTask
from pointsman_schemas.plan_checks import find_graph_faults, find_request_faults
from pointsman_schemas.retry import RetryPolicy
from pointsman_schemas.strict_json import JsonValue

__all__ = [
    "Adaptive",
    "Check",
    "Choreography",
    "FanOut",
    "Fixed",
    "FixedInput",
    "Pipeline",
    "PlanAndExecute",
    "Router",
    "Stage",
    "Strategy",
]


class _SynthesizedStrategy(Frozen):
    """The base of strategies with a synthesizer.

    If a field is None, it is usually omitted from the written form. But the field `synthesizer` is written as null,
    because a reader takes a missing `synthesizer` as the default synthesizer.
    """

    @model_serializer(mode="wrap")
    def _serialize_synthesizer(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"synthesizer": None, **written(self)}


class PlanAndExecute(_SynthesizedStrategy):
    """A planner writes the plan, and a synthesizer writes the answer.

    With `Limits(replans=n)`, the planner plans again if a task has failed permanently or a result requests a new plan.
    """

    kind: Literal["plan_and_execute"] = Field(default="plan_and_execute", description="The kind of strategy.")
    planner: AgentName = Field(default="planner", description="The agent that plans.")
    synthesizer: AgentName | None = Field(
        default="synthesizer", description="The agent that writes the answer. With null, the results are the answer."
    )
    fallback: AgentName | None = Field(
        default=None,
        description="The agent that receives the whole request if there is no usable first plan, because the planner "
        "failed, found no agent, or wrote only plans that were rejected.",
    )
    instructions: str = Field(default="", description="Instructions for the planner.")
    may_ask: bool = Field(default=False, description="True if the planner may ask a person questions before it plans.")


class Adaptive(_SynthesizedStrategy):
    """A planner plans only the next tasks. It is called again after every result, until it plans no further task."""

    kind: Literal["adaptive"] = Field(default="adaptive", description="The kind of strategy.")
    planner: AgentName = Field(default="planner", description="The agent that plans.")
    synthesizer: AgentName | None = Field(
        default="synthesizer", description="The agent that writes the answer. With null, the results are the answer."
    )
    instructions: str = Field(default="", description="Instructions for the planner.")
    may_ask: bool = Field(default=False, description="True if the planner may ask a person questions before it plans.")
    max_plans: int = Field(default=20, ge=1, description="Largest number of plans that the planner writes.")


class Router(_SynthesizedStrategy):
    """A classifier selects agents for the request.

    If one agent is above the threshold, this agent answers. If several agents are above it, they work in parallel. With
    `escalate`, a planner plans the work of several agents instead. If no agent is above the threshold, `fallback` gets
    the request. Without a fallback, the workflow fails, and its answer asks the caller for a more precise request.
    """

    kind: Literal["router"] = Field(default="router", description="The kind of strategy.")
    classifier: AgentName = Field(default="classifier", description="The agent that classifies the request.")
    threshold: float = Field(
        default=0.4, ge=0, le=1, description="The lowest confidence at which an agent is used, from 0 to 1."
    )
    fallback: AgentName | None = Field(
        default=None, description="The agent that receives the request if no agent is above the threshold."
    )
    synthesizer: AgentName | None = Field(
        default="synthesizer",
        description="The agent that writes one answer from several results. With null, the results are the answer.",
    )
    escalate: PlanAndExecute | None = Field(
        default=None,
        description="The strategy that plans requests for several agents. Only its planner and its instructions are "
        "used. The router itself has the synthesizer and the fallback.",
    )

    @model_validator(mode="after")
    def _uses_its_own_roles(self) -> Self:
        given, default = self.escalate or PlanAndExecute(), PlanAndExecute().synthesizer
        if given.fallback is not None or given.synthesizer not in (default, self.synthesizer):
            raise ValueError(
                "the strategy in `escalate` sets a synthesizer or a fallback, which the router does not use: write "
                "Router(synthesizer=..., fallback=...) instead"
            )
        return self


class Check(Frozen):
    """Requirements on the output of a stage, or of a member of a fan-out. Each requirement is optional.

    If the output is an object, `mentions` and `min_length` apply to the text of its values. The judge reviews only an
    output that meets the other requirements.
    """

    fields: tuple[str, ...] = Field(
        default=(), description="Fields that the output must have, with a value that is not empty."
    )
    mentions: tuple[str, ...] = Field(
        default=(), description="Words. The text of the output must contain one of them, in upper or lower case."
    )
    min_length: int = Field(default=0, ge=0, description="Smallest length of the output's text, in characters.")
    judge: AgentName | None = Field(
        default=None,
        description="The agent that reviews the output. The judge accepts the output, requests another "
        "attempt (only once), or stops the pipeline.",
    )
    criteria: str = Field(default="", description="Criteria for the judge, in addition to the stage's intent.")


class Stage(Frozen):
    """One stage of a pipeline. The agent of the stage receives the request and the outputs of all earlier stages.

    If the output fails the check and the stage has attempts left, the next attempt receives the reason.
    """

    agent: AgentName | None = Field(default=None, description="The agent of the stage.")
    skill: Skill = Field(default="", description="A skill, if any agent with that skill may do the stage.")
    name: TaskId = Field(default="", description="The id of the stage's task; default: the agent's name or the skill.")
    intent: str = Field(default="", description="The task of the stage, in one or two sentences.")
    check: Check = Field(default=Check(), description="Requirements on the output.")
    retry: RetryPolicy | None = Field(default=None, description="The retries of the stage; null for the team's policy.")

    @model_validator(mode="before")
    @classmethod
    def _default_name(cls, given: Any) -> Any:
        if isinstance(given, str):
            raise ValueError(f"a stage is expected, not a text: write Stage(agent={given!r})")
        if not isinstance(given, dict) or given.get("name"):
            return given
        skill = given.get("skill")
        return {**given, "name": given.get("agent") or (as_token(skill) if isinstance(skill, str) else skill)}

    @model_validator(mode="after")
    def _names_an_agent(self) -> Self:
        if (self.agent is None) == (not self.skill):
            raise ValueError("a stage names an agent, or a skill that its agent must have")
        return self


class Pipeline(Frozen):
    """Stages in sequence. The answer is the output of the last stage. A permanently failed stage ends the pipeline."""

    kind: Literal["pipeline"] = Field(default="pipeline", description="The kind of strategy.")
    stages: tuple[Stage, ...] = Field(min_length=1, description="The stages, in order.")

    @field_validator("stages", mode="before")
    @classmethod
    def _is_a_list(cls, given: object) -> object:
        if isinstance(given, Stage):  # a model is iterable, so each field of the model would become a wrong stage
            raise PydanticCustomError("stages", "a list of stages is expected, such as (Stage(agent='a'),)")
        return given

    @model_validator(mode="after")
    def _has_distinct_names(self) -> Pipeline:
        names = [stage.name for stage in self.stages]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two stages are called {', '.join(twice)}; give one of them another name")
        return self


class FanOut(_SynthesizedStrategy):
    """All agents of the team receive the request at the same time, and a synthesizer merges their results.

    The synthesizer also receives the contradictions between the results.
    """

    kind: Literal["fan_out"] = Field(default="fan_out", description="The kind of strategy.")
    min_success_ratio: float = Field(
        default=0.5, gt=0, le=1, description="Smallest share of the members that must succeed, from 0 to 1."
    )
    synthesizer: AgentName | None = Field(
        default="synthesizer", description="The agent that writes the answer. With null, the results are the answer."
    )
    intent: str = Field(default="", description="The task of every member, in one or two sentences.")
    skills: tuple[Skill, ...] = Field(
        default=(), description="Skills of the members. If set, the request goes to one agent for each skill."
    )
    check: Check = Field(default=Check(), description="Requirements on the output of every member.")


class Choreography(_SynthesizedStrategy):
    """Agents react to named events and emit other events, without a plan.

    The workflow ends when no reaction is left. An event of `end_events` ends the workflow at once.
    """

    kind: Literal["choreography"] = Field(default="choreography", description="The kind of strategy.")
    start_event: Token = Field(default="requested", description="The event that the request becomes.")
    end_events: tuple[Token, ...] = Field(
        default=(), description="Events that end the workflow; their data is the answer."
    )
    synthesizer: AgentName | None = Field(
        default=None, description="The agent that writes the answer. With null, the results are the answer."
    )


class Fixed(_SynthesizedStrategy):
    """Run a plan that the author of the team wrote. No planner is called.

    Tasks may have conditions (`when`), may be done for each item of a list (`for_each`), and may take fields of their
    input from the request and from results (`input_from`). A request that is an object may contain inputs of tasks in
    its field `inputs` (`FixedInput`).
    """

    kind: Literal["fixed"] = Field(default="fixed", description="The kind of strategy.")
    plan: Plan = Field(description="The plan. Each task names an agent or a skill, and the dependencies have no cycle.")
    input_schema: JsonSchema | None = Field(
        default=None,
        description="JSON Schema of the request, without its field `inputs`; null to accept any request. "
        "If a request does not match, its workflow fails.",
    )
    checks: dict[TaskId, Check] = Field(default={}, description="Requirements on the outputs of tasks, by task id.")
    synthesizer: AgentName | None = Field(
        default=None, description="The agent that writes the answer. With null, the results are the answer."
    )

    @model_validator(mode="after")
    def _can_run(self) -> Self:
        faults = find_graph_faults(self.plan, check_agent=_agent_faults, allow_equal_tasks=True)
        if not self.plan.tasks:
            faults.append("the plan has no tasks")
        if self.plan.cannot or self.plan.done or self.plan.questions:
            faults.append("`cannot`, `done` and `questions` are answers of a planner; a fixed plan has none of them")
        if unknown := sorted(self.checks.keys() - {task.id for task in self.plan.tasks}):
            faults.append(f"the checks name {', '.join(unknown)}, which the plan does not have")
        if (fields := _closed_fields(self.input_schema)) is not None:
            faults.extend(find_request_faults(self.plan, fields))
        if faults:
            raise ValueError(f"the fixed plan cannot run: {'; '.join(faults)}")
        return self


def _closed_fields(schema: Mapping[str, object] | None) -> Collection[str] | None:
    """Return the fields that the schema lists; None if it has a keyword that can allow other fields."""
    properties = schema.get("properties") if schema else None
    if schema is None or not isinstance(properties, Mapping):
        return None
    if schema.get("additionalProperties") or schema.keys() & {"patternProperties", "anyOf", "oneOf", "allOf", "$ref"}:
        return None
    return properties.keys()


def _agent_faults(task: PlannedTask) -> list[str]:
    if bool(task.agent) == bool(task.skill):
        return [f"task {task.id!r} names an agent, or a skill that its agent must have: give one of them"]
    if task.agent and not is_token(task.agent):
        return [f"task {task.id!r} names the agent {task.agent!r}, which does not match {TOKEN_PATTERN}"]
    return []


class FixedInput(Frozen):
    """The fields of an object request that a team with a fixed plan reads.

    A task without an input receives the other fields of the request, and the metadata of the request.
    """

    inputs: dict[TaskId, JsonValue] = Field(
        default={},
        description="The inputs of tasks, by task id. An input replaces the input that the plan has for "
        "the task. If both inputs are objects, their fields are merged, and the values of the request win. "
        "If an id is not the id of a task in the plan, the request is refused.",
    )


Strategy: TypeAlias = Annotated[
    PlanAndExecute | Adaptive | Router | Pipeline | FanOut | Choreography | Fixed, Field(discriminator="kind")
]
