"""Define agents, which have a card and run attempts. `@agent` makes an agent of a typed function."""

from __future__ import annotations

import inspect
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, ParamSpec, TypeVar, overload

from pydantic import JsonValue, ValidationError

from pointsman.authoring.code_digest import code_digest
from pointsman.authoring.context import Context
from pointsman.authoring.json_types import InputType, OutputType
from pointsman.authoring.keyword_check import check_keywords
from pointsman.authoring.signatures import signature_of
from pointsman.errors import ConfigurationError
from pointsman.util.threads import run_in_thread
from pointsman_schemas.card import AgentCard, Role
from pointsman_schemas.events import Handoff
from pointsman_schemas.ids import TEAM_SEPARATOR, own_agent
from pointsman_schemas.strict_json import describe

__all__ = ["Agent", "Context", "FunctionAgent", "agent", "check_name_length", "first_paragraph", "make_card"]

P = ParamSpec("P")
R = TypeVar("R")

_MAX_NAME_CHARS = 58  # the name of the agent's consumer is `agent-` plus this name, and has at most 64 characters
# The regular expression of semver.org. A version is checked, because NATS clients expect semantic versions of services.
_NUMBER, _LABEL = r"(0|[1-9]\d*)", r"(0|[1-9]\d*|\d*[a-zA-Z-][\da-zA-Z-]*)"
_BUILD = r"[\da-zA-Z-]+"
_VERSION = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(-{_LABEL}(\.{_LABEL})*)?(\+{_BUILD}(\.{_BUILD})*)?", re.ASCII)


class Agent(ABC):
    """Agent that a worker can run. `card` describes the agent, and `run` works on an attempt."""

    @property
    @abstractmethod
    def card(self) -> AgentCard:
        """Card of the agent. A worker adds its instance id before it announces the card."""

    @abstractmethod
    async def run(self, handoff: Handoff, context: Context) -> JsonValue:
        """Work on one attempt. Any exception fails the attempt.

        Args:
            handoff: Task with its input.
            context: Context of the attempt.

        Returns:
            The output as strict JSON.

        Raises:
            TaskError: The attempt failed. The error has a kind and states whether a retry may succeed.
        """

    async def open(self) -> None:  # noqa: B027  # most agents open no resource
        """Open and check the resources of the agent, such as connections.

        The worker calls `open` on the event loop of `run`, before the worker takes work. A `ConfigurationError` ends
        the worker with exit code 2. Any other exception is logged as a warning, and the worker continues.
        """

    async def close(self) -> None:  # noqa: B027  # most agents have no resource to release
        """Release the resources of the agent, such as connections.

        The worker calls `close` on the event loop of `run`, when the worker stops.
        """


class FunctionAgent(Agent, Generic[P, R]):
    """Agent made of a function. Code, such as a test, can call the agent like the function.

    Args:
        function: Async or plain function.
        card: Card without schemas. The schemas come from the function's types.
        namespace: Local names of the scope that defines the function, for its annotations.

    Raises:
        ConfigurationError: The function cannot be an agent.
    """

    def __init__(self, function: Callable[P, R], card: AgentCard, namespace: Mapping[str, Any]) -> None:
        owner = f"agent {card.name}"
        signature = signature_of(function, owner, namespace)
        if len(signature.parameters) > 1:
            names = ", ".join(parameter.name for parameter in signature.parameters)
            raise ConfigurationError(
                f"{owner} has the parameters {names}; expected one input and at most one Context: put the fields into "
                "one pydantic model"
            )
        self._function = function
        self._is_async = signature.is_async
        self._context = signature.context
        self._input = next(((each, InputType[Any](each.annotation, owner)) for each in signature.parameters), None)
        self._output = OutputType(signature.returns, owner)
        self._card = card.model_copy(
            update={
                "input_schema": self._input[1].schema if self._input else {},
                "output_schema": self._output.schema,
                "digest": code_digest(function),
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
            parameter, input_type = self._input
            if handoff.input is not None or parameter.required:
                arguments[parameter.name] = input_type.from_json(handoff.input)
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


@overload
def agent(function: Callable[P, R], /) -> FunctionAgent[P, R]: ...
@overload
def agent(
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
    team: str | None = None,
) -> Callable[[Callable[P, R]], FunctionAgent[P, R]]: ...
@check_keywords
def agent(
    function: Callable[P, R] | None = None,
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
    team: str | None = None,
) -> FunctionAgent[P, R] | Callable[[Callable[P, R]], FunctionAgent[P, R]]:
    """Make an agent of a function: `@agent`, or `@agent(skills=["translation"])`.

    The function is async or plain. It takes at most one typed input, and a `Context` if a parameter has this
    annotation. Pydantic must have a JSON Schema for the types of the input and the output. The card contains both
    schemas. A plain function runs in its own thread.

    Args:
        function: Function to decorate, in the form `@agent` without brackets.
        name: Name of the agent; by default the function's name with hyphens in place of underscores.
        description: Purpose of the agent. Planners choose agents by this text. Default: the first paragraph of the
            docstring.
        skills: Skills of the agent.
        intents: Intents that the agent serves.
        examples: Example requests for the agent.
        version: Semantic version of the agent.
        fallback: Name of the agent that gets a task after this agent has failed.
        concurrency: Largest number of attempts at a time in one process.
        max_in_flight: Largest number of attempts at a time in all processes together. The process that started last
            sets the value.
        timeout: Limit of one attempt, in seconds.
        role: Role of the agent in a team.
        model: Name of the model on the card, for a function that calls a model itself.
        reacts_to: Names of the domain events for which the agent gets a task, in a team with `Choreography`.
        approval: `required` if a person must allow each task of the agent.
        team: Team to which the agent belongs; by default every team may use the agent. The agent's full name is then
            `TEAM--NAME`, and the agent has its own queue. The team lists the name in `own_agents`.

    Returns:
        The agent, or a decorator that makes one.

    Raises:
        ConfigurationError: The definition is not valid. The message contains the necessary change.

    Example:
        ```python
        @agent
        async def count_words(text: str) -> int:
            "Counts the words of a text."
            return len(text.split())
        ```
    """
    if isinstance(function, str):
        raise ConfigurationError(f"@agent({function!r}) takes its name by keyword; write @agent(name={function!r})")
    # The caller's local names resolve types that are defined within a function, as in tests. Frame 1 is the wrapper
    # `check_keywords`, so frame 2 is the caller.
    namespace = sys._getframe(2).f_locals

    def make(function: Callable[P, R]) -> FunctionAgent[P, R]:
        card = make_card(
            name=name or _default_name(function),
            description=_described(function, name) if description is None else description,
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
            owner=team,
        )
        return FunctionAgent(function, card, namespace)

    return make if function is None else make(function)


def make_card(*, name: str, description: str, **fields: Any) -> AgentCard:
    """Return a checked card.

    Args:
        name: Name of the agent.
        description: Purpose of the agent.
        **fields: Other fields of the card. If `owner` names a team, `name` is the name within this team.

    Returns:
        The card.

    Raises:
        ConfigurationError: A field is not valid. The message names the agent and the field.
    """
    if not description.strip():
        raise ConfigurationError(f'agent {name} has no description for planners; pass description="..."')
    for field in ("skills", "intents", "examples", "reacts_to"):
        if isinstance(fields.get(field), str):
            raise ConfigurationError(f"agent {name} has {field}={fields[field]!r}; expected [{fields[field]!r}]")
    if TEAM_SEPARATOR in name:
        raise ConfigurationError(
            f"agent {name} has {TEAM_SEPARATOR} in its name, but {TEAM_SEPARATOR} separates team and agent; use one "
            f"hyphen, or write team={name.partition(TEAM_SEPARATOR)[0]!r}, name={name.partition(TEAM_SEPARATOR)[2]!r}"
        )
    if fields.get("owner") is not None:
        name = own_agent(str(fields["owner"]), name)
    check_name_length(name)
    if fields.get("fallback") == name:
        raise ConfigurationError(f"agent {name} names itself as its fallback; name a different agent, or no agent")
    version = fields.get("version", "1.0.0")
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise ConfigurationError(f"agent {name} has version={version!r}; expected a semantic version, such as '1.0.0'")
    try:
        return AgentCard(name=name, description=description.strip(), **fields)
    except ValidationError as error:
        raise ConfigurationError(f"agent {name!r} is not valid: {describe(error)}; change the definition") from None


def check_name_length(name: str) -> None:
    """Raise an error if a name is too long for the queue of an agent.

    Args:
        name: Full name of the agent.

    Raises:
        ConfigurationError: The name is too long.
    """
    if len(name) > _MAX_NAME_CHARS:
        raise ConfigurationError(f"agent {name} has a name of {len(name)} characters; {_MAX_NAME_CHARS} are allowed")


def first_paragraph(function: Callable[..., Any]) -> str:
    """Return the first paragraph of a function's docstring in one line, or an empty text.

    Args:
        function: Function with or without a docstring.

    Returns:
        The paragraph.
    """
    return " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())


def _default_name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", "")).strip("_").replace("_", "-")


def _described(function: Callable[..., Any], name: str | None) -> str:
    if description := first_paragraph(function):
        return description
    raise ConfigurationError(
        f"agent {name or _default_name(function)} has no description for planners; give the function "
        f'{getattr(function, "__name__", function)} a docstring, or write @agent(description="...")'
    )
