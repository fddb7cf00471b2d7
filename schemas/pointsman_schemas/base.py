"""The base classes of wire models and of options that authors write."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict

__all__ = ["Frozen", "Options", "closest_match", "unknown_name_message"]


class Frozen(BaseModel):
    """The base of wire models: immutable, compared by value; unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, defer_build=True)


class Options:
    """A second base for models that authors write in code.

    An unknown keyword argument of the constructor is a `TypeError`, as with any function. Models that pydantic reads
    from data still ignore unknown fields.
    """

    if not TYPE_CHECKING:  # type checkers derive the signature from the fields

        def __new__(cls, *_: Any, **given: Any) -> Self:
            fields = cls.model_fields
            for name in given:
                if name not in fields:
                    raise TypeError(f"{cls.__name__} {unknown_name_message(name, fields)}")
            return super().__new__(cls)


def unknown_name_message(name: str, names: Iterable[str]) -> str:
    """Return the end of an error message about an unknown name.

    Args:
        name: The unknown name.
        names: The known names.

    Returns:
        Text such as "has no 'tols'; did you mean tools?".
    """
    meant = closest_match(name, names)
    return f"has no {name!r}; " + (f"did you mean {meant}?" if meant else f"it has {', '.join(names)}")


def closest_match(name: str, names: Iterable[str]) -> str | None:
    """Find the known name that is most similar to a misspelled name.

    Args:
        name: The misspelled name.
        names: The known names.

    Returns:
        The most similar name, or None if none is similar.
    """
    return next(iter(get_close_matches(name, list(names), 1, 0.7)), None)
