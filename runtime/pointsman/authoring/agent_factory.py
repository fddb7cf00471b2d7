"""An agent that makes the agent it takes: each task says what it needs, and an LLM agent is built for that task alone.

What is made can use tools of the factory's list and nothing else. It hands no work on and makes no agents, for neither
is a tool; its model, turns, tokens and time are the factory's. It is gone when its task has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, create_model

from pointsman.authoring.agent import Agent
from pointsman.authoring.context import Context
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.authoring.signatures import JsonType
from pointsman.authoring.tools import Tool
from pointsman.errors import ConfigurationError, TaskError
from pointsman.ports.model import Model
from pointsman_schemas.card import AgentCard
from pointsman_schemas.events import ErrorKind, Handoff

__all__ = ["AgentFactory", "AgentSpec"]

MAX_FIELDS: Final = 32
"""Of an answer: more than a model fills reliably."""

FieldKind = Literal["string", "number", "integer", "boolean", "strings"]

_FIELD_TYPES: Final[dict[FieldKind, Any]] = {
    "string": str, "number": float, "integer": int, "boolean": bool, "strings": list[str],
}  # fmt: skip

_FieldName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]


class AgentSpec(BaseModel):
    """What a task needs of the agent that is made for it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    instructions: Annotated[
        str, Field(min_length=1, description="Who the agent is and how it works, for this task alone; its prompt")
    ]
    tools: Annotated[tuple[str, ...], Field(description="The tools it may use, by name; as few as will do")] = ()
    input: Annotated[JsonValue, Field(description="The data it works on")] = None
    output: Annotated[
        dict[_FieldName, FieldKind],
        Field(description="The fields of its answer, each with its kind; without any, the answer is text"),
    ] = {}


class AgentFactory(Agent):
    """An agent whose input is a `AgentSpec` and whose answer is that of the LLM agent it makes for it.

    `tools` are those it may give away. `max_tools` and `max_instructions`, in characters, bound one need; `turns`,
    `tokens`, `max_tokens` and `timeout` bound what is made, as they do an `LLMAgent`. The card names the tools, so
    planners know what can be asked for.

    Raises:
        ConfigurationError: the definition does not fit; the message says what to change.
    """

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
                    f"factory {name} may give away {each!r}, which is no tool; list @tool functions"
                )
        if max_tools < 0 or max_instructions < 1:
            raise ConfigurationError(
                f"factory {name} has max_tools={max_tools} and max_instructions={max_instructions}; "
                "expected at least 0 and 1"
            )
        self._name = name
        self._tools = {each.name: each for each in tools}
        self._max_tools = max_tools
        self._max_instructions = max_instructions
        self._spec_model = JsonType[AgentSpec](AgentSpec, f"factory {name}")
        self._limits: dict[str, Any] = {
            "timeout": timeout, "turns": turns, "tokens": tokens, "max_tokens": max_tokens, "durable": durable,
        }  # fmt: skip
        self._deps = tuple(deps)
        self._schemas = {"input_schema": self._input_schema(), "output_schema": {}}
        # Never asked anything: it has the models, checks the definition, and is most of the card.
        self._base_instructions = LLMAgent(
            name=name, description=description, instructions=description, tools=tools, model=model, skills=skills,
            fallback=fallback, concurrency=concurrency, max_in_flight=max_in_flight, **self._limits,
        )  # fmt: skip

    @property
    def models(self) -> tuple[Model, ...]:
        """The models of the agents that are made, in the order in which they are asked."""
        return self._base_instructions.models

    @property
    def card(self) -> AgentCard:
        return self._base_instructions.card.model_copy(update=self._schemas)

    def with_model(self, model: str | Model | Sequence[str | Model] | None) -> Self:
        """This factory, whose agents work on another `model`. Raises `ConfigurationError` when it cannot be one."""
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
        """The agent for `need`.

        Raises:
            TaskError: of kind `invalid_input`: it asks for a tool that is not on the list, or for too much.
        """
        wanted = tuple(dict.fromkeys(need.tools))
        for name in wanted:
            if name not in self._tools:
                there = ", ".join(self._tools) or "none"
                raise self._refusal(f"it asks for the tool {name!r}, which is not one of: {there}")
        if len(wanted) > self._max_tools:
            raise self._refusal(f"it asks for {len(wanted)} tools, and {self._max_tools} are allowed")
        if len(need.instructions) > self._max_instructions:
            raise self._refusal(
                f"its instructions have {len(need.instructions)} characters, and {self._max_instructions} are allowed"
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
            raise self._refusal(f"its output has {len(need.output)} fields, and {MAX_FIELDS} are allowed")
        if taken := [name for name in need.output if hasattr(BaseModel, name)]:
            raise self._refusal(f"a field of its output cannot be called {taken[0]!r}; choose another name")
        fields: dict[str, Any] = {name: (_FIELD_TYPES[kind], ...) for name, kind in need.output.items()}
        answer: type[BaseModel] = create_model("Answer", **fields)
        return answer

    def _refusal(self, why: str) -> TaskError:
        return TaskError(f"factory {self._name} makes no such agent: {why}", kind=ErrorKind.INVALID_INPUT)

    def _input_schema(self) -> dict[str, JsonValue]:
        """The schema of a need, with the bounds and the tools of this factory."""
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
