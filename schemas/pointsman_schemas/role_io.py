"""Define the inputs and outputs of the orchestration's roles, such as planner, classifier, synthesizer and judge."""

from __future__ import annotations

from typing import Literal, Self, TypeAlias

from pydantic import Field, model_validator

from pointsman_schemas.base import Frozen
from pointsman_schemas.events import Conflict, Gap, PastTurn, TaskReport
from pointsman_schemas.ids import AgentName, TaskId
from pointsman_schemas.strict_json import JsonValue

__all__ = [
    "MAX_SUMMARY_CHARS",
    "AvailableAgent",
    "ClassifierInput",
    "ConflictRuling",
    "JudgeInput",
    "PlannerAnswer",
    "PlannerInput",
    "Refinement",
    "RefinerInput",
    "RemainingLimits",
    "RequestInput",
    "Review",
    "ReviewInput",
    "SummarizerInput",
    "Synthesis",
    "SynthesizerInput",
    "ThreadSummary",
]

MAX_SUMMARY_CHARS = 8_000
"""Longest summary of the older turns of a thread, in characters."""

RequestInput: TypeAlias = str | dict[str, JsonValue]


class AvailableAgent(Frozen):
    """The part of an agent's card that a planner needs to select the agent and to write the input of its task."""

    name: AgentName = Field(description="The name of the agent.")
    description: str = Field(description="The tasks that the agent can do.")
    skills: tuple[str, ...] = Field(default=(), description="Skills of the agent.")
    intents: tuple[str, ...] = Field(default=(), description="Names of the intents that the agent serves.")
    examples: tuple[str, ...] = Field(default=(), description="Example requests.")
    input_schema: dict[str, JsonValue] = Field(default={}, description="JSON Schema of the agent's input.")
    note: str = Field(default="", description="A remark about the agent's current state.")


class RemainingLimits(Frozen):
    """The part of a workflow's limits that is not used yet. None means unlimited."""

    seconds: float = Field(description="Seconds until the deadline of the workflow.")
    replans: int = Field(default=0, description="Number of re-plans that are left.")
    calls: int | None = Field(default=None, description="Number of model calls that are left.")
    tokens: int | None = Field(default=None, description="Number of tokens of prompts and answers that are left.")
    cost: float | None = Field(default=None, description="Cost that is left, in US dollars.")


class PlannerAnswer(Frozen):
    """The answer of a person to a question of the planner."""

    question: str = Field(description="The question.")
    answer: JsonValue = Field(default=None, description="The answer.")
    unanswered: str = Field(default="", description="The reason why there is no answer.")


class PlannerInput(Frozen):
    """The input of a planner, which answers with a `Plan`."""

    request: RequestInput = Field(description="The request.")
    metadata: dict[str, JsonValue] = Field(default={}, description="The metadata of the request.")
    agents: tuple[AvailableAgent, ...] = Field(default=(), description="The live agents that the plan may use.")
    agents_used: tuple[AgentName, ...] = Field(default=(), description="For a new plan: agents that already had tasks.")
    results: tuple[TaskReport, ...] = Field(default=(), description="For a new plan: the tasks so far.")
    problems: tuple[str, ...] = Field(default=(), description="The reasons why the last plan was rejected.")
    replan_reason: str = Field(default="", description="For a new plan: the reason for the new plan.")
    max_tasks: int = Field(default=1_000, description="Largest number of tasks in the plan.")
    remaining_limits: RemainingLimits | None = Field(
        default=None, description="The unused part of the workflow's limits."
    )
    adaptive: bool = Field(
        default=False,
        description="True if the planner plans only the next tasks and is called again after every result.",
    )
    remaining_plans: int | None = Field(
        default=None, description="In an adaptive team: the number of further calls of the planner."
    )
    instructions: str = Field(default="", description="Instructions of the team's owner.")
    may_ask: bool = Field(default=False, description="True if the planner may ask `questions` instead of planning.")
    answers: tuple[PlannerAnswer, ...] = Field(default=(), description="Answers to the planner's questions.")


class ClassifierInput(Frozen):
    """The input of a classifier, which answers with a `Selection`."""

    request: RequestInput = Field(description="The request.")
    metadata: dict[str, JsonValue] = Field(default={}, description="The metadata of the request.")
    agents: tuple[AvailableAgent, ...] = Field(default=(), description="The live agents that may serve the request.")
    threshold: float = Field(default=0.4, description="The lowest confidence at which an agent is used, from 0 to 1.")


class SynthesizerInput(Frozen):
    """The input of a synthesizer, which answers with a `Synthesis`. The results are the `context` of the handoff."""

    request: RequestInput = Field(description="The request.")
    goal: str = Field(default="", description="The goal of the plan.")
    final_instruction: str = Field(default="", description="The planner's instruction for the answer.")
    gaps: tuple[Gap, ...] = Field(default=(), description="Tasks without a result.")
    limit: str = Field(default="", description="The limit that ended the work, if one did.")
    conflicts: tuple[str, ...] = Field(default=(), description="Contradictions between the results, one sentence each.")
    decisions: tuple[Conflict, ...] = Field(default=(), description="The judge's decisions on the contradictions.")


class RefinerInput(Frozen):
    """The input of a refiner, with a task that has failed. The refiner answers with a `Refinement`."""

    request: RequestInput = Field(description="The request.")
    intent: str = Field(description="The intent of the task.")
    task_input: JsonValue = Field(default=None, description="The input of the task.")
    agent: AgentName = Field(description="The agent of the next attempt.")
    agent_description: str = Field(default="", description="The description of that agent.")
    attempts: int = Field(description="Number of failed attempts.")
    error: str = Field(description="The last error.")


class Refinement(Frozen):
    """The answer of a refiner."""

    intent: str = Field(description="The new intent of the task.")


class JudgeInput(Frozen):
    """The input of a judge, which answers with a `ConflictRuling`. The results are the `context` of the handoff."""

    request: RequestInput = Field(description="The request.")
    conflicts: tuple[str, ...] = Field(description="Contradictions between the results, one sentence each.")


class ConflictRuling(Frozen):
    """The answer of a judge: a decision on each contradiction."""

    decisions: tuple[Conflict, ...] = Field(min_length=1, description="The decisions.")


class ReviewInput(Frozen):
    """The input of a judge that reviews a stage. The judge answers with a `Review`.

    The `context` of the handoff has the results of earlier stages, and then the result of `task_id`.
    """

    request: RequestInput = Field(description="The request.")
    metadata: dict[str, JsonValue] = Field(default={}, description="The metadata of the request.")
    task_id: TaskId = Field(description="The task of the stage.")
    agent: AgentName = Field(description="The agent of the stage.")
    intent: str = Field(description="The intent of the stage.")
    criteria: str = Field(default="", description="The team's criteria for the result.")
    is_last_attempt: bool = Field(
        default=False, description="True if the stage has no attempt left. Then the verdict `again` is not possible."
    )


class Review(Frozen):
    """The answer of a judge that reviewed a stage."""

    verdict: Literal["pass", "again", "stop"] = Field(
        description="`pass` continues the pipeline, `again` requests another attempt, `stop` ends the pipeline."
    )
    reason: str = Field(default="", description="The reason; required unless the verdict is `pass`.")

    @model_validator(mode="after")
    def _has_a_reason(self) -> Self:
        if self.verdict != "pass" and not self.reason.strip():
            raise ValueError(f"a verdict of {self.verdict} needs a reason: state the fault of the result")
        return self


class SummarizerInput(Frozen):
    """The input of a summarizer, with the older turns of a thread. The summarizer answers with a `ThreadSummary`."""

    summary: str = Field(default="", description="The summary so far.")
    turns: tuple[PastTurn, ...] = Field(description="The turns to add to the summary, in order.")


class ThreadSummary(Frozen):
    """The answer of a summarizer."""

    summary: str = Field(
        min_length=1,
        max_length=MAX_SUMMARY_CHARS,
        description="The new summary, which covers the turns and the summary so far.",
    )


class Synthesis(Frozen):
    """The answer of a synthesizer."""

    answer: str = Field(description="The answer to the request, addressed to the caller.")
