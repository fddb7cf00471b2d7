"""Define the card of an agent, which the agent announces in the registry while the agent is live."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, Self

from pydantic import AwareDatetime, Field, model_validator

from pointsman_schemas.base import Frozen
from pointsman_schemas.ids import TEAM_SEPARATOR, AgentName, TeamName, Token
from pointsman_schemas.json_schema import JsonSchema

__all__ = ["AgentCard", "Role"]


_SHOWN_DIGEST_CHARS = 8


class Role(StrEnum):
    """The role of a task. The tasks of a plan have the role `work`. Tasks with the other roles serve the supervisor."""

    WORK = "work"
    PLAN = "plan"
    CLASSIFY = "classify"
    SYNTHESIZE = "synthesize"
    REFINE = "refine"
    JUDGE = "judge"
    SUMMARIZE = "summarize"


class AgentCard(Frozen):
    """The card of one instance of an agent. Planners select agents by `description`, `skills` and `input_schema`."""

    name: AgentName = Field(description="The name of the agent, shared by all of its instances.")
    version: str = Field(
        default="1.0.0",
        description="The version. For a team: a digest of its definition, equal in all supervisors of the team.",
    )
    digest: str = Field(
        default="",
        max_length=64,
        description="A digest of the agent's code, equal in all instances with the same code; empty if unknown.",
    )
    owner: TeamName | None = Field(
        default=None,
        description="The team to which the agent belongs. Only plans of this team may use the agent, and "
        "the agent's name begins with the team's name and `--`. Without an owner, every team may use the "
        "agent.",
    )
    problems: tuple[str, ...] = Field(
        default=(), max_length=16, description="Problems that the instance found at its start, for operators."
    )
    description: str = Field(description="The tasks that the agent can do, in one or two sentences.")
    role: Role = Field(default=Role.WORK, description="The role of the tasks that the agent accepts.")
    skills: tuple[str, ...] = Field(default=(), description="Skills that a plan can name instead of the agent.")
    intents: tuple[str, ...] = Field(default=(), description="Names of the intents that the agent serves.")
    examples: tuple[str, ...] = Field(default=(), description="Example requests.")
    input_schema: JsonSchema = Field(default={}, description="JSON Schema of the input.")
    output_schema: JsonSchema = Field(default={}, description="JSON Schema of the output.")
    model: str | None = Field(default=None, description="The model that the agent uses.")
    fallback: AgentName | None = Field(
        default=None, description="The agent that receives a task after all attempts of this agent have failed."
    )
    concurrency: int = Field(
        default=8, ge=1, le=10_000, description="Largest number of tasks that one instance runs at the same time."
    )
    max_in_flight: int = Field(
        default=1_000,
        ge=1,
        le=100_000,
        description="Largest number of tasks that all instances together run at the same time. The broker enforces "
        "this limit.",
    )
    timeout: float = Field(default=120.0, gt=0, description="Time limit of one attempt, in seconds.")
    team: bool = Field(default=False, description="True if the agent is a team, which starts a workflow for each task.")
    agents: Literal["*"] | tuple[AgentName, ...] = Field(
        default="*", description="For a team: the agents that its plans may use; `*` for all."
    )
    reacts_to: tuple[Token, ...] = Field(default=(), description="Events that give the agent a task in a choreography.")
    approval: Literal["required"] | None = Field(
        default=None, description="`required` if a person must approve each task of the agent."
    )
    instance: str = Field(default="", description="The id of the instance.")
    started_at: AwareDatetime | None = Field(default=None, description="Start of the instance.")
    orphaned_handlers: int = Field(
        default=0,
        ge=0,
        description="Number of threads and handlers of the instance that were cancelled but still run.",
    )

    @model_validator(mode="after")
    def _is_named_after_its_owner(self) -> Self:
        if self.owner is not None and not self.name.startswith(self.owner + TEAM_SEPARATOR):
            raise ValueError(
                f"the agent is called {self.name} and belongs to {self.owner}; its name must begin with "
                f"{self.owner}{TEAM_SEPARATOR}"
            )
        return self

    @property
    def revision(self) -> str:
        """Version and digest of the code, such as `1.0.0+3f9ac1d2`. Instances with equal code have equal revisions."""
        if not self.digest:
            return self.version
        return f"{self.version}{'.' if '+' in self.version else '+'}{self.digest[:_SHOWN_DIGEST_CHARS]}"

    @property
    def input_output_schemas(self) -> tuple[object, object]:
        """Input and output schema. They must be equal in all instances, because any instance may receive a task."""
        return self.input_schema, self.output_schema
