"""Convert between JSON and Python types: check inputs against a type, and write outputs as strict JSON."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from pydantic import JsonValue, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from pointsman.authoring.context import Context
from pointsman.errors import ConfigurationError, NotJsonError, TaskError
from pointsman_schemas.events import ErrorKind
from pointsman_schemas.strict_json import as_json_value, compact_json, describe

__all__ = ["JsonType", "Parameter", "Signature", "signature_of"]

T = TypeVar("T")
NO_DEFAULT = inspect.Parameter.empty


class JsonType(Generic[T]):
    """Python type with its two JSON Schemas and the checks in both directions.

    Args:
        annotation: Annotation of the type.
        owner: Owner of the type in error messages, as in `agent translator`.

    Raises:
        ConfigurationError: Pydantic cannot read the type or express it as JSON Schema.
    """

    __slots__ = ("_adapter", "_is_text", "input_schema", "output_schema", "owner")

    def __init__(self, annotation: Any, owner: str) -> None:
        self.owner = owner
        self._is_text = annotation is str or (get_origin(annotation) is Annotated and get_args(annotation)[0] is str)
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(annotation)
            self._adapter: TypeAdapter[T] = adapter
            self.input_schema: dict[str, JsonValue] = self._adapter.json_schema(mode="validation")
            self.output_schema: dict[str, JsonValue] = self._adapter.json_schema(mode="serialization")
        except PydanticUserError as error:
            raise ConfigurationError(
                f"{owner} uses the type {_name(annotation)}, which has no JSON form: {error.message.splitlines()[0]}; "
                "use a pydantic model, a dataclass, a TypedDict, text, numbers, lists or dicts"
            ) from None

    def from_json(self, value: JsonValue) -> T:
        """Convert a JSON value to the type.

        If the type is text, an object with a `request` is also valid, because a planned task has this input by default.

        Args:
            value: JSON value.

        Returns:
            The value of the type.

        Raises:
            TaskError: The value is not valid; kind `invalid_input`, not retryable. The message names the fields, but
                never their contents.
        """
        if self._is_text and isinstance(value, dict) and isinstance(request := value.get("request"), str):
            value = request
        try:
            return self._adapter.validate_json(compact_json(value))
        except ValidationError as error:
            raise TaskError(
                f"the input does not fit {self.owner}: {describe(error)}; send an input that fits its input schema",
                kind=ErrorKind.INVALID_INPUT,
            ) from None

    def to_json(self, value: object) -> JsonValue:
        """Check a value against the type and convert it to strict JSON.

        Args:
            value: Value to convert.

        Returns:
            The JSON value.

        Raises:
            TaskError: The value has a different type, or JSON cannot carry it; kind `invalid_output`, not retryable.
                The message gives the path, but never the content.
        """
        try:
            return as_json_value(self._adapter.validate_python(value))
        except ValidationError as error:
            problem = describe(error)
        except NotJsonError as error:
            problem = str(error)
        except RecursionError:  # pydantic's own check reached its limit of depth
            problem = "$ is nested too deeply"
        raise TaskError(f"the output of {self.owner} does not fit its type: {problem}", kind=ErrorKind.INVALID_OUTPUT)


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
        parameters: Parameters without the `Context`, by name.
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
        ConfigurationError: The function cannot be called by argument name, lacks an annotation, or is a generator.
    """
    if not inspect.isroutine(function):
        below = getattr(inspect.unwrap(function), "__code__", None)
        where = f" of {below.co_name} at {below.co_filename}:{below.co_firstlineno}" if below else ""
        raise ConfigurationError(
            f"{owner} is a {type(function).__name__}{where}; decorate a function, `def` or `async def`, once"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            f"{owner} is a generator; return one value, and report on the way with `await context.progress(...)`"
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


def _name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)
