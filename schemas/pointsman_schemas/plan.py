"""Define the plan that a planner or the author of a team writes.

In these models, a name can be any text. The core validates the names later, and reports wrong names to the planner.
"""

from __future__ import annotations

from operator import not_
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from pointsman_schemas.base import Frozen
from pointsman_schemas.expressions import ConditionText, PathText
from pointsman_schemas.retry import RetryPolicy
from pointsman_schemas.strict_json import JsonValue

__all__ = ["ForEach", "Plan", "PlanQuestion", "PlannedTask", "SelectedAgent", "Selection"]

_NameText = Annotated[str, StringConstraints(strip_whitespace=True, max_length=200)]


class ForEach(Frozen):
    """A list. Each item becomes a task. The result is the list of the results of these tasks, in the same order."""

    items: PathText = Field(
        description="The path of the list: `TASK.field` in the result of a dependency, or `request.field`."
    )
    max_items: int = Field(
        default=100, strict=True, ge=1, le=10_000, description="Largest number of items. A longer list fails the task."
    )
    min_success_ratio: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Smallest share of the items that must succeed, from 0 to 1. If an item fails, its "
        "result is null, and the item is a gap of the outcome.",
    )


class PlannedTask(Frozen):
    """One task of a plan. The task starts when all tasks of `depends_on` have succeeded.

    If a task has a `skill` instead of an `agent`, a live agent with the skill is selected at dispatch. Only an author
    may write a plan with `when`, `for_each` or `input_from`. A planner's plan with these fields is refused.
    """

    id: _NameText = Field(description="The id of the task, unique in the workflow: t1, t2 and so on.")
    agent: _NameText = Field(default="", description="The name of the agent.")
    skill: _NameText = Field(default="", description="A skill, if any agent with that skill may do the task.")
    intent: Annotated[str, StringConstraints(strip_whitespace=True)] = Field(
        description="The task, in one or two sentences that can be understood without the request. Not empty.",
        json_schema_extra={"minLength": 1},  # an empty text is accepted here, and reported with the plan's other faults
    )
    input: JsonValue = Field(default=None, description="The input of the task, by the agent's input schema.")
    depends_on: tuple[_NameText, ...] = Field(default=(), description="Tasks whose results this task needs.")
    optional_dependencies: tuple[_NameText, ...] = Field(
        default=(), description="Tasks whose results help. The task also starts if these tasks fail."
    )
    approval: Literal["required"] | None = Field(
        default=None, description="`required` if a person must approve the task before the task starts."
    )
    retry: RetryPolicy | None = Field(
        default=None,
        description="The retries of the task; null for the team's policy. In a planner's plan, the team's policy "
        "limits the number of attempts and the kinds of errors that are retried.",
    )

    when: ConditionText = Field(
        default="",
        exclude_if=not_,
        description="A condition on the request and on the results of dependencies, such as `match.unpaid "
        "> 0`. If the condition is false when the dependencies are settled, the task is skipped. A skipped "
        "task is not a gap.",
    )
    for_each: ForEach | None = Field(
        default=None,
        exclude_if=not_,
        description="A list. The task is done for each item of the list. Null for a single task.",
    )
    input_from: dict[str, PathText] = Field(
        default={},
        exclude_if=not_,
        description="Fields of the input, by name, with the path of each value: `TASK.field` in the result "
        "of a dependency, `request.field`, or `item.field` in a task with `for_each`. These fields replace "
        "fields of `input`.",
    )

    @field_validator("for_each", mode="before")
    @classmethod
    def _read_path_as_list(cls, given: Any) -> Any:
        return {"items": given} if isinstance(given, str) else given

    @property
    def has_expressions(self) -> bool:
        """True if the task has a condition, a list or fields from results."""
        return bool(self.when or self.for_each or self.input_from)

    @model_validator(mode="after")
    def _names_an_agent(self) -> Self:
        if not self.model_fields_set & {"agent", "skill"}:  # an empty name is reported later, as an unknown agent
            raise ValueError("a task names an agent, or a skill that its agent must have")
        return self


class PlanQuestion(Frozen):
    """A question of a planner to a person. The planner is called again when all of its questions have an answer."""

    question: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1_000)] = Field(
        description="The question, in one or two sentences."
    )
    choices: Annotated[tuple[str, ...], Field(max_length=50)] = Field(
        default=(), description="The possible answers; empty for a free text."
    )


class Plan(Frozen):
    """A plan: the tasks that serve a request, questions to a person, or the reason why no agent can serve it."""

    goal: str = Field(default="", description="The goal of the plan, in one sentence.")
    tasks: tuple[PlannedTask, ...] = Field(default=(), description="The tasks.")
    final_instruction: str = Field(default="", description="An instruction for the final answer.")
    cannot: str = Field(default="", description="If there are no tasks: the reason why no agent can serve the request.")
    questions: Annotated[tuple[PlanQuestion, ...], Field(max_length=5)] = Field(
        default=(),
        description="Instead of tasks: questions that a person must answer before the request can be planned.",
    )
    done: bool = Field(default=False, description="In an adaptive team: true if nothing remains to be done.")


class SelectedAgent(Frozen):
    """An agent, or any agent with a skill, that can serve a part of the request."""

    agent: _NameText = Field(default="", description="The name of the agent.")
    skill: _NameText = Field(default="", description="A skill, if any agent with that skill may serve the request.")
    confidence: float = Field(ge=0, le=1, description="Confidence that the agent is right for its part, from 0 to 1.")
    intent: str = Field(default="", description="The part of the request for this agent, in one sentence.")

    @model_validator(mode="after")
    def _names_an_agent(self) -> Self:
        if not self.model_fields_set & {"agent", "skill"}:
            raise ValueError("a selection names an agent, or a skill that the agent must have")
        return self


class Selection(Frozen):
    """The answer of a classifier."""

    agents: tuple[SelectedAgent, ...] = Field(default=(), description="The agents, highest confidence first.")
    unserved: str = Field(default="", description="The part of the request that no agent can serve.")
    question: str = Field(default="", description="A question to the caller, if no agent is likely enough.")
