"""Describe the arguments of a tool by JSON Schema, check the arguments of a call, and write them as JSON."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, create_model

from pointsman.authoring.json_types import definition_problem
from pointsman.authoring.signatures import Parameter
from pointsman.errors import ConfigurationError, ContractError, TaskError
from pointsman_schemas.events import ErrorKind
from pointsman_schemas.strict_json import compact_json, describe, parse
from pointsman_schemas.typed_values import find_unwritable, writer_of

__all__ = ["ToolArguments"]

_FIELD_KEY = re.compile(r"(?:(?<=^)|(?<=; ))p\d+(?=[.:])")  # the key of a field, such as p0, in an error of pydantic
_MEMORY_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+>")  # as in <object at 0x7f0a5c3d1e10>


class ToolArguments:
    """The arguments of one tool: a pydantic model with a field for each parameter of the tool's function.

    Args:
        tool: The name of the tool.
        parameters: The parameters of its function.

    Raises:
        ConfigurationError: A parameter has a type without a JSON form.
    """

    def __init__(self, tool: str, parameters: Sequence[Parameter]) -> None:
        self._tool = tool
        self._names = {f"p{number}": parameter.name for number, parameter in enumerate(parameters)}
        # A pydantic model refuses some names that a parameter may have. So the fields are named p0, p1 and so on, and
        # the names of the parameters are their aliases.
        fields: dict[str, Any] = {
            key: (parameter.annotation, Field(... if parameter.required else parameter.default, alias=parameter.name))
            for key, parameter in zip(self._names, parameters, strict=True)
        }
        try:
            self._model: type[BaseModel] = create_model(tool, __config__=ConfigDict(extra="forbid"), **fields)
            self.schema: dict[str, JsonValue] = self._model.model_json_schema()
            problem = find_unwritable(self._model.__pydantic_core_schema__, output=False)
        except Exception as error:  # pydantic raises errors of many types for an unusable annotation
            raise ConfigurationError(
                f"tool {tool} takes a type that has no JSON form: {definition_problem(error)}; use "
                "pydantic models, text, numbers, lists or dicts"
            ) from None
        if problem:
            raise ConfigurationError(f"tool {tool} takes {problem}")
        del self.schema["title"]  # removed to save tokens, because the title only repeats the tool's name

    def parse(self, text: str) -> BaseModel:
        """Parse the arguments that a model wrote.

        Args:
            text: The JSON text; empty for no arguments.

        Returns:
            The checked arguments.

        Raises:
            TaskError: The text is not valid for the schema.
        """
        body = text.strip().encode("utf-8", "surrogatepass") or b"{}"  # providers send an empty text for no arguments
        try:
            return parse(self._model, body)
        except ContractError as error:
            raise self.refusal(str(error)) from None

    def check(self, arguments: Mapping[str, object]) -> BaseModel:
        """Check arguments from code.

        Args:
            arguments: The arguments by name.

        Returns:
            The checked arguments.

        Raises:
            TaskError: The arguments are not valid for the schema.
        """
        try:
            checked = self._model.model_validate(arguments)
        except ValidationError as error:
            raise self.refusal(describe(error)) from None
        try:
            writer_of(self._model).check(checked)  # pydantic does not check an instance again after a change
        except ValidationError as error:
            raise self.refusal(_FIELD_KEY.sub(lambda found: self._names[found[0]], describe(error))) from None
        except Exception as error:  # a validator may raise any error for a changed instance
            raise self.refusal(f"a validator raised {type(error).__name__}") from None
        return checked

    def by_name(self, checked: BaseModel) -> dict[str, Any]:
        """Return the arguments for a call of the function.

        Args:
            checked: The checked arguments.
        """
        return {name: getattr(checked, key) for key, name in self._names.items()}

    def to_json(self, checked: BaseModel) -> dict[str, JsonValue]:
        """Return the arguments as JSON by parameter name. Equal calls give equal objects in every process.

        Args:
            checked: The checked arguments.

        Raises:
            ConfigurationError: The `repr` of a value contains its address in memory, which differs between processes.
            TaskError: Pydantic cannot write a value, such as bytes that are not UTF-8 text.
        """
        try:
            plain = checked.model_dump(mode="json", by_alias=True, fallback=self._repr_of)
        except ValueError as error:
            raise self.refusal(f"a value has no form in JSON ({type(error).__name__})") from None
        return cast(dict[str, JsonValue], _sort_sets(checked.model_dump(by_alias=True), plain))

    def refusal(self, problem: str) -> TaskError:
        """Return the error for arguments that do not fit.

        Args:
            problem: The problem.
        """
        return TaskError(
            f"bad arguments for {self._tool}: {problem}; follow the schema of the tool", kind=ErrorKind.INVALID_INPUT
        )

    def _repr_of(self, value: object) -> str:
        if _MEMORY_ADDRESS.search(words := repr(value)):
            raise ConfigurationError(
                f"the tool {self._tool} got {words[:200]} in its arguments, which another process cannot recognise; "
                f"give {type(value).__name__} a __repr__ with its value, or take a type that has a JSON form"
            )
        return words


def _sort_sets(value: object, plain: JsonValue) -> JsonValue:
    """Return `plain`, the JSON form of `value`, with each set sorted, because its order differs between processes."""
    match value, plain:
        case Mapping(), dict() if len(value) == len(plain):
            pairs = zip(value.values(), plain.items(), strict=True)
            return {key: _sort_sets(inner, written) for inner, (key, written) in pairs}
        case list() | tuple() | deque() | set() | frozenset(), list() if len(value) == len(plain):
            written = [_sort_sets(*pair) for pair in zip(value, plain, strict=True)]
            return sorted(written, key=compact_json) if isinstance(value, set | frozenset) else written
        case _:
            return plain
