"""Where a workflow's plan comes from and how it ends: one value for each strategy, told apart by its `kind`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from pointsman_schemas.base import Frozen, Options
from pointsman_schemas.ids import AgentName, Skill, TaskId, Token, as_token

__all__ = ["Adaptive", "Check", "Choreography", "FanOut", "Pipeline", "Router", "Stage", "Strategy", "Supervisor"]


class _Synthesized(Options, Frozen):
    """No synthesizer is written as null, even where fields that are None are left out: left out means the default."""

    @model_serializer(mode="wrap")
    def _with_its_null(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"synthesizer": None, **written(self)}


class Supervisor(_Synthesized):
    """A planner agent writes the plan and a synthesizer the answer. With `Limits(replans=n)` it plans again when a task
    has failed for good or a result asks for it. Where no first plan can be had, because the planner failed, knows
    nobody, or what it writes cannot be used, the whole request goes to `fallback`."""

    kind: Literal["supervisor"] = "supervisor"
    planner: AgentName = "planner"
    synthesizer: AgentName | None = "synthesizer"
    fallback: AgentName | None = None
    instructions: str = ""


class Adaptive(_Synthesized):
    """A planner agent plans the next tasks only, is asked again after every result, and says when it is done. It may
    write `plans` plans; a synthesizer writes the answer."""

    kind: Literal["adaptive"] = "adaptive"
    planner: AgentName = "planner"
    synthesizer: AgentName | None = "synthesizer"
    instructions: str = ""
    plans: Annotated[int, Field(ge=1)] = 20


class Router(_Synthesized):
    """A classifier picks agents. One above `threshold` answers by itself; several go to `escalate` or run side by side;
    none goes to `fallback`, or back to the caller as a question. Of `escalate` its planner and the planner's
    instructions count: who writes the answer and who falls back the router says itself."""

    kind: Literal["router"] = "router"
    classifier: AgentName = "classifier"
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.4
    fallback: AgentName | None = None
    synthesizer: AgentName | None = "synthesizer"
    escalate: Supervisor | None = None

    @model_validator(mode="after")
    def _heeds_what_it_is_given(self) -> Self:
        given, default = self.escalate or Supervisor(), Supervisor().synthesizer
        if given.fallback is not None or given.synthesizer not in (default, self.synthesizer):
            raise ValueError(
                "the synthesizer and the fallback are those of the router itself: write Router(synthesizer=..., "
                "fallback=...) and leave them out of what it escalates to"
            )
        return self


class Check(Options, Frozen):
    """What the output of a stage, or of a fan-out's member, must be like. What is left out is not asked for.

    `fields` must be in the object and not empty; the text must state one of `states` (words, in any case) and have
    `min_length` characters. The text of an object is that of its values. What has all that is then for `judge`, an
    agent that lets it pass, sends it back once or stops the pipeline, by the stage's intent and these `criteria`.
    """

    fields: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    min_length: Annotated[int, Field(ge=0)] = 0
    judge: AgentName | None = None
    criteria: str = ""


class Stage(Options, Frozen):
    """One stage of a pipeline: an agent, or whichever has a `skill`, that gets the request and what the stages before
    it made.

    `name` is the agent's or the skill's unless given. An output that fails `check` is asked for again, told why, as
    often as `Limits.attempts` allows.
    """

    agent: AgentName | None = None
    skill: Skill = ""
    name: TaskId = ""
    intent: str = ""
    check: Check = Check()

    @model_validator(mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:
        if isinstance(given, str):
            raise ValueError(f"a stage is expected where there is a text: write Stage(agent={given!r})")
        if not isinstance(given, dict) or given.get("name"):
            return given
        skill = given.get("skill")
        return {**given, "name": given.get("agent") or (as_token(skill) if isinstance(skill, str) else skill)}

    @model_validator(mode="after")
    def _for_somebody(self) -> Self:
        if (self.agent is None) == (not self.skill):
            raise ValueError("a stage names an agent, or a skill that its agent must have")
        return self


class Pipeline(Options, Frozen):
    """Stages, one after the other. The last one's output is the answer; a stage that fails for good ends it there."""

    kind: Literal["pipeline"] = "pipeline"
    stages: Annotated[tuple[Stage, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _apart(self) -> Pipeline:
        names = [stage.name for stage in self.stages]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two stages are called {', '.join(twice)}; give one of them another name")
        return self


class FanOut(_Synthesized):
    """All of the team's agents get the same request at once, or, with `skills`, one of them for each that has it. A
    share of `minimum` must succeed; the synthesizer merges what they said, and is told where they disagree. What each
    says must pass `check`, as a stage's output must."""

    kind: Literal["fan_out"] = "fan_out"
    minimum: Annotated[float, Field(gt=0, le=1)] = 0.5
    synthesizer: AgentName | None = "synthesizer"
    intent: str = ""
    skills: tuple[Skill, ...] = ()
    check: Check = Check()


class Choreography(_Synthesized):
    """Nobody plans: agents react to named events and emit others. The request is the event `begins`. It ends when no
    reaction is left, or at once, with the event's data as its answer, when one of `ends` is emitted."""

    kind: Literal["choreography"] = "choreography"
    begins: Token = "requested"
    ends: tuple[Token, ...] = ()
    synthesizer: AgentName | None = None


Strategy: TypeAlias = Annotated[
    Supervisor | Adaptive | Router | Pipeline | FanOut | Choreography, Field(discriminator="kind")
]
