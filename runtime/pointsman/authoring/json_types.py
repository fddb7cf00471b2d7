"""Convert between JSON and Python types. Inputs are checked against a type, and outputs are converted by their type."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar, get_args, get_origin

from pydantic import JsonValue, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from pointsman.errors import ConfigurationError, NotJsonError, TaskError
from pointsman_schemas.events import ErrorKind
from pointsman_schemas.strict_json import as_json_value, compact_json, describe
from pointsman_schemas.typed_values import TypeWriter, find_unwritable, replace_surrogates

__all__ = ["InputType", "OutputType", "definition_problem"]

T = TypeVar("T")


class InputType(Generic[T]):
    """Python type of a value that is read from JSON.

    Args:
        annotation: Annotation of the type.
        owner: Owner of the type in error messages, as in `agent translator`.

    Raises:
        ConfigurationError: Pydantic cannot read the type, or no JSON value can become a value of the type.
    """

    __slots__ = ("_adapter", "_is_text", "owner", "schema")

    def __init__(self, annotation: Any, owner: str) -> None:
        self.owner = owner
        self._is_text = annotation is str or (get_origin(annotation) is Annotated and get_args(annotation)[0] is str)
        self._adapter: TypeAdapter[T]
        self._adapter, self.schema = _adapter_of(annotation, owner, "validation")

    def from_json(self, value: JsonValue) -> T:
        """Convert a JSON value to the type.

        If the type is text, an object with a text `request` is also valid, because a planned task has such an input by
        default.

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


class OutputType:
    """Declared Python type of a value that is written as JSON.

    Args:
        annotation: Annotation of the type.
        owner: Owner of the type in error messages, as in `agent translator`.

    Raises:
        ConfigurationError: Pydantic cannot express the type as JSON Schema, or JSON cannot represent all its values.
    """

    __slots__ = ("_writer", "owner", "schema")

    def __init__(self, annotation: Any, owner: str) -> None:
        self.owner = owner
        adapter, self.schema = _adapter_of(annotation, owner, "serialization")
        # For `Any` and a missing annotation there is no writer: `as_json_value` writes each part by the part's type.
        self._writer = None if adapter.core_schema["type"] == "any" else TypeWriter(adapter)

    def to_json(self, value: object) -> JsonValue:
        """Check the present content of a value against the type, and convert the value to strict JSON.

        JSON cannot contain half of a surrogate pair, so a question mark replaces it, as in the answer of a model.

        Args:
            value: Value to convert.

        Returns:
            The JSON value.

        Raises:
            TaskError: The value does not fit the type, or JSON cannot represent it; kind `invalid_output`, not
                retryable. The message names the path of the problem in the value, but never the content.
        """
        try:
            return self._write(value)
        except TaskError:
            if (repaired := replace_surrogates(value)) is value:
                raise
        return self._write(repaired)

    def _write(self, value: object) -> JsonValue:
        try:
            return as_json_value(value if self._writer is None else self._writer.write(value))
        except ValidationError as error:
            problem = describe(error)
        except NotJsonError as error:
            problem = str(error)
        except RecursionError:  # raised by pydantic for a value that is nested too deeply
            problem = "$ is nested too deeply"
        except Exception as error:  # the error of a validator or of a serializer
            problem = f"pydantic cannot write the value ({type(error).__name__})"
        raise TaskError(f"the output of {self.owner} does not fit its type: {problem}", kind=ErrorKind.INVALID_OUTPUT)


def _adapter_of(
    annotation: Any, owner: str, mode: Literal["validation", "serialization"]
) -> tuple[TypeAdapter[Any], dict[str, JsonValue]]:
    verb = "takes" if mode == "validation" else "returns"
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        schema: dict[str, JsonValue] = adapter.json_schema(mode=mode)
        problem = find_unwritable(adapter.core_schema, output=mode == "serialization")
    except Exception as error:  # pydantic raises errors of many types for an unusable annotation
        raise ConfigurationError(
            f"{owner} {verb} the type {_name(annotation)}, which has no JSON form: {definition_problem(error)}; "
            "use a pydantic model, a dataclass, a TypedDict, text, numbers, lists or dicts"
        ) from None
    if not problem and mode == "serialization" and _has_secret(schema):
        problem = "a secret, which pydantic writes as asterisks: return text, or a reference to the secret"
    if problem:
        raise ConfigurationError(f"{owner} {verb} {_name(annotation)} with {problem}")
    return adapter, schema


def definition_problem(error: Exception) -> str:
    """Return the first line of an error that pydantic raised for a definition.

    Args:
        error: The error.

    Returns:
        The line.
    """
    text = error.message if isinstance(error, PydanticUserError) else str(error) or type(error).__name__
    return text.splitlines()[0]


def _has_secret(schema: JsonValue) -> bool:
    match schema:
        case {"writeOnly": True, "format": "password"}:
            return True
        case dict():
            return any(map(_has_secret, schema.values()))
        case list():
            return any(map(_has_secret, schema))
    return False


def _name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)
