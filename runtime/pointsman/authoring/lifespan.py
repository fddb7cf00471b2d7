"""Lifespans are resources of a worker, such as a database pool. They are open from the worker's start to its end."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Generic, TypeVar, cast

from pointsman.errors import ConfigurationError

__all__ = ["Lifespan", "lifespan"]

T = TypeVar("T")


class Lifespan(Generic[T]):
    """Resources of a worker. A worker or a test calls the lifespan to get an async context manager that opens them.

    Args:
        function: Async generator function that yields once, or function that returns an async context manager.

    Attributes:
        name: Name of the function.
        place: File and line of the function, for error messages.

    Raises:
        ConfigurationError: The function is not valid.
    """

    def __init__(self, function: Callable[[], AsyncIterator[T] | AbstractAsyncContextManager[T]]) -> None:
        name = getattr(function, "__name__", repr(function))
        if not callable(function) or inspect.iscoroutinefunction(function) or inspect.signature(function).parameters:
            raise ConfigurationError(
                f"the lifespan {name} is not valid; expected `async def {name}():` without parameters that yields once"
            )
        self.name = name
        code = getattr(inspect.unwrap(function), "__code__", None)
        self.place = f"{Path(code.co_filename).name}:{code.co_firstlineno}" if code else str(function)
        if inspect.isasyncgenfunction(function):
            generator = cast(Callable[[], AsyncGenerator[T, None]], function)
            self._open: Callable[[], AbstractAsyncContextManager[T]] = asynccontextmanager(generator)
        else:
            self._open = cast(Callable[[], AbstractAsyncContextManager[T]], function)
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __call__(self) -> AbstractAsyncContextManager[T]:
        return self._open()

    def __repr__(self) -> str:
        return f"<lifespan {self.name}>"


def lifespan(function: Callable[[], AsyncIterator[T] | AbstractAsyncContextManager[T]]) -> Lifespan[T]:
    """Make a lifespan of an async generator function that yields the resources of a worker once.

    Before a worker takes work, the worker opens the lifespans of its modules, in the order of their definition, on the
    loop of its agents. After the agents have stopped, the worker closes the lifespans in reverse order. Agents and
    tools get a value by its type: `context.dep(Database)`. Yield a tuple or a list to give several values. An exception
    before `yield` ends the worker with exit code 2.

    Args:
        function: Async generator function without parameters, or function that returns an async context manager.

    Returns:
        The lifespan.

    Raises:
        ConfigurationError: The function is not valid.

    Example:
        ```python
        @lifespan
        async def database() -> AsyncIterator[Database]:
            async with Database("orders") as opened:
                yield opened
        ```
    """
    return Lifespan(function)
