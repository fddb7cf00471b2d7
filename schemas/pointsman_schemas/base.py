"""The base classes of wire models and of options that authors write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict

from pointsman_schemas.unknown_fields import closest_match, find_unknown_fields, unknown_name_message

__all__ = ["Frozen", "Options", "closest_match", "unknown_name_message"]


class Options:
    """A base of models that people write in code.

    An unknown keyword argument of the constructor is a `TypeError`, as with any function, also within a dict that is
    given for a model. Models that pydantic reads from data still ignore unknown fields.
    """

    if not TYPE_CHECKING:  # type checkers derive the signature from the fields

        def __new__(cls, *_: Any, **given: Any) -> Self:
            fields = cls.model_fields
            for name, value in given.items():
                if name not in fields:
                    raise TypeError(f"{cls.__name__} {unknown_name_message(name, fields)}")
                if type(value) in _CONTAINERS:
                    _check_within(cls, name, value)
            return super().__new__(cls)


class Frozen(Options, BaseModel):
    """The base of wire models: immutable, compared by value; unknown fields are ignored when data is read."""

    model_config = ConfigDict(frozen=True, defer_build=True)


_CONTAINERS = (dict, list, tuple)


def _check_within(model: type[BaseModel], name: str, value: Any) -> None:
    if not isinstance(value, Mapping) and not any(isinstance(each, Mapping) for each in value):
        return
    for unknown in find_unknown_fields(model, {name: value}):
        within = unknown.path.rpartition(".")[0]
        raise TypeError(f"{within} of {model.__name__} {unknown.message}")
