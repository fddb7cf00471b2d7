"""Run code around the attempts, tool calls and model calls of a worker, for logging, checks and metering."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeGuard, TypeVar

from pydantic import JsonValue

from pointsman.authoring.context import Context
from pointsman.ports.model import ModelReply, ModelRequest
from pointsman_schemas.card import AgentCard
from pointsman_schemas.events import Handoff

__all__ = [
    "AttemptInvocation",
    "Interceptor",
    "ModelInvocation",
    "Next",
    "ToolInvocation",
    "intercept_attempt",
    "intercept_model",
    "intercept_tool",
    "is_interceptor",
]

C = TypeVar("C")
R = TypeVar("R")

Next: TypeAlias = Callable[[C], Awaitable[R]]
"""The rest of an intercepted call: the next interceptor, or the call itself after the last interceptor."""


@dataclass(frozen=True, slots=True)
class AttemptInvocation:
    """One attempt, before the agent starts it.

    Attributes:
        agent: Card of the agent.
        handoff: Task with its input. To change the handoff, pass a copy made with `dataclasses.replace` to `next`.
        context: Context of the attempt.
    """

    agent: AgentCard
    handoff: Handoff
    context: Context


@dataclass(frozen=True, slots=True)
class ToolInvocation:
    """One tool call of a model or of code, before the tool starts.

    Attributes:
        tool: Name of the tool.
        arguments: Arguments that fit the tool's schema. To change the arguments, pass a copy made with
            `dataclasses.replace` to `next`. The changed arguments are checked again.
        context: Context of the caller.
        call_id: Id that the model gave the call; empty for a call from code.
    """

    tool: str
    arguments: Mapping[str, JsonValue]
    context: Context
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class ModelInvocation:
    """One request to a model, before it is sent to the provider.

    Attributes:
        provider: Provider of the model.
        model: Name of the model.
        request: Request. To change the request, pass a copy made with `dataclasses.replace` to `next`. You can lower
            `max_tokens`, but not raise it.
        context: Context of the attempt.
        attempt: Number of the try of this call, from 1.
    """

    provider: str
    model: str
    request: ModelRequest
    context: Context
    attempt: int = 1


class Interceptor(Protocol):
    """Code around the attempts, tool calls and model calls of a worker.

    Make a subclass and override the methods that you need. By default, each method passes the call to `next`. A method
    may read the call, change the call with `dataclasses.replace`, refuse the call by an exception, or answer without
    `next`. An exception of a method has the effect of an exception of the intercepted call. For example, if `tool`
    raises a `TaskError`, the model reads its text. Do not catch `CancelledError`.

    One instance serves all attempts of a worker, on the event loop of the agents, so methods must not block. The first
    interceptor is the outermost: it gets a call first, and the outcome of the call last.

    If another worker continues an attempt, recorded results are restored. A restored call does not run, so it is not
    intercepted. If a person must allow a tool call, the person is asked before the call is intercepted.

    Example:
        ```python
        class NoRefunds(Interceptor):
            async def tool(self, call: ToolInvocation, next: Next[ToolInvocation, JsonValue]) -> JsonValue:
                if call.tool == "refund":
                    raise TaskError("refunds are closed until Monday")
                return await next(call)
        ```
    """

    async def attempt(self, call: AttemptInvocation, next: Next[AttemptInvocation, JsonValue]) -> JsonValue:
        """Run one attempt of an agent.

        Args:
            call: Attempt.
            next: Rest of the call, to be awaited with `call` or with a changed copy.

        Returns:
            The output of the agent as strict JSON.
        """
        return await next(call)

    async def tool(self, call: ToolInvocation, next: Next[ToolInvocation, JsonValue]) -> JsonValue:
        """Run one tool call, its retries included.

        Args:
            call: Tool call.
            next: Rest of the call, to be awaited with `call` or with a changed copy.

        Returns:
            The value of the tool as strict JSON.
        """
        return await next(call)

    async def model(self, call: ModelInvocation, next: Next[ModelInvocation, ModelReply]) -> ModelReply:
        """Send one request to a model. Each retry is a separate call.

        Usage is counted for each request that `next` sends. An answer without `next` costs nothing.

        Args:
            call: Model call.
            next: Rest of the call, to be awaited with `call` or with a changed copy.

        Returns:
            The reply of the model.
        """
        return await next(call)


def is_interceptor(value: object) -> TypeGuard[Interceptor]:
    """Return True if `value` is an instance of a subclass of `Interceptor`.

    Args:
        value: Any object, such as a member of a module.

    Returns:
        True for an interceptor.
    """
    return Interceptor in type(value).__mro__


async def intercept_attempt(
    interceptors: Sequence[Interceptor], call: AttemptInvocation, last: Next[AttemptInvocation, JsonValue]
) -> JsonValue:
    """Run an attempt through `interceptors`, the first one outermost, and then through `last`."""
    return await _chained([each.attempt for each in interceptors], last)(call)


async def intercept_tool(
    interceptors: Sequence[Interceptor], call: ToolInvocation, last: Next[ToolInvocation, JsonValue]
) -> JsonValue:
    """Run a tool call through `interceptors`, the first one outermost, and then through `last`."""
    return await _chained([each.tool for each in interceptors], last)(call)


async def intercept_model(
    interceptors: Sequence[Interceptor], call: ModelInvocation, last: Next[ModelInvocation, ModelReply]
) -> ModelReply:
    """Run a model call through `interceptors`, the first one outermost, and then through `last`."""
    return await _chained([each.model for each in interceptors], last)(call)


def _chained(around: Sequence[Callable[[C, Next[C, R]], Awaitable[R]]], last: Next[C, R]) -> Next[C, R]:
    chained = last
    for each in reversed(around):
        chained = _link(each, chained)
    return chained


def _link(around: Callable[[C, Next[C, R]], Awaitable[R]], rest: Next[C, R]) -> Next[C, R]:
    return lambda call: around(call, rest)
