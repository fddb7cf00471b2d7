"""Define the base classes of wire models and of options that authors write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict

from pointsman_schemas.unknown_fields import (
    closest_match,
    fields_with_models,
    find_unknown_fields,
    unknown_name_message,
)

__all__ = ["Frozen", "Options", "closest_match", "make_valid", "unknown_name_message"]

ModelT = TypeVar("ModelT", bound=BaseModel)


class Options(BaseModel):
    """The base of models whose instances people make in code.

    An unknown keyword argument of the constructor raises `TypeError`, as with any function. An unknown key in a dict
    that is given instead of a model also raises `TypeError`. But a model that pydantic reads from data ignores unknown
    fields.
    """

    model_config = ConfigDict(defer_build=True)

    if not TYPE_CHECKING:  # type checkers derive the signature from the fields

        def __init__(self, /, **given: Any) -> None:
            model = type(self)
            fields = model.__pydantic_fields__
            for name, value in given.items():
                if name not in fields:
                    raise TypeError(f"{model.__name__} {unknown_name_message(name, fields)}")
                if type(value) in _CONTAINERS and name in fields_with_models(model):
                    _check_within(model, name, value)
            self.__pydantic_validator__.validate_python(given, self_instance=self)

        # This mark makes pydantic read data without this constructor, which would refuse unknown fields.
        __init__.__pydantic_base_init__ = True


class Frozen(Options):
    """The base of wire models. They are immutable and compared by value. Unknown fields of data are ignored."""

    model_config = ConfigDict(frozen=True, defer_build=True)


_CONTAINERS = (dict, list, tuple)


def make_valid(model: type[ModelT], **fields: Any) -> ModelT:
    """Make an instance of a model from values that are known to be valid, without validation.

    pydantic's `model_construct` would take 1.5 times as long, because it searches for aliases and defaults.

    Args:
        model: The class.
        **fields: The value of every field.

    Returns:
        The instance.
    """
    made = model.__new__(model)
    object.__setattr__(made, "__dict__", fields)
    object.__setattr__(made, "__pydantic_fields_set__", set(fields))
    object.__setattr__(made, "__pydantic_extra__", None)
    object.__setattr__(made, "__pydantic_private__", None)
    return made


def _check_within(model: type[BaseModel], name: str, value: Any) -> None:
    if type(value) is not dict and dict not in map(type, value):
        return
    for unknown in find_unknown_fields(model, {name: value}):
        within = unknown.path.rpartition(".")[0]
        raise TypeError(f"{within} of {model.__name__} {unknown.message}")
