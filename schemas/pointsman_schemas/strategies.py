"""Strategies: the source of a workflow's plan, and its end. Each strategy has its own `kind`."""

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

    A synthesizer of None is written as null, although other fields of None are omitted: omitted means the default.
    """

    @model_serializer(mode="wrap")
    def _serialize_synthesizer(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"synthesizer": None, **written(self)}


class PlanAndExecute(_SynthesizedStrategy):
    """A planner writes the plan, and a synthesizer writes the answer.

    With `Limits(replans=n)` the planner plans again when a task has failed permanently or a result requests it.
    """

    kind: Literal["plan_and_execute"] = Field(default="plan_and_execute", description="The kind of strategy.")
    planner: AgentName = Field(default="planner", description="The agent that plans.")
    synthesizer: AgentName | None = Field(
        default="synthesizer", description="The agent that writes the answer; null for the plain results."
    )
    fallback: AgentName | None = Field(
        default=None,
        description="The agent that receives the whole request if there is no usable first plan: the planner failed, "
        "found no agent, or its plans were rejected.",
    )
    instructions: str = Field(default="", description="Instructions for the planner.")
    may_ask: bool = Field(default=False, description="True if the planner may ask a person questions before it plans.")


class Adaptive(_SynthesizedStrategy):
    """A planner plans the next tasks only, and is asked again after every result until nothing remains to be done."""

    kind: Literal["adaptive"] = Field(default="adaptive", description="The kind of strategy.")
    planner: AgentName = Field(default="planner", description="The agent that plans.")
    synthesizer: AgentName | None = Field(
        default="synthesizer", description="The agent that writes the answer; null for the plain results."
    )
    instructions: str = Field(default="", description="Instructions for the planner.")
    may_ask: bool = Field(default=False, description="True if the planner may ask a person questions before it plans.")
    max_plans: int = Field(default=20, ge=1, description="Number of plans that the planner may write.")


class Router(_SynthesizedStrategy):
    """A classifier selects agents for the request.

    A single agent above the threshold answers by itself. Several agents work in parallel, or a planner plans them with
    `escalate`. Without any agent, the request goes to `fallback`, or back to the caller with a question.
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
        description="The agent that writes one answer from several results; null for the results.",
    )
    escalate: PlanAndExecute | None = Field(
        default=None,
        description="Plan requests for several agents. Only its planner and instructions are used: synthesizer and "
        "fallback come from the router.",
    )

    @model_validator(mode="after")
    def _uses_its_own_roles(self) -> Self:
        given, default = self.escalate or PlanAndExecute(), PlanAndExecute().synthesizer
        if given.fallback is not None or given.synthesizer not in (default, self.synthesizer):
            raise ValueError(
                "the supervisor in `escalate` sets a synthesizer or a fallback, which the router does not use: write "
                "Router(synthesizer=..., fallback=...) instead"
            )
        return self


class Check(Frozen):
    """Requirements on the output of a stage, or of a member of a fan-out. All are optional.

    The text of an object is the text of its values. An output that meets the requirements is reviewed by the judge.
    """

    fields: tuple[str, ...] = Field(default=(), description="Fields that the output must have, not empty.")
    mentions: tuple[str, ...] = Field(
        default=(), description="Words, in any case, of which the text of the output must contain one."
    )
    min_length: int = Field(default=0, ge=0, description="Least number of characters of the output's text.")
    judge: AgentName | None = Field(
        default=None,
        description="The agent that reviews the output: it accepts the output, asks for another attempt once, or stops "
        "the pipeline.",
    )
    criteria: str = Field(default="", description="Criteria for the judge, in addition to the stage's intent.")


class Stage(Frozen):
    """One stage of a pipeline. Its agent receives the request and the outputs of the stages before it.

    An output that fails the check is requested again with the reason, while the stage has attempts left.
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
        if isinstance(given, Stage):  # a model is iterable, and each of its fields would be a wrong stage
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
        default=0.5, gt=0, le=1, description="Share of the members that must succeed, from 0 to 1."
    )
    synthesizer: AgentName | None = Field(
        default="synthesizer", description="The agent that writes the answer; null for the plain results."
    )
    intent: str = Field(default="", description="The task of every member, in one or two sentences.")
    skills: tuple[Skill, ...] = Field(
        default=(), description="If set: the request goes to one agent for each of these skills."
    )
    check: Check = Field(default=Check(), description="Requirements on the output of every member.")


class Choreography(_SynthesizedStrategy):
    """Agents react to named events and emit other events, without a plan.

    The workflow ends when no reaction is left, or at once when an event of `end_events` is emitted.
    """

    kind: Literal["choreography"] = Field(default="choreography", description="The kind of strategy.")
    start_event: Token = Field(default="requested", description="The event that the request becomes.")
    end_events: tuple[Token, ...] = Field(
        default=(), description="Events that end the workflow; their data is the answer."
    )
    synthesizer: AgentName | None = Field(
        default=None, description="The agent that writes the answer; null for the plain results."
    )


class Fixed(_SynthesizedStrategy):
    """The tasks of a plan that the author of the team wrote. No planner is asked.

    Tasks may have conditions (`when`), may be done for each item of a list (`for_each`), and may take fields of their
    input from the request and from results (`input_from`). An object request may also name inputs of the tasks in its
    field `inputs` (`FixedInput`).
    """

    kind: Literal["fixed"] = Field(default="fixed", description="The kind of strategy.")
    plan: Plan = Field(description="The plan. Its tasks name agents or skills, and no cycle of dependencies.")
    input_schema: JsonSchema | None = Field(
        default=None,
        description="JSON Schema of the request, without its field `inputs`; null for any request. A request that does "
        "not match ends the workflow as failed.",
    )
    checks: dict[TaskId, Check] = Field(default={}, description="Requirements on the outputs of tasks, by task id.")
    synthesizer: AgentName | None = Field(
        default=None, description="The agent that writes the answer; null for the plain results."
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
    """Return the fields that the schema names; None if a request may have others that the schema does not show."""
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

    A task without an input receives the other fields of the request and its metadata.
    """

    inputs: dict[TaskId, JsonValue] = Field(
        default={},
        description="The inputs of tasks, by task id. An input replaces the input that the plan has for the task; if "
        "both are objects, their fields are merged, and the request's values win. An id that is not a task of the "
        "plan refuses the request.",
    )


Strategy: TypeAlias = Annotated[
    PlanAndExecute | Adaptive | Router | Pipeline | FanOut | Choreography | Fixed, Field(discriminator="kind")
]
