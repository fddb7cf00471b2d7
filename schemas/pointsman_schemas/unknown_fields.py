"""Find unknown fields in data for a model, and suggest the name that was probably meant."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

__all__ = [
    "MAX_UNKNOWN_FIELDS",
    "UnknownField",
    "closest_match",
    "fields_with_models",
    "find_unknown_fields",
    "unknown_name_message",
]

MAX_UNKNOWN_FIELDS = 100
"""Largest number of unknown fields that are reported for one body."""

_MISNOMERS: Mapping[str, str] = {
    "dependencies": "depends_on",
    "dependency": "depends_on",
    "deps": "depends_on",
    "needs": "depends_on",
    "requires": "depends_on",
    "prerequisites": "depends_on",
    "after": "depends_on",
    "timeout": "deadline",
    "budgets": "budget",
    "limits": "budget",
}
"""Wrong names that writers often use for a field, although the names are not similar."""


_CONTAINERS = (dict, list, tuple, Mapping)


@dataclass(frozen=True, slots=True)
class UnknownField:
    """A field that a model does not have.

    Attributes:
        path: Path of the field from the root of the data, such as `tasks.0.dependencies`.
        message: Message about the name, such as "has no 'tols'; did you mean tools?".
        meant: Name of the field that was probably meant; None if no field that is missing in the data has a similar
            name.
    """

    path: str
    message: str
    meant: str | None

    def __str__(self) -> str:
        return f"{self.path} (did you mean {self.meant}?)" if self.meant else self.path


def find_unknown_fields(model: type[BaseModel], data: Mapping[Any, Any]) -> list[UnknownField]:
    """Find the first `MAX_UNKNOWN_FIELDS` unknown fields in data for a model and for the models within the model.

    The number is limited, because the search for a similar name takes about a millisecond. A body with many unknown
    names would block its reader for long.

    Args:
        model: The model.
        data: Data for the model. Instances of models in the data are not searched.

    Returns:
        The unknown fields.
    """
    return list(islice(_find(model, data, ""), MAX_UNKNOWN_FIELDS))


def _find(model: type[BaseModel], data: Mapping[Any, Any], path: str) -> Iterator[UnknownField]:
    if model.model_config.get("extra") == "allow":
        return
    names, within = _names(model), fields_with_models(model)
    for name, value in data.items():
        if name in names:
            if name in within and isinstance(value, _CONTAINERS):
                yield from _find_within(within[name], value, f"{path}.{name}" if path else str(name))
            continue
        place = f"{path}.{name}" if path else str(name)
        missing = [each for each in names if each not in data]
        yield UnknownField(place, unknown_name_message(str(name), names), closest_match(str(name), missing))


def _find_within(annotation: Any, value: Any, path: str) -> Iterator[UnknownField]:
    """Search the value of a field whose annotation may contain models."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _find_within(arguments[0], value, path)
    elif origin in (Union, types.UnionType):
        models = [each for each in map(_bare, arguments) if isinstance(each, type) and issubclass(each, BaseModel)]
        if isinstance(value, Mapping):
            arguments = tuple(_of_kind(models, value))
        for each in arguments:
            yield from _find_within(each, value, path)
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            if arguments and isinstance(item, _CONTAINERS):
                yield from _find_within(arguments[0], item, f"{path}.{place}")
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from _find(annotation, value, path)
    elif len(arguments) == 2 and isinstance(value, Mapping):
        for name, item in value.items():
            if isinstance(item, _CONTAINERS):
                yield from _find_within(arguments[1], item, f"{path}.{name}")


def _bare(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _of_kind(models: list[type[BaseModel]], value: Mapping[Any, Any]) -> list[type[BaseModel]]:
    """Return the model of a union to which the data belongs: the only model, or the model with the data's `kind`."""
    if len(models) == 1:
        return models
    return [each for each in models if "kind" in value and _kind(each) == value["kind"]][:1]


def _kind(model: type[BaseModel]) -> Any:
    field = model.model_fields.get("kind")
    return field.default if field else None


@lru_cache(maxsize=1_000)
def _names(model: type[BaseModel]) -> dict[str, Any]:
    """Return the annotations of a model's fields, by their names or aliases."""
    names: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        alias = field.validation_alias if isinstance(field.validation_alias, str) else field.alias
        names[alias or name] = field.annotation
    return names


@lru_cache(maxsize=1_000)
def fields_with_models(model: type[BaseModel]) -> dict[str, Any]:
    """Return the fields of a model whose values may be models or contain models.

    Args:
        model: The model.

    Returns:
        The annotations of the fields, by the names of the fields in data.
    """
    return {name: annotation for name, annotation in _names(model).items() if _may_hold_model(annotation)}


def _may_hold_model(annotation: Any) -> bool:
    if get_origin(annotation) is not None:
        return any(map(_may_hold_model, get_args(annotation)))
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def unknown_name_message(name: str, names: Iterable[str]) -> str:
    """Return the text about an unknown name for the end of an error message.

    Args:
        name: The unknown name.
        names: The known names.

    Returns:
        Text such as "has no 'tols'; did you mean tools?".
    """
    names = list(names)
    meant = closest_match(name, names)
    return f"has no {name!r}; " + (f"did you mean {meant}?" if meant else f"it has {', '.join(names)}")


def closest_match(name: str, names: Iterable[str]) -> str | None:
    """Find the known name that is most similar to a misspelled name.

    Args:
        name: The misspelled name.
        names: The known names.

    Returns:
        The known name for which writers often use the misspelled name; otherwise the most similar name. None if no
        known name is similar.
    """
    names = list(names)
    if (meant := _MISNOMERS.get(name)) in names:
        return meant
    return next(iter(get_close_matches(name, names, 1, 0.7)), None)
