"""A plan as the planner writes it.

Names are plain text here. The core validates them and reports problems to the planner.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from pointsman_schemas.base import Frozen
from pointsman_schemas.retry import RetryPolicy
from pointsman_schemas.strict_json import JsonValue

__all__ = ["Plan", "PlannedTask", "SelectedAgent", "Selection"]

_NameText = Annotated[str, StringConstraints(strip_whitespace=True, max_length=200)]


class PlannedTask(Frozen):
    """One task of a plan. It starts when all tasks of `depends_on` have succeeded.

    A task with a `skill` instead of an `agent` goes to the live agent with that skill that is selected at dispatch.
    """

    id: _NameText = Field(description="The id of the task, unique in the workflow: t1, t2 and so on.")
    agent: _NameText = Field(default="", description="The name of the agent.")
    skill: _NameText = Field(default="", description="A skill, if any agent with that skill may do the task.")
    intent: Annotated[str, StringConstraints(strip_whitespace=True)] = Field(
        description="The task, in one or two sentences that can be understood without the request."
    )
    input: JsonValue = Field(default=None, description="The input of the task, by the agent's input schema.")
    depends_on: tuple[_NameText, ...] = Field(default=(), description="Tasks whose results this task needs.")
    optional_dependencies: tuple[_NameText, ...] = Field(
        default=(), description="Tasks whose results help; the task starts also if they fail."
    )
    approval: Literal["required"] | None = Field(
        default=None, description="`required` if a person must allow the task before it starts."
    )
    retry: RetryPolicy | None = Field(
        default=None,
        description="The retries of the task; null for the team's policy. A planner cannot exceed that policy: neither "
        "its attempts nor the kinds of errors that it retries.",
    )

    @model_validator(mode="after")
    def _names_an_agent(self) -> Self:
        if not self.model_fields_set & {"agent", "skill"}:  # an empty name is reported later, as an unknown agent
            raise ValueError("a task names an agent, or a skill that its agent must have")
        return self


class Plan(Frozen):
    """A plan: the tasks that serve a request, or the reason why no agent can serve it."""

    goal: str = Field(default="", description="The goal of the plan, in one sentence.")
    tasks: tuple[PlannedTask, ...] = Field(default=(), description="The tasks.")
    final_instruction: str = Field(default="", description="An instruction for the final answer.")
    cannot: str = Field(default="", description="If there are no tasks: the reason why no agent can serve the request.")
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
