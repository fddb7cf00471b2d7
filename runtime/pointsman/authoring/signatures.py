"""Read the signatures of the functions that agents and tools call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from pointsman.authoring.context import Context
from pointsman.errors import ConfigurationError

__all__ = ["Parameter", "Signature", "signature_of"]

NO_DEFAULT = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Parameter:
    """Parameter of a function.

    Attributes:
        name: Name of the parameter.
        annotation: Type of the parameter.
        default: Default value, or `NO_DEFAULT` if the argument is required.
    """

    name: str
    annotation: Any
    default: Any = NO_DEFAULT

    @property
    def required(self) -> bool:
        return self.default is NO_DEFAULT


@dataclass(frozen=True, slots=True)
class Signature:
    """Signature of a function that an agent or a tool calls.

    Attributes:
        parameters: Parameters, without the parameter for the `Context`.
        context: Name of the parameter that takes the `Context`, or None.
        returns: Type of the result.
        is_async: True if the function is async.
    """

    parameters: tuple[Parameter, ...]
    context: str | None
    returns: Any
    is_async: bool


def signature_of(function: Callable[..., Any], owner: str, namespace: Mapping[str, Any]) -> Signature:
    """Return the signature of a function, with its annotations evaluated.

    Args:
        function: Function to read.
        owner: Owner of the function in error messages, as in `agent translator`.
        namespace: Local names of the scope that defines the function.

    Returns:
        The signature.

    Raises:
        ConfigurationError: The function is a generator, or a parameter has no annotation or cannot be passed by name.
    """
    if not inspect.isroutine(function):
        below = getattr(inspect.unwrap(function), "__code__", None)
        where = f" of {below.co_name} at {below.co_filename}:{below.co_firstlineno}" if below else ""
        raise ConfigurationError(
            f"{owner} is a {type(function).__name__}{where}; decorate a function (`def` or `async def`), and only once"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            f"{owner} is a generator; return one value, and report progress with `context.progress(...)`"
        )
    try:
        hints = get_type_hints(function, localns=dict(namespace), include_extras=True)
    except NameError as error:
        raise ConfigurationError(
            f"{owner} has an annotation that cannot be resolved: {error}; import the name, not only under TYPE_CHECKING"
        ) from None
    parameters: list[Parameter] = []
    context: str | None = None
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ConfigurationError(f"{owner} has the parameter {str(parameter)!r}; use plain named parameters only")
        if name not in hints:
            raise ConfigurationError(
                f"{owner} has the parameter {name!r} without a type; annotate it, for example "
                f"`{name}: str`, or `{name}: Context`"
            )
        if hints[name] is Context or Context in get_args(hints[name]):
            if context is not None:
                raise ConfigurationError(f"{owner} takes a Context twice, as {context!r} and {name!r}; keep one")
            context = name
        else:
            parameters.append(Parameter(name, hints[name], parameter.default))
    returns = hints.get("return", Any)
    return Signature(tuple(parameters), context, returns, inspect.iscoroutinefunction(function))
