"""An agent that is a prompt, a model, tools and an output type: a bounded loop of model calls around tool calls.

Every call of a model is answered by exactly one result; what a tool gets wrong is told to the model; what a provider
gets wrong is tried again here, a few times, and then told to the supervisor.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, JsonValue, ValidationError

from pointsman.agent import Agent, make_card
from pointsman.bus.clock import SystemClock
from pointsman.context import Context
from pointsman.errors import ConfigurationError, ModelError, NeedsApproval, Refused, TaskError
from pointsman.journal import Steps
from pointsman.llm.prompt import DATA_RULE, write_task
from pointsman.llm.reading import find_json
from pointsman.llm.selection import model_from
from pointsman.metering import Admission
from pointsman.ports import Clock, Model, ModelReply, ModelRequest, ToolCall, Turn
from pointsman.shapes import Shape
from pointsman.telemetry import content, metrics, names
from pointsman.tools import Tool, ToolSource
from pointsman_schemas.card import AgentCard, Role
from pointsman_schemas.events import ErrorKind, Handoff
from pointsman_schemas.strict_json import as_json_value, compact, describe

__all__ = ["LLMAgent"]

TRIES: Final = 3
"""Times one model call is made when the provider fails in passing. More is the supervisor's business: its retries are
durable and hold no slot."""
LONGEST_WAIT: Final = 20.0
"""Seconds that a try is waited for here; a provider that asks for more is left to the supervisor's schedule."""
REPEATS: Final = 2
"""Turns in which the same tool may be called with the same arguments: a poll or a second look, not a loop."""
PARALLEL: Final = 32
"""Tool calls run in one turn; what a model asks for beyond is refused, and it may ask again."""
UNUSABLE_LENGTH: Final = 4_000
"""Characters of an answer that cannot be used which the log keeps: enough to see what the model did."""
LETTERS_OF_A_TOKEN: Final = 4
"""As English has them on average: a guess of what a call will use, set right when it is over."""
GUESSED_ANSWER: Final = 300
"""Tokens that an answer is taken to have before it is there."""
RESULT_LENGTH: Final = 50_000
"""Characters of a tool's result that a model is shown: some 12,000 tokens."""


class LLMAgent(Agent):
    """An agent whose work a model does.

    `instructions` is the prompt, or the path of a file with it, read at once. `model` is `openai:NAME`,
    `openai-responses:NAME`, `anthropic:NAME`, `offline`, a model object, or None for what the environment says, decided
    at first use; of a list, the next one is asked when the one before it fails. With `stream`, the text is shown to
    whoever watches while it is written. `input` is
    the type a handoff's input is checked against, None for any. `output` is the pydantic model of the answer, None for
    text; `output_name` is what the provider is told it is called.

    An attempt ends with an error of kind `limit` after `turns` model calls or when it has used `tokens`; `max_tokens`
    bounds one answer. `timeout`, in seconds, bounds an attempt.

    What `deps` holds, a database or a client, tools get by its type: `context.dep(Database)`. It stays its owner's to
    close.

    With `durable`, each answer that calls tools and each tool's result is kept on the bus before it is acted on: a
    worker that gets the attempt after another has died goes on from there. A tool that was under way then is run again
    if it is `idempotent`; otherwise the attempt ends with `outcome_unknown`.

    Raises:
        ConfigurationError: the definition does not fit; the message says what to change.
    """

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
        timeout: float = 120.0,
        reacts_to: Sequence[str] = (),
        approval: Literal["required"] | None = None,
        turns: int = 10,
        tokens: int | None = None,
        max_tokens: int = 8192,
        temperature: float | None = None,
        durable: bool = True,
        stream: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._input = Shape[Any](input, f"agent {name}") if input is not None else None
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
            timeout=timeout,
            reacts_to=reacts_to,
            approval=approval,
            input_schema=self._input.input_schema if self._input else {},
            output_schema=_schema(output) or {"type": "string"},
        )
        if isinstance(model, Sequence) and not model:
            raise ConfigurationError(f"agent {name} has model={model!r}; name at least one, or None for the default")
        if turns < 1:
            raise ConfigurationError(f"agent {name} has turns={turns}; expected at least 1 model call")
        self._own_tools = _by_name([tool for tool in tools if isinstance(tool, Tool)], name)
        self._sources = [source for source in tools if not isinstance(source, Tool)]
        self._instructions = f"{_text(instructions, name)}\n\n{DATA_RULE}"
        self._output = output
        self._output_schema = _schema(output)
        self._output_name = output_name
        self._specs = tuple(model) if isinstance(model, Sequence) and not isinstance(model, str) else (model,)
        self._turns = turns
        self._tokens = tokens
        self._max_tokens = max_tokens
        self._temperature = temperature
        self._durable = durable
        self._stream = stream
        self._deps = tuple(deps)
        self._clock = clock or SystemClock()

    @cached_property
    def models(self) -> tuple[Model, ...]:
        """The models, in the order in which they are asked.

        Raises:
            ConfigurationError: there is no such model, or its key is not set.
        """
        return tuple(model_from(spec) if spec is None or isinstance(spec, str) else spec for spec in self._specs)

    @property
    def model(self) -> Model:
        """The one that is asked first. Raises as `models` does."""
        return self.models[0]

    @property
    def card(self) -> AgentCard:
        """Names the model, so it raises `ConfigurationError` as `model` does: a worker fails at its start."""
        model = self.model
        label = model.name if model.name == model.provider else f"{model.provider}:{model.name}"
        return self._card.model_copy(update={"model": label})

    async def close(self) -> None:
        """Close the models' connections. The agent opens them again when it is used again."""
        for model in self.__dict__.get("models", ()):
            await model.close()
        for source in self._sources:
            await source.close()

    async def _tools(self) -> Mapping[str, Tool[..., Any]]:
        """All there are now."""
        if not self._sources:
            return self._own_tools
        found = [tool for source in self._sources for tool in await source.tools()]
        return _by_name([*self._own_tools.values(), *found], self._card.name)

    async def run(self, handoff: Handoff, context: Context) -> JsonValue:
        context = context.with_deps(self._deps)
        if self._input is not None:
            self._input.read(handoff.input)  # the model reads it as it came; whether it fits is not the model's to say
        turns = [Turn("user", write_task(handoff.intent, handoff.input, handoff.context, handoff.feedback))]
        repaired = False
        run = _Run(context, await self._tools(), Steps(context, context.journal if self._durable else None))
        await run.done.load()
        for number in range(1, self._turns + 1):
            reply = await run.done.answer(number, partial(self._ask, run, tuple(turns)))
            _accept(reply, self._card.name)
            if reply.calls:
                calls = _told_apart(reply.calls, number)
                turns.append(Turn("assistant", reply.text, calls))
                turns.extend(await self._use(run, calls, number))
                continue
            value, problem = self._read(reply)
            if not problem:
                return value
            if repaired:
                raise self._unusable(reply, problem)
            repaired = True
            turns += [Turn("assistant", reply.text or "(nothing)"), Turn("user", self._repair(problem))]
        raise TaskError(
            f"agent {self._card.name} gave no answer in {self._turns} turns; "
            "give it more turns, clearer instructions or fewer tools",
            kind=ErrorKind.LIMIT,
        )

    # Asking the model

    async def _ask(self, run: _Run, turns: tuple[Turn, ...]) -> ModelReply:
        context = run.context
        request = ModelRequest(
            model="",
            instructions=self._instructions,
            turns=turns,
            tools=tuple(tool.spec for tool in run.tools.values()),
            output_schema=self._output_schema,
            output_name=self._output_name,
            max_tokens=self._max_tokens,
            temperature=self._temperature,
            on_text=context.say if self._stream else None,
        )
        models = self.models
        for attempt in range(1, TRIES + 1):
            failed: dict[Model, ModelError] = {}
            for model in models:
                self._check_limits(context)
                try:
                    return await self._call(model, replace(request, model=model.name), attempt, context)
                except ModelError as error:
                    failed[model] = error
            # A model that turned the request down would do so again; what failed in passing may be asked again.
            models = tuple(model for model, error in failed.items() if error.retryable)
            errors = [failed[model] for model in models]
            told = min(errors, key=lambda each: each.retry_after or 0.0) if errors else next(iter(failed.values()))
            wait = told.retry_after if told.retry_after is not None else _backoff(attempt)
            too_late = self._clock.now() + timedelta(seconds=wait) >= context.deadline
            if not errors or attempt == TRIES or wait > LONGEST_WAIT or too_late:
                raise told
            await self._clock.sleep(wait)
        raise AssertionError("unreachable: the last try returns or raises")

    async def _call(self, model: Model, request: ModelRequest, attempt: int, context: Context) -> ModelReply:
        admission = await self._admitted(model, request, context)
        used, retry_after = 0, None
        try:
            reply = await self._called(model, request, attempt, context)
            used = reply.usage.tokens
            return reply
        except ModelError as error:
            retry_after = error.retry_after
            used = error.usage.tokens if error.usage is not None else 0
            raise
        finally:
            if admission is not None:
                admission.done(used, retry_after)

    async def _admitted(self, model: Model, request: ModelRequest, context: Context) -> Admission | None:
        if context.meters is None:
            return None
        letters = len(request.instructions) + sum(len(turn.text) for turn in request.turns)
        patience = (context.deadline - self._clock.now()).total_seconds()
        return await context.meters.admit(model, letters // LETTERS_OF_A_TOKEN + GUESSED_ANSWER, patience)

    async def _called(self, model: Model, request: ModelRequest, attempt: int, context: Context) -> ModelReply:
        started = self._clock.monotonic()
        measured: dict[str, names.Value | None] = {
            names.OPERATION_NAME: "chat",
            names.PROVIDER_NAME: model.provider,
            names.REQUEST_MODEL: model.name,
            names.AGENT_NAME: self._card.name,
        }
        try:
            async with context.chat(
                model.provider,
                model.name,
                max_tokens=request.max_tokens,
                temperature=request.temperature,
                structured=request.output_schema is not None,
                attempt=attempt,
            ) as call:
                call.set_attributes(content.of_request(request))
                try:
                    reply = _sendable(await model.complete(request))
                except ModelError as error:
                    if error.usage is not None:
                        call.record_usage(error.usage)
                    raise
                call.record_usage(reply.usage)
                call.set_attributes(content.of_reply(reply))
                call.set_attributes(
                    names.chat_answer(
                        model=reply.model,
                        response_id=reply.id,
                        finish=reply.finish,
                        input_tokens=reply.usage.input_tokens,
                        output_tokens=reply.usage.output_tokens,
                        cost=reply.usage.cost,
                    )
                )
        except ModelError as error:
            measured[names.ERROR_TYPE] = error.kind
            raise
        finally:
            metrics.observe(names.MODEL_DURATION, self._clock.monotonic() - started, measured)
        for kind, count in (("input", reply.usage.input_tokens), ("output", reply.usage.output_tokens)):
            metrics.observe(names.TOKEN_USAGE, count, {**measured, names.TOKEN_TYPE: kind})
        if reply.usage.cost:
            metrics.count(names.MODEL_COST, reply.usage.cost, measured)
        return reply

    def _check_limits(self, context: Context) -> None:
        """Before each model call: nothing is known of what the call will use, only of what was used."""
        used, budget = context.usage, context.handoff.budget
        limits = [("tokens", used.tokens, self._tokens)]
        if budget is not None:
            limits += [("calls", used.calls, budget.calls), ("tokens", used.tokens, budget.tokens)]
            if budget.cost is not None and used.cost >= budget.cost:
                raise TaskError(f"the budget of ${budget.cost:g} is used up", kind=ErrorKind.LIMIT)
        for what, spent, limit in limits:
            if limit is not None and spent >= limit:
                raise TaskError(f"{spent} {what} are used up of the {limit} there were", kind=ErrorKind.LIMIT)

    # Using tools

    async def _use(self, run: _Run, calls: Sequence[ToolCall], turn: int) -> list[Turn]:
        """The results of `calls`, in their order, run side by side. None is lost when another fails."""
        run.seen.update({(call.name, call.arguments) for call in calls})
        for place in run.done.unknown(turn, range(len(calls))):
            if (tool := run.tools.get(calls[place].name)) is not None and not tool.idempotent:
                raise TaskError(
                    f"the tool {tool.name} was under way when its worker died, and may have done its work or not; find "
                    "out, or declare it idempotent=True if it may run again",
                    kind=ErrorKind.OUTCOME_UNKNOWN,
                )
        asked = [
            wanted
            for place, call in enumerate(calls)
            if (tool := run.tools.get(call.name)) is not None
            and run.done.result(turn, place) is None
            and (wanted := tool.wanted(call.arguments, run.context)) is not None
        ]
        if asked:
            raise NeedsApproval(asked)  # before any tool of this turn has run
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(self._result(run, call, (turn, place), run.seen[call.name, call.arguments]))
                for place, call in enumerate(calls)
            ]
        return [task.result() for task in running]

    async def _result(self, run: _Run, call: ToolCall, place: tuple[int, int], times: int) -> Turn:
        context, done = run.context, run.done
        tool = run.tools.get(call.name)
        if (kept := done.result(*place)) is not None:
            if tool is not None:
                tool.skip(call.arguments, context)
            return Turn("tool", kept[0], call_id=call.id, is_error=kept[1])
        if tool is None:
            known = ", ".join(run.tools) or "none"
            problem = f"there is no tool {call.name[:64]!r} here; the tools are: {known}"
        elif times > REPEATS:
            problem = f"{call.name} was called with these arguments {REPEATS} times already; answer with what you have"
        elif place[1] >= PARALLEL:
            problem = f"not run: more than {PARALLEL} calls at once; ask again for this one if you need it"
        else:
            result = await tool.call(call.arguments, context, call_id=call.id)
            text, is_error = await done.keep_result(*place, _capped(result.text), result.is_error)
            return Turn("tool", text, call_id=call.id, is_error=is_error)
        async with context.tool(call.name[:64], call_id=call.id) as refused:
            refused.fail("refused_call", problem)
        return Turn("tool", problem, call_id=call.id, is_error=True)

    # Reading the answer

    def _read(self, reply: ModelReply) -> tuple[JsonValue, str]:
        """The answer, and an empty text; or None and what is wrong with it."""
        if not reply.text.strip() and reply.data is None:
            return None, "it was empty"
        if self._output is None:
            return reply.text.strip(), ""
        found = (reply.data,) if reply.data is not None else find_json(reply.text)
        fitting: list[JsonValue] = []
        problem = "it holds no JSON object"
        for candidate in found:
            try:
                value = self._output.model_validate_json(compact(candidate))
            except ValidationError as error:
                problem = describe(error)
                continue
            if candidate and not value.model_fields_set:  # all defaults, and all that was said is something else
                problem = f"it has none of the fields {', '.join(self._output.model_fields)}"
                continue
            fitting.append(as_json_value(value))
        if len(fitting) == 1:
            return fitting[0], ""
        return None, f"it holds {len(fitting)} JSON objects that fit; give one" if fitting else problem

    def _repair(self, problem: str) -> str:
        if self._output is None:
            return f"Your answer cannot be used: {problem}. Give the answer as text."
        schema = compact(self._output_schema).decode()
        return (
            f"Your answer cannot be used: {problem}. Give it again, whole and corrected, as one JSON object and "
            f"nothing else, by this JSON Schema: {schema}"
        )

    def _unusable(self, reply: ModelReply, problem: str) -> TaskError:
        if not reply.text.strip():
            return Refused(f"the model of agent {self._card.name} answered nothing, twice")
        return TaskError(
            f"the answer of agent {self._card.name} cannot be used, and its repair neither: {problem}",
            kind=ErrorKind.INVALID_OUTPUT,
            made=_capped(reply.text, UNUSABLE_LENGTH),
        )


@dataclass(slots=True)
class _Run:
    """One attempt in work: its context, its tools, what was done, and how often each call was asked for."""

    context: Context
    tools: Mapping[str, Tool[..., Any]]
    done: Steps
    seen: Counter[tuple[str, str]] = field(default_factory=Counter)


def _by_name(tools: Sequence[Tool[..., Any]], agent: str) -> dict[str, Tool[..., Any]]:
    """Raises `ConfigurationError` when two have the same name."""
    repeated = [tool for tool, count in Counter(tool.name for tool in tools).items() if count > 1]
    if repeated:
        raise ConfigurationError(f"agent {agent} has several tools named {repeated[0]}; rename all but one")
    return {tool.name: tool for tool in tools}


def _sendable(reply: ModelReply) -> ModelReply:
    """The reply without halves of surrogate pairs: the next request repeats it, and could not carry them."""

    def whole(text: str) -> str:
        return text.encode("utf-8", "replace").decode()

    calls = tuple(ToolCall(whole(call.id), whole(call.name), whole(call.arguments)) for call in reply.calls)
    return replace(reply, text=whole(reply.text), calls=calls)


def _accept(reply: ModelReply, agent: str) -> None:
    """Raises for a reply that is no answer: asking the same again would give the same."""
    match reply.finish:
        case "refusal":
            said = _capped(reply.text.strip(), 500) or "the provider's content filter stopped the answer"
            raise Refused(f"the model of agent {agent} refused: {said}")
        case "length":
            raise TaskError(
                f"the answer of agent {agent} was cut off at the model's limit; raise max_tokens or ask for less",
                kind=ErrorKind.LIMIT,
            )


def _told_apart(calls: Sequence[ToolCall], turn: int) -> tuple[ToolCall, ...]:
    """The calls with ids of their own: some servers leave them empty or repeat them."""
    counts = Counter(call.id for call in calls)
    return tuple(
        call if call.id and counts[call.id] == 1 else ToolCall(f"call_{turn}_{place}", call.name, call.arguments)
        for place, call in enumerate(calls)
    )


def _backoff(attempt: int) -> float:
    """Seconds before try `attempt` + 1: 1, 2, 4 and so on, less up to a half, so that many do not come back at once."""
    return float(2 ** (attempt - 1)) * random.uniform(0.5, 1.0)


def _capped(text: str, length: int = RESULT_LENGTH) -> str:
    return text if len(text) <= length else f"{text[:length]}... ({len(text) - length} characters more)"


def _schema(output: type[BaseModel] | None) -> dict[str, JsonValue] | None:
    return output.model_json_schema() if output is not None else None


def _text(instructions: str | Path, agent: str) -> str:
    if isinstance(instructions, str):
        return instructions.strip()
    try:
        return instructions.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigurationError(f"the instructions of agent {agent} cannot be read: {error}") from None
