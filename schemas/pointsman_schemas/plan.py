"""A plan as the planner writes it. Its names are plain text: whether they fit is decided by the core, with reasons."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from pointsman_schemas.base import Frozen
from pointsman_schemas.strict_json import JsonValue

__all__ = ["Plan", "PlannedTask", "SelectedAgent", "Selection"]

_Name = Annotated[str, StringConstraints(strip_whitespace=True, max_length=200)]


class PlannedTask(Frozen):
    """One task of a plan, for an `agent`, or for whichever has a `skill`: that is chosen among the live ones when the
    task starts. It starts when every task of `depends_on` has succeeded; a failure of one named in
    `optional_dependencies` does not hold it back. With `approval`, a person must allow it first."""

    id: _Name
    agent: _Name = ""
    skill: _Name = ""
    intent: Annotated[str, StringConstraints(strip_whitespace=True)]
    input: JsonValue = None
    depends_on: tuple[_Name, ...] = ()
    optional_dependencies: tuple[_Name, ...] = ()
    approval: Literal["required"] | None = None

    @model_validator(mode="after")
    def _for_somebody(self) -> Self:
        if not self.model_fields_set & {"agent", "skill"}:  # an empty name is one that there is not, as any other
            raise ValueError("a task names an agent, or a skill that its agent must have")
        return self


class Plan(Frozen):
    """What is to be done. With no tasks, `cannot` says why nothing here can serve the request, and `done`, to an
    adaptive team, that nothing remains to be done."""

    goal: str = ""
    tasks: tuple[PlannedTask, ...] = ()
    final_instruction: str = ""
    cannot: str = ""
    done: bool = False


class SelectedAgent(Frozen):
    """An agent that a classifier thinks can serve the request, or a `skill`, for whichever agent has it. `confidence`
    is from 0 to 1."""

    agent: _Name = ""
    skill: _Name = ""
    confidence: Annotated[float, Field(ge=0, le=1)]
    intent: str = ""

    @model_validator(mode="after")
    def _somebody(self) -> Self:
        if not self.model_fields_set & {"agent", "skill"}:
            raise ValueError("who is selected is an agent, or a skill that the agent must have")
        return self


class Selection(Frozen):
    """What a classifier answers: the agents that could serve the request, surest first. `unserved` is the part of the
    request that none of them is for, `question` what to ask back where nobody is sure."""

    agents: tuple[SelectedAgent, ...] = ()
    unserved: str = ""
    question: str = ""
