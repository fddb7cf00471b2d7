"""Define an agent by a prompt, a model, tools and an output type. The agent calls the model and the tools in a loop.

The number of model calls is limited. Each tool call of the model gets exactly one result. The error of a tool is also a
result. If a provider fails, the agent repeats the model call a few times. If the last try fails, the attempt fails with
the provider's error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, JsonValue, ValidationError

from pointsman.authoring.agent import Agent, make_card
from pointsman.authoring.attempt_state import AttemptState
from pointsman.authoring.code_digest import code_digest
from pointsman.authoring.context import Context, state_of
from pointsman.authoring.definition_checks import (
    as_list,
    check_tools,
    instructions_text,
    is_positive_int,
    model_specs,
    output_schema,
    tools_by_name,
)
from pointsman.authoring.durable_steps import DurableSteps
from pointsman.authoring.json_types import InputType, OutputType
from pointsman.authoring.keyword_check import check_keywords
from pointsman.authoring.model_calls import ModelCalls
from pointsman.authoring.model_files import FILES_RULE, ModelFiles, check_extractor, read_model_files
from pointsman.authoring.tool_turns import ToolTurns, truncate
from pointsman.authoring.tools import Tool, ToolSource
from pointsman.clock import SystemClock
from pointsman.errors import ConfigurationError, RefusedError, TaskError
from pointsman.llm.factory import model_from
from pointsman.llm.json_extraction import find_json
from pointsman.llm.json_schemas import object_schema, unwrapped
from pointsman.llm.json_text_field import JsonTextField
from pointsman.llm.prompt import DATA_RULE, write_messages, write_task
from pointsman.ports.clock import Clock
from pointsman.ports.model import Model, ModelReply, ModelRequest, ToolCall, Turn
from pointsman_schemas.card import AgentCard, Role
from pointsman_schemas.events import ErrorKind, Handoff, UserMessage
from pointsman_schemas.role_schemas import closed_schema
from pointsman_schemas.strict_json import compact_json, describe
from pointsman_schemas.unknown_fields import find_unknown_fields

__all__ = ["LLMAgent"]

_MAX_MISNAMED: Final = 5  # largest number of misnamed fields in one message to the model
MAX_UNUSABLE_CHARS: Final = 4_000
"""Number of characters of an unusable answer in the workflow's log. They are enough to show the model's mistake."""


class LLMAgent(Agent):
    """Agent that does its work with a language model.

    If `input` and `output` are the types of a role, such as `PlannerInput` and `Plan`, the provider receives a schema
    that allows only the agents, skills and tasks of the input.

    Args:
        name: Name of the agent.
        description: Purpose of the agent. Planners choose agents by this text.
        instructions: Prompt, or the path of a file with the prompt. The file is read when the agent is defined.
        tools: Tools and sources of tools, such as `mcp_tools(...)`.
        input: Type against which the input of a handoff is checked, or None for any input.
        output: Pydantic model of the answer, or None for text.
        output_name: Name of the answer's schema for the provider.
        deps: Values, such as a database or a client, which tools get by their type: `context.dep(Database)`. The agent
            does not close the values.
        model: `openai:NAME`, `openai-responses:NAME`, `anthropic:NAME`, `offline`, a model object, or None. None means
            the model that the environment names at the first use. If you pass a list and a model fails, the next
            model is tried.
        role: Role of the agent in a team.
        skills: Skills of the agent.
        intents: Intents that the agent serves.
        examples: Example requests for the agent.
        version: Semantic version of the agent.
        fallback: Name of the agent that gets a task after this agent has failed.
        concurrency: Largest number of attempts at a time in one process.
        max_in_flight: Largest number of attempts at a time in all processes together.
        timeout: Limit of one attempt, in seconds.
        reacts_to: Names of the domain events that the agent reacts to, in a team with `Choreography`.
        approval: `required` if a person must allow each task of the agent.
        team: Team to which the agent belongs; by default every team may use the agent. The agent's full name is then
            `TEAM--NAME`, and the agent has its own queue. The team lists the name in `own_agents`.
        turns: Largest number of model calls of one attempt. An attempt that needs more calls fails with the kind
            `limit`.
        tokens: Largest number of tokens of one attempt, or None for no limit. An attempt that needs more tokens fails
            with the kind `limit`.
        max_tokens: Limit of one answer, in tokens.
        temperature: Temperature of the model, or None for the provider's default.
        durable: True to store each answer that calls tools, and each result of a tool, on the bus before the agent
            acts on it. A worker that receives the attempt after another worker crashed continues after the last stored
            step. If a tool was running at the crash, an `idempotent` tool is run again; otherwise the attempt ends with
            `outcome_unknown`. Without `durable`, an attempt starts from the beginning after a crash or after a person's
            answer: the model is called again, and finished tools run again, with the same idempotency keys if the model
            repeats the calls. So without `durable`, a tool with `approval` must be `idempotent`.
        stream: Send the text to clients while the model writes it. If the output has a text field `answer`, only the
            text of this field is sent.
        listen: Give the model the new messages to the workflow before each model call. Without `listen`, the model
            gets only the messages that arrived before the attempt.
        extractor: Tool that returns the text of a file if the model cannot read the file: `extract(name, context)`.
            Images and PDF files are given unchanged to models that accept them. Text files are given as text.
        clock: Clock of the pauses between tries and of the deadline; by default the system's clock.

    Raises:
        ConfigurationError: The definition is not valid. The message contains the necessary change.
    """

    @check_keywords
    def __init__(
        self,
        *,
        name: str,
        description: str,
        instructions: str | Path,
        tools: Sequence[Tool[..., Any] | ToolSource] = (),
        input: Any = None,
        output: type[BaseModel] | None = None,
        output_name: str = "answer",
        deps: Sequence[object] = (),
        model: str | Model | Sequence[str | Model] | None = None,
        role: Role = Role.WORK,
        skills: Sequence[str] = (),
        intents: Sequence[str] = (),
        examples: Sequence[str] = (),
        version: str = "1.0.0",
        fallback: str | None = None,
        concurrency: int = 8,
        max_in_flight: int = 1_000,
        timeout: float = 120.0,
        reacts_to: Sequence[str] = (),
        approval: Literal["required"] | None = None,
        team: str | None = None,
        turns: int = 10,
        tokens: int | None = None,
        max_tokens: int = 8192,
        temperature: float | None = None,
        durable: bool = True,
        stream: bool = False,
        listen: bool = False,
        extractor: Tool[..., Any] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._input = InputType[Any](input, f"agent {name}") if input is not None else None
        self._plain_schema = output_schema(output, name)
        self._written = OutputType(output, f"agent {name}") if output is not None else None
        self._card = make_card(
            name=name,
            description=description,
            role=role,
            skills=skills,
            intents=intents,
            examples=examples,
            version=version,
            fallback=fallback,
            concurrency=concurrency,
            max_in_flight=max_in_flight,
            timeout=timeout,
            reacts_to=reacts_to,
            approval=approval,
            owner=team,
            input_schema=self._input.schema if self._input else {},
            output_schema=self._written.schema if self._written else {"type": "string"},
        )
        if not is_positive_int(turns):
            raise ConfigurationError(f"agent {name} has turns={turns!r}; expected at least 1 model call")
        if tokens is not None and not is_positive_int(tokens):
            raise ConfigurationError(f"agent {name} has tokens={tokens!r}; expected at least 1, or None for no limit")
        if not is_positive_int(max_tokens):
            raise ConfigurationError(f"agent {name} has max_tokens={max_tokens!r}; expected at least 1")
        usable = check_tools(tools, name)
        self._tools_given = tools_by_name([tool for tool in usable if isinstance(tool, Tool)], name, durable)
        self._sources = [source for source in usable if not isinstance(source, Tool)]
        self._instructions = f"{instructions_text(instructions, name)}\n\n{DATA_RULE}"
        self._output = output
        self._output_schema = object_schema(self._plain_schema) if self._plain_schema is not None else None
        self._output_name = output_name
        self._specs = model_specs(model, name)
        own_class = () if type(self) is LLMAgent else (type(self),)
        digest = code_digest(*own_class, self._instructions, turns, temperature, *self._tools_given.values())
        self._card = self._card.model_copy(update={"digest": digest})
        self._turns = turns
        self._tokens = tokens
        self._max_tokens = max_tokens
        self._temperature = temperature
        self._durable = durable
        self._stream = stream
        self._listen = listen
        self._extractor = check_extractor(extractor, name)
        self._deps = as_list(deps, "deps", name)
        self._clock = clock or SystemClock()

    @cached_property
    def models(self) -> tuple[Model, ...]:
        """Models of the agent, in the order in which they are tried.

        Raises:
            ConfigurationError: A model does not exist, or its key is not set.
        """
        return tuple(model_from(spec) if spec is None or isinstance(spec, str) else spec for spec in self._specs)

    @property
    def model(self) -> Model:
        """Model that is tried first.

        Raises:
            ConfigurationError: A model does not exist, or its key is not set.
        """
        return self.models[0]

    @property
    def uses_default_model(self) -> bool:
        """True if the environment selects a model of the agent."""
        return None in self._specs

    @property
    def card(self) -> AgentCard:
        """Card of the agent, with the name of the model.

        Raises:
            ConfigurationError: A model does not exist, or its key is not set. A worker then fails at its start.
        """
        model = self.model
        label = model.name if model.name == model.provider else f"{model.provider}:{model.name}"
        return self._card.model_copy(update={"model": label})

    def with_model(self, model: str | Model | Sequence[str | Model] | None) -> Self:
        """Return a copy of this agent that uses a different model, with the same prompt, tools and limits.

        Use this method to change the model of a shipped agent such as the planner, or to use a `ScriptedModel` in a
        test. The original and the copy share the sources of tools. If you close one agent, the sources are closed for
        both.

        Args:
            model: Model, as for `LLMAgent`.

        Returns:
            The copy.

        Raises:
            ConfigurationError: `model` cannot be a model.
        """
        other = copy(self)
        other._specs = model_specs(model, self._card.name)
        vars(other).pop("models", None)  # not copied, because open models belong to the original
        return other

    async def open(self) -> None:
        """Connect the sources of tools. A worker does this at its start, before any task."""
        await self._tools()

    async def close(self) -> None:
        """Close the models' connections and the sources of tools. The next use opens the models again."""
        for model in vars(self).pop("models", ()):
            await model.close()
        for source in self._sources:
            await source.close()

    async def _tools(self) -> Mapping[str, Tool[..., Any]]:
        """Return the given tools and the tools that the sources list now, by name."""
        if not self._sources:
            return self._tools_given
        found = [tool for source in self._sources for tool in await source.tools()]
        return tools_by_name([*self._tools_given.values(), *found], self._card.name, self._durable)

    async def run(self, handoff: Handoff, context: Context) -> JsonValue:
        state = state_of(context).with_deps(self._deps)
        if not self._durable:
            state.journal = None
        given: Any = handoff.input
        if self._input is not None:
            given = self._input.from_json(handoff.input)  # for the check and the schema; the model gets `handoff.input`
        schema = closed_schema(self._output, given) or self._output_schema
        files = await self._files(context)
        text = write_task(
            handoff.intent, handoff.input, handoff.context, handoff.feedback, files.listed, handoff.history
        )
        turns = [Turn("user", text, attachments=files.attachments)]
        repaired = False
        run = ToolTurns(state, await self._tools(), DurableSteps(state))
        await run.steps.load()
        for number in range(1, self._turns + 1):
            if messages := await run.steps.new_messages(number, fetch=self._listen and number > 1):
                turns = _with_messages(turns, messages)
            reply = await run.steps.model_reply(number, partial(self._run_turns, run, tuple(turns), schema))
            _check_reply(reply, self._card.name)
            if reply.calls:
                calls = _with_unique_ids(reply.calls, number)
                turns.append(Turn("assistant", reply.text, calls, provider_state=reply.provider_state))
                turns.extend(await run.run(calls, number))
                continue
            value, problem = self._parse_reply(reply)
            if not problem:
                return value
            if repaired:
                raise self._unusable_error(reply, problem)
            repaired = True
            said = reply.text if reply.text.strip() else "(nothing)"
            answered = Turn("assistant", said, provider_state=reply.provider_state)
            turns += [answered, Turn("user", _repair_message(problem, schema))]
        raise TaskError(
            f"agent {self._card.name} gave no answer in {self._turns} turns; "
            "give it more turns, clearer instructions or fewer tools",
            kind=ErrorKind.LIMIT,
        )

    async def _files(self, context: Context) -> ModelFiles:
        if not context.files:
            return ModelFiles()
        return await read_model_files(context, self._card.role, self.models, self._extractor)

    # Asking the model

    async def _run_turns(
        self, run: ToolTurns, turns: tuple[Turn, ...], schema: Mapping[str, JsonValue] | None, state: AttemptState
    ) -> ModelReply:
        request = ModelRequest(
            model="",
            instructions=f"{self._instructions}\n\n{FILES_RULE}" if run.state.files else self._instructions,
            turns=turns,
            tools=tuple(tool.spec for tool in run.tools.values()),
            output_schema=schema,
            output_name=self._output_name,
            max_tokens=self._max_tokens,
            temperature=self._temperature,
            on_text=self._text_receiver(state),
        )
        calls = ModelCalls(self._card.name, self.models, self._tokens, self._clock)
        for _ in range(run.steps.lost_calls()):
            calls.record_lost_call(request, run.state)  # not in a step: the next worker counts all lost calls itself
        return await calls.complete(request, state)

    def _text_receiver(self, state: AttemptState) -> Callable[[str], None] | None:
        """Return the function that receives the streamed text of a call; None if the agent does not stream.

        If the output has a text field `answer`, only the text of this field is sent, without JSON.
        """
        if not self._stream:
            return None
        send = Context(state).stream_text
        properties = (self._plain_schema or {}).get("properties")
        answer = properties.get("answer") if isinstance(properties, dict) else None
        if not isinstance(answer, dict) or answer.get("type") != "string":
            return send
        fields: dict[str, JsonTextField] = {}

        def receive(text: str) -> None:  # one parser for each call, because a repeated call streams from the beginning
            fields.setdefault(state.handle.text_id, JsonTextField("answer", send)).feed(text)

        return receive

    # Reading the answer

    def _parse_reply(self, reply: ModelReply) -> tuple[JsonValue, str]:
        """Return the answer and an empty text, or None and the problem of the reply."""
        if not reply.text.strip() and reply.data is None:
            return None, "it is empty"
        if self._output is None or self._written is None:
            return reply.text.strip(), ""
        found = (reply.data,) if reply.data is not None else find_json(reply.text)
        fitting: list[JsonValue] = []
        problem = "it contains no JSON object"
        for each in found:
            candidate = unwrapped(self._plain_schema or {}, each)
            try:
                value = self._output.model_validate_json(compact_json(candidate))
            except ValidationError as error:
                problem = describe(error)
                continue
            if candidate and not value.model_fields_set:  # refused, because each value would be a default
                problem = f"it has none of the fields {', '.join(self._output.model_fields)}"
                continue
            if isinstance(candidate, dict) and (misnamed := _misnamed_fields(self._output, candidate)):
                problem = misnamed
                continue
            try:
                fitting.append(self._written.to_json(value))
            except TaskError as error:
                problem = str(error)
        if len(fitting) == 1:
            return fitting[0], ""
        return None, f"it contains {len(fitting)} JSON objects that fit; give one" if fitting else problem

    def _unusable_error(self, reply: ModelReply, problem: str) -> TaskError:
        if not reply.text.strip():
            return RefusedError("the model gave an empty answer twice")
        return TaskError(
            f"neither the answer of agent {self._card.name} nor its repair can be used: {problem}",
            kind=ErrorKind.INVALID_OUTPUT,
            unusable_output=truncate(reply.text, MAX_UNUSABLE_CHARS),
        )


def _with_messages(turns: Sequence[Turn], messages: Sequence[UserMessage]) -> list[Turn]:
    """Return the turns with the messages added to the last turn, or in a new turn if the last turn is not the user's.

    The user's last turn is extended, because some providers refuse two turns of the user in a row.
    """
    text = write_messages(messages)
    if turns[-1].role == "user":
        return [*turns[:-1], replace(turns[-1], text=f"{turns[-1].text}\n{text}")]
    return [*turns, Turn("user", text)]


def _misnamed_fields(output: type[BaseModel], answer: dict[str, JsonValue]) -> str:
    """Name the fields of an answer that are probably misspelled fields of `output`. Their values would be lost."""
    misnamed = [each for each in find_unknown_fields(output, answer) if each.meant]
    return "; ".join(f"{each.path} {each.message}" for each in misnamed[:_MAX_MISNAMED])


def _repair_message(problem: str, schema: Mapping[str, JsonValue] | None) -> str:
    if schema is None:
        return f"Your answer cannot be used: {problem}. Give the answer as text."
    return (
        f"Your answer cannot be used: {problem}. Give it again, whole and corrected, as one JSON object and "
        f"nothing else, by this JSON Schema: {compact_json(dict(schema)).decode()}"
    )


def _check_reply(reply: ModelReply, agent: str) -> None:
    """Raise an error if a reply is a refusal or was cut off. A repair would not help: it would get the same reply.

    Raises:
        RefusedError: The model or the provider's filter refused.
        TaskError: The answer was cut off; kind `limit`.
    """
    match reply.finish:
        case "refusal":
            said = truncate(reply.text.strip(), 500) or "the provider's content filter stopped the answer"
            raise RefusedError(f"the model refused: {said}")
        case "length":
            raise TaskError(
                f"the answer of agent {agent} was cut off at the model's limit; raise max_tokens or ask for less",
                kind=ErrorKind.LIMIT,
            )


def _with_unique_ids(calls: Sequence[ToolCall], turn: int) -> tuple[ToolCall, ...]:
    """Return the calls with unique ids, because some servers leave the ids empty or repeat them."""
    counts = Counter(call.id for call in calls)
    return tuple(
        call if call.id and counts[call.id] == 1 else ToolCall(f"call_{turn}_{place}", call.name, call.arguments)
        for place, call in enumerate(calls)
    )
