"""Build an LLM agent for each task, from the specification in the task's input.

The built agent can use only tools of the factory's list. No tool delegates work or builds agents, so the built agent
can do neither. The factory sets the model and the limits of the built agent, which exists only for its task.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, create_model

from pointsman.authoring.agent import Agent
from pointsman.authoring.context import Context
from pointsman.authoring.json_types import InputType
from pointsman.authoring.keyword_check import check_keywords
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.authoring.tools import Tool
from pointsman.errors import ConfigurationError, TaskError
from pointsman.ports.model import Model
from pointsman_schemas.card import AgentCard
from pointsman_schemas.events import ErrorKind, Handoff

__all__ = ["AgentFactory", "AgentSpec"]

MAX_FIELDS: Final = 32
"""Largest number of fields of an answer, because models do not fill more fields reliably."""

FieldKind = Literal["string", "number", "integer", "boolean", "strings"]

_FIELD_TYPES: Final[dict[FieldKind, Any]] = {
    "string": str, "number": float, "integer": int, "boolean": bool, "strings": list[str],
}  # fmt: skip

_FieldName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]


class AgentSpec(BaseModel):
    """Specification of the agent that is built for a task."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    instructions: Annotated[
        str, Field(min_length=1, description="Prompt of the agent: its role and its method for this task only")
    ]
    tools: Annotated[
        tuple[str, ...], Field(description="Names of the tools that the agent may use; as few as possible")
    ] = ()
    input: Annotated[JsonValue, Field(description="The data that the agent works on")] = None
    output: Annotated[
        dict[_FieldName, FieldKind],
        Field(description="The fields of the answer, each with its kind; without fields, the answer is text"),
    ] = {}


class AgentFactory(Agent):
    """Agent whose input is an `AgentSpec`. It builds an LLM agent from the input and returns this agent's answer.

    The card lists the tools, because a planner chooses from these tools.

    Args:
        name: Name of the factory.
        description: Purpose of the factory. Planners choose agents by this text.
        tools: Tools that the built agents may use.
        deps: Values that tools get by type, as for `LLMAgent`.
        model: Model of the built agents, as for `LLMAgent`.
        skills: Skills of the factory.
        fallback: Name of the agent that gets a task after this factory has failed.
        concurrency: Largest number of attempts at a time in one process.
        max_in_flight: Largest number of attempts at a time in all processes together.
        timeout: Limit of one attempt, in seconds.
        turns: Largest number of model calls of one attempt.
        tokens: Largest number of tokens of one attempt, or None for no limit.
        max_tokens: Limit of one answer, in tokens.
        max_tools: Largest number of tools of one `AgentSpec`.
        max_instructions: Largest length of the instructions of one `AgentSpec`, in characters.
        durable: Store the steps of an attempt on the bus, as for `LLMAgent`.

    Raises:
        ConfigurationError: The definition is not valid. The message contains the necessary change.
    """

    @check_keywords
    def __init__(
        self,
        *,
        name: str,
        description: str,
        tools: Sequence[Tool[..., Any]] = (),
        deps: Sequence[object] = (),
        model: str | Model | Sequence[str | Model] | None = None,
        skills: Sequence[str] = (),
        fallback: str | None = None,
        concurrency: int = 8,
        max_in_flight: int = 1_000,
        timeout: float = 120.0,
        turns: int = 10,
        tokens: int | None = None,
        max_tokens: int = 8192,
        max_tools: int = 8,
        max_instructions: int = 4_000,
        durable: bool = True,
    ) -> None:
        for each in tools:
            if not isinstance(each, Tool):
                raise ConfigurationError(
                    f"factory {name} has {each!r} among its tools, which is not a tool; list @tool functions"
                )
        if max_tools < 0 or max_instructions < 1:
            raise ConfigurationError(
                f"factory {name} has max_tools={max_tools} and max_instructions={max_instructions}; "
                "max_tools must be at least 0, and max_instructions at least 1"
            )
        self._name = name
        self._tools = {each.name: each for each in tools}
        self._max_tools = max_tools
        self._max_instructions = max_instructions
        self._spec_model = InputType[AgentSpec](AgentSpec, f"factory {name}")
        self._limits: dict[str, Any] = {
            "timeout": timeout, "turns": turns, "tokens": tokens, "max_tokens": max_tokens, "durable": durable,
        }  # fmt: skip
        self._deps = tuple(deps)
        self._schemas = {"input_schema": self._input_schema(), "output_schema": {}}
        # This agent never runs. Its constructor checks the arguments, and the factory takes the models and most of the
        # card from this agent.
        self._base_instructions = LLMAgent(
            name=name, description=description, instructions=description, tools=tools, model=model, skills=skills,
            fallback=fallback, concurrency=concurrency, max_in_flight=max_in_flight, **self._limits,
        )  # fmt: skip

    @property
    def models(self) -> tuple[Model, ...]:
        """Models of the built agents, in the order in which they are tried."""
        return self._base_instructions.models

    @property
    def card(self) -> AgentCard:
        return self._base_instructions.card.model_copy(update=self._schemas)

    def with_model(self, model: str | Model | Sequence[str | Model] | None) -> Self:
        """Return a copy of this factory whose agents use a different model.

        Args:
            model: Model, as for `LLMAgent`.

        Returns:
            The copy.

        Raises:
            ConfigurationError: `model` cannot be a model.
        """
        other = copy(self)
        other._base_instructions = self._base_instructions.with_model(model)
        return other

    async def close(self) -> None:
        await self._base_instructions.close()

    async def run(self, handoff: Handoff, context: Context) -> JsonValue:
        need = self._spec_model.from_json(handoff.input)
        made = self.build_agent(need)
        return await made.run(handoff.model_copy(update={"input": need.input}), context)

    def build_agent(self, need: AgentSpec) -> LLMAgent:
        """Build the agent for a specification.

        Args:
            need: Specification of the agent.

        Returns:
            The agent, with the limits of this factory.

        Raises:
            TaskError: The specification names a tool that is not on the list, or exceeds a limit. The kind is
                `invalid_input`.
        """
        wanted = tuple(dict.fromkeys(need.tools))
        for name in wanted:
            if name not in self._tools:
                there = ", ".join(self._tools) or "none"
                raise self._refusal(f"the tool {name!r} is not one of: {there}")
        if len(wanted) > self._max_tools:
            raise self._refusal(f"the agent gets {len(wanted)} tools; {self._max_tools} are allowed")
        if len(need.instructions) > self._max_instructions:
            raise self._refusal(
                f"the instructions have {len(need.instructions)} characters, and {self._max_instructions} are allowed"
            )
        return LLMAgent(
            name=self._name,
            description=self._base_instructions.card.description,
            instructions=need.instructions,
            tools=[self._tools[name] for name in wanted],
            output=self._output_type(need),
            deps=self._deps,
            model=self._base_instructions.models,
            **self._limits,
        )

    def _output_type(self, need: AgentSpec) -> type[BaseModel] | None:
        if not need.output:
            return None
        if len(need.output) > MAX_FIELDS:
            raise self._refusal(f"the output has {len(need.output)} fields, and {MAX_FIELDS} are allowed")
        if taken := [name for name in need.output if hasattr(BaseModel, name)]:
            raise self._refusal(f"a field of the output cannot be called {taken[0]!r}; choose another name")
        fields: dict[str, Any] = {name: (_FIELD_TYPES[kind], ...) for name, kind in need.output.items()}
        answer: type[BaseModel] = create_model("Answer", **fields)
        return answer

    def _refusal(self, why: str) -> TaskError:
        return TaskError(f"factory {self._name} refuses the specification: {why}", kind=ErrorKind.INVALID_INPUT)

    def _input_schema(self) -> dict[str, JsonValue]:
        """Return the schema of `AgentSpec` with the limits and the tools of this factory."""
        schema = AgentSpec.model_json_schema()
        properties = schema["properties"]
        properties["instructions"]["maxLength"] = self._max_instructions
        properties["tools"] |= {
            "maxItems": self._max_tools,
            "items": {"type": "string", "enum": list(self._tools)} if self._tools else False,
            "description": " ".join(
                [
                    f"{properties['tools']['description']}:",
                    *(f"{t.name}: {t.spec.description}" for t in self._tools.values()),
                ]
            ),
        }
        return schema
