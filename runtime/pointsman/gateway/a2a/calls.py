"""The caller of an A2A request, and the errors that the client gets."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

from a2a.server.context import ServerCallContext
from a2a.utils.errors import A2AError, InvalidParamsError
from starlette.requests import Request

from pointsman.errors import ContractError, NotFoundError, PointsmanError
from pointsman.gateway.callers import Caller
from pointsman.gateway.problems import ProblemError, problem_of
from pointsman.telemetry import get_logger

__all__ = ["Call", "RefusedCallError", "reached_team", "translated", "translated_stream"]

_log = get_logger(__name__)

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E")
H = TypeVar("H")


@dataclass(frozen=True, slots=True)
class Call:
    """The caller and the addresses of one request.

    Attributes:
        caller: The caller.
        team: The team.
        origin: The URL of the gateway.
        request: The request.
    """

    caller: Caller
    team: str
    origin: str
    request: Request

    @property
    def url(self) -> str:
        """The URL of the team's A2A interface."""
        return f"{self.origin}/a2a/{self.team}"

    @classmethod
    def of(cls, context: ServerCallContext) -> Call:
        """Return the call of a context.

        Args:
            context: A call context that the module `routes` has made.
        """
        call: Call = context.state["call"]
        return call


def reached_team(request: Request) -> bool:
    """Return True if the SDK could read the request, and has called a method of the team's handler.

    Args:
        request: The request.
    """
    return getattr(request.state, "reached_team", False)


def _mark_as_reached(*args: object) -> None:
    for each in args:
        if isinstance(each, ServerCallContext):
            Call.of(each).request.state.reached_team = True


class RefusedCallError(A2AError):
    """A call that the gateway refuses with an HTTP status: a limit is reached, a right is missing, or the broker fails.

    Args:
        problem: The problem that the client gets.
    """

    def __init__(self, problem: ProblemError) -> None:
        super().__init__(problem.detail)
        self.problem = problem


def translated(
    method: Callable[Concatenate[H, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[H, P], Coroutine[Any, Any, R]]:
    """Wrap a method so that the method raises errors of A2A in place of other errors.

    Args:
        method: The method. One of its arguments is a call context.

    Returns:
        The method.
    """

    async def call(handler: H, /, *args: P.args, **kwargs: P.kwargs) -> R:
        _mark_as_reached(*args)
        try:
            return await method(handler, *args, **kwargs)
        except A2AError:
            raise
        except Exception as error:
            raise _as_a2a(error, *args) from None

    return call


def translated_stream(
    method: Callable[Concatenate[H, P], AsyncGenerator[E, None]],
) -> Callable[Concatenate[H, P], AsyncGenerator[E, None]]:
    """Wrap a stream so that the stream raises errors of A2A in place of other errors.

    Args:
        method: The method. One of its arguments is a call context.

    Returns:
        The method.
    """

    async def stream(handler: H, /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[E, None]:
        _mark_as_reached(*args)
        try:
            async with aclosing(method(handler, *args, **kwargs)) as items:
                async for item in items:
                    yield item
        except A2AError:
            raise
        except Exception as error:
            raise _as_a2a(error, *args) from None

    return stream


def _as_a2a(error: Exception, *args: object) -> A2AError:
    if isinstance(error, ContractError) and not isinstance(error, NotFoundError):
        return InvalidParamsError(str(error))
    if isinstance(error, ProblemError):
        problem = error
    elif isinstance(error, PointsmanError):
        problem = problem_of(error)
    else:
        _log.error("gateway_request_crashed", exc_info=error)
        problem = ProblemError(
            500, "internal_error", "the gateway could not serve the request; the log of the gateway has the reason"
        )
    for each in args:
        if isinstance(each, ServerCallContext):
            Call.of(each).request.state.problem = problem
    return RefusedCallError(problem)
