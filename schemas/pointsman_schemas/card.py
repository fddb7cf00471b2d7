"""An agent's card: what it can do and how to reach it, announced in the registry while it lives."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from pointsman_schemas.base import Frozen
from pointsman_schemas.ids import AgentName, Token
from pointsman_schemas.strict_json import JsonValue

__all__ = ["AgentCard", "Role"]


class Role(StrEnum):
    """What a task asks of an agent. All but `work` are the orchestration's own roles, and no plan may use them."""

    WORK = "work"
    PLAN = "plan"
    CLASSIFY = "classify"
    SYNTHESIZE = "synthesize"
    REFINE = "refine"
    JUDGE = "judge"


class AgentCard(Frozen):
    """What an agent says of itself. The planner reads `description`, `skills` and `input_schema` to choose it.

    `concurrency` is the number of tasks one instance runs at a time, `max_in_flight` that of all instances together,
    which the broker keeps; `timeout` is in seconds and bounds one attempt;
    `fallback` names the agent that gets the task when this one is exhausted. A `team` works by a workflow of its own,
    and its `version` is a digest of its definition, equal in all of its supervisors.
    `reacts_to` are the events that hand it a task in a choreography. With `approval`, a person must allow each task.
    `left_running` is how many threads and handlers of the instance were told to stop and still run.
    """

    name: AgentName
    version: str = "1.0.0"
    description: str
    role: Role = Role.WORK
    skills: tuple[str, ...] = ()
    intents: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    input_schema: dict[str, JsonValue] = {}
    output_schema: dict[str, JsonValue] = {}
    model: str | None = None
    fallback: AgentName | None = None
    concurrency: Annotated[int, Field(ge=1, le=10_000)] = 8
    max_in_flight: Annotated[int, Field(ge=1, le=100_000)] = 1_000
    timeout: Annotated[float, Field(gt=0)] = 120.0
    team: bool = False
    reacts_to: tuple[Token, ...] = ()
    approval: Literal["required"] | None = None
    instance: str = ""
    started_at: AwareDatetime | None = None
    left_running: Annotated[int, Field(ge=0)] = 0

    @property
    def schemas(self) -> tuple[object, object]:
        """What it takes and what it gives: equal in all instances of one name, as a task goes to any of them."""
        return self.input_schema, self.output_schema
