"""An agent is a card and a way to run one attempt. `@agent` makes one of a function with typed input and output."""

from __future__ import annotations

import inspect
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, ParamSpec, TypeVar

from pydantic import JsonValue, ValidationError

from pointsman.authoring.context import Context
from pointsman.authoring.signatures import JsonType, signature_of
from pointsman.errors import ConfigurationError
from pointsman.util.threads import run_in_thread
from pointsman_schemas.card import AgentCard, Role
from pointsman_schemas.events import Handoff
from pointsman_schemas.strict_json import describe

__all__ = ["Agent", "Context", "FunctionAgent", "agent", "make_card"]

P = ParamSpec("P")
R = TypeVar("R")

_MAX_NAME_CHARS = 58  # characters: `agent-` and the name are a consumer's name, which is a token of 64
# A semantic version, as semver.org's own expression has it: what NATS clients expect of the services they discover.
_NUMBER, _LABEL = r"(0|[1-9]\d*)", r"(0|[1-9]\d*|\d*[a-zA-Z-][\da-zA-Z-]*)"
_BUILD = r"[\da-zA-Z-]+"
_VERSION = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(-{_LABEL}(\.{_LABEL})*)?(\+{_BUILD}(\.{_BUILD})*)?", re.ASCII)


class Agent(ABC):
    """Whatever a worker can run: a card that says what it is for, and `run`."""

    @property
    @abstractmethod
    def card(self) -> AgentCard:
        """What it can do. A worker adds its instance id before announcing it."""

    @abstractmethod
    async def run(self, handoff: Handoff, context: Context) -> JsonValue:
        """Work on one attempt and return its output as strict JSON. Whatever it raises fails the attempt.

        Raises:
            TaskError: with the kind, and whether another attempt makes sense.
        """

    async def close(self) -> None:  # noqa: B027  # most agents hold nothing
        """Give back what it holds, such as connections. The worker calls it when it stops, where `run` was called."""


class FunctionAgent(Agent, Generic[P, R]):
    """A function as an agent. Calling it calls the function, so it can be tested as what it is."""

    def __init__(self, function: Callable[P, R], card: AgentCard, namespace: Mapping[str, Any]) -> None:
        owner = f"agent {card.name}"
        signature = signature_of(function, owner, namespace)
        if len(signature.parameters) > 1:
            taken = ", ".join(parameter.name for parameter in signature.parameters)
            raise ConfigurationError(
                f"{owner} takes {taken}; an agent takes one input and maybe a Context: put "
                "the fields into one pydantic model"
            )
        self._function = function
        self._is_async = signature.is_async
        self._context = signature.context
        self._input = next(((taken, JsonType[Any](taken.annotation, owner)) for taken in signature.parameters), None)
        self._output = JsonType[Any](signature.returns, owner)
        self._card = card.model_copy(
            update={
                "input_schema": self._input[1].input_schema if self._input else {},
                "output_schema": self._output.output_schema,
            }
        )
        self.__name__ = getattr(function, "__name__", card.name)
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    @property
    def card(self) -> AgentCard:
        return self._card

    async def run(self, handoff: Handoff, context: Context) -> JsonValue:
        arguments: dict[str, Any] = {}
        if self._input is not None:
            parameter, shape = self._input
            if handoff.input is not None or parameter.required:
                arguments[parameter.name] = shape.from_json(handoff.input)
        if self._context is not None:
            arguments[self._context] = context
        call: Callable[..., Any] = self._function
        value = call(**arguments) if self._is_async else await run_in_thread(call, **arguments)
        if inspect.isawaitable(value):
            value = await value
        return self._output.to_json(value)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<agent {self._card.name}>"


def agent(
    bare: None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    skills: Sequence[str] = (),
    intents: Sequence[str] = (),
    examples: Sequence[str] = (),
    version: str = "1.0.0",
    fallback: str | None = None,
    concurrency: int = 8,
    max_in_flight: int = 1_000,
    timeout: float = 120.0,
    role: Role = Role.WORK,
    model: str | None = None,
    reacts_to: Sequence[str] = (),
    approval: Literal["required"] | None = None,
) -> Callable[[Callable[P, R]], FunctionAgent[P, R]]:
    """Make an agent of an async or plain function with at most one typed input and, by annotation, a `Context`.

    Input and output may be anything pydantic has a JSON Schema for; the schemas go into the card. A plain function
    runs in a thread of its own. `name` is the function's unless given, `description` the first paragraph of its
    docstring. `concurrency` attempts run at a time in one process, and `max_in_flight` in all
    processes together: the one that started last says how many. `timeout`, in seconds, bounds each.
    `reacts_to` names the domain events that hand it a task in a choreography. With `approval="required"` a person must
    allow each of its tasks.

    Raises:
        ConfigurationError: the definition does not fit; the message says what to change.
    """
    if bare is not None:
        raise ConfigurationError("@agent has brackets; write @agent(name=..., description=...)")
    namespace = sys._getframe(1).f_locals  # types defined in a function, as tests do, are found there

    def make(function: Callable[P, R]) -> FunctionAgent[P, R]:
        card = make_card(
            name=name or str(getattr(function, "__name__", "")),
            description=description or first_paragraph(function),
            skills=skills,
            intents=intents,
            examples=examples,
            version=version,
            fallback=fallback,
            concurrency=concurrency,
            max_in_flight=max_in_flight,
            timeout=timeout,
            role=role,
            model=model,
            reacts_to=reacts_to,
            approval=approval,
        )
        return FunctionAgent(function, card, namespace)

    return make


def make_card(*, name: str, description: str, **fields: Any) -> AgentCard:
    """A checked card. Raises `ConfigurationError` that names the agent and the field."""
    if not description.strip():
        raise ConfigurationError(f'agent {name} has no description; planners choose by it: pass description="..."')
    for field in ("skills", "intents", "examples", "reacts_to"):
        if isinstance(fields.get(field), str):
            raise ConfigurationError(f"agent {name} has {field}={fields[field]!r}; expected [{fields[field]!r}]")
    if len(name) > _MAX_NAME_CHARS:
        raise ConfigurationError(f"agent {name} has a name of {len(name)} characters; {_MAX_NAME_CHARS} are possible")
    if fields.get("fallback") == name:
        raise ConfigurationError(f"agent {name} names itself as its fallback; name another agent, or none")
    version = fields.get("version", "1.0.0")
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise ConfigurationError(f"agent {name} has version={version!r}; expected a semantic one, such as '1.0.0'")
    try:
        return AgentCard(name=name, description=description.strip(), **fields)
    except ValidationError as error:
        raise ConfigurationError(f"agent {name!r} does not fit: {describe(error)}; change its definition") from None


def first_paragraph(function: Callable[..., Any]) -> str:
    """The first paragraph of a docstring in one line, or nothing."""
    return " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
