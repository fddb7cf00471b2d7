"""What the supervisor tells the agents that plan, classify and synthesize: the `input` of their handoffs."""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from pointsman_schemas.base import Frozen
from pointsman_schemas.events import Conflict, Gap, TaskReport
from pointsman_schemas.ids import AgentName, TaskId
from pointsman_schemas.strict_json import JsonValue

__all__ = [
    "ClassifierInput",
    "JudgeInput",
    "LimitsLeft",
    "MenuItem",
    "PlannerInput",
    "Refinement",
    "RefinerInput",
    "RequestInput",
    "Review",
    "ReviewInput",
    "Ruling",
    "Synthesis",
    "SynthesizerInput",
]

RequestInput: TypeAlias = str | dict[str, JsonValue]


class MenuItem(Frozen):
    """An agent as the planner sees it: the part of its card that helps to choose it and to write its input.
    `note` is what else there is to know of it now."""

    name: AgentName
    description: str
    skills: tuple[str, ...] = ()
    intents: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    input_schema: dict[str, JsonValue] = {}
    note: str = ""


class LimitsLeft(Frozen):
    """What a plan has to do with: `seconds` until the workflow's deadline, how many more times it may be planned again,
    and what it has not used of its `calls` of models, `tokens` and `cost` in US dollars; None is without a bound."""

    seconds: float
    replans: int = 0
    calls: int | None = None
    tokens: int | None = None
    cost: float | None = None


class PlannerInput(Frozen):
    """Everything a planner may know. Answers with a `Plan`.

    `problems` says why its last plan was refused; `results` and `agents_used` are set when it plans again, and
    `replan_reason` says why it must. With `adaptive` it plans the next tasks only, is told every result, and says
    `done` when nothing remains; `plans_left` is how often it will be asked again. `limits_left` is what the whole
    workflow may still take.
    """

    request: RequestInput
    metadata: dict[str, JsonValue] = {}
    agents: tuple[MenuItem, ...] = ()
    agents_used: tuple[AgentName, ...] = ()
    results: tuple[TaskReport, ...] = ()
    problems: tuple[str, ...] = ()
    replan_reason: str = ""
    max_tasks: int = 1_000
    limits_left: LimitsLeft | None = None
    adaptive: bool = False
    plans_left: int | None = None
    instructions: str = ""


class ClassifierInput(Frozen):
    """What a classifier chooses from. Answers with a `Selection`."""

    request: RequestInput
    metadata: dict[str, JsonValue] = {}
    agents: tuple[MenuItem, ...] = ()
    threshold: float = 0.4


class SynthesizerInput(Frozen):
    """What an answer is made for. The results are the handoff's `context`. Answers with a `Synthesis`.

    `disagreements` are what the results say differently of the same thing, a sentence each.
    """

    request: RequestInput
    goal: str = ""
    final_instruction: str = ""
    gaps: tuple[Gap, ...] = ()
    limit: str = ""
    disagreements: tuple[str, ...] = ()
    decisions: tuple[Conflict, ...] = ()


class RefinerInput(Frozen):
    """A task that has failed `attempts` times, last with `error`. Answers with a `Refinement`."""

    request: RequestInput
    intent: str
    task_input: JsonValue = None
    agent: AgentName
    agent_description: str = ""
    attempts: int
    error: str


class Refinement(Frozen):
    """The task in other words."""

    intent: str


class JudgeInput(Frozen):
    """Where results contradict each other, a sentence each. The results are the handoff's `context`. Answers with a
    `Ruling`."""

    request: RequestInput
    disagreements: tuple[str, ...]


class Ruling(Frozen):
    """A decision on each contradiction."""

    decisions: Annotated[tuple[Conflict, ...], Field(min_length=1)]


class ReviewInput(Frozen):
    """A stage's result that a judge is to look at: it stands in the handoff's `context` as that of `task_id`, after
    those of the stages before. `intent` is what `agent` was asked to do, `criteria` what the team wants of it besides.
    It can be sent back once: not when this is the `last` look. Answers with a `Review`."""

    request: RequestInput
    metadata: dict[str, JsonValue] = {}
    task_id: TaskId
    agent: AgentName
    intent: str
    criteria: str = ""
    last: bool = False


class Review(Frozen):
    """What becomes of a stage's result: `pass` and the pipeline goes on, `again` and the stage is done again by who is
    told the `reason`, `stop` and the pipeline ends there."""

    verdict: Literal["pass", "again", "stop"]
    reason: str = ""

    @model_validator(mode="after")
    def _says_why(self) -> Self:
        if self.verdict != "pass" and not self.reason.strip():
            raise ValueError(f"a verdict of {self.verdict} needs a reason: say what is wrong")
        return self


class Synthesis(Frozen):
    """The answer to the request, in the words the caller reads."""

    answer: str
