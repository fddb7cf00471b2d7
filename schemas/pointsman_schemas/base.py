"""The base classes of wire models and of options that authors write."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict

__all__ = ["Frozen", "Options", "nearest", "no_such"]


class Frozen(BaseModel):
    """The base of what travels: equal by value, unknown fields passed over, built on first use."""

    model_config = ConfigDict(frozen=True, defer_build=True)


class Options:
    """A base beside pydantic's. Calling a class with a name that is no field of it is a `TypeError`, as it is of any
    function; what pydantic makes of data that it reads does not come through here with names."""

    if not TYPE_CHECKING:  # the signature is that of the fields

        def __new__(cls, *_: Any, **given: Any) -> Self:
            fields = cls.model_fields
            for name in given:
                if name not in fields:
                    raise TypeError(f"{cls.__name__} {no_such(name, fields)}")
            return super().__new__(cls)


def no_such(name: str, names: Iterable[str]) -> str:
    """That there is no `name`, and what may have been meant, or what there is."""
    meant = nearest(name, names)
    return f"has no {name!r}; " + (f"did you mean {meant}?" if meant else f"it has {', '.join(names)}")


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` that `name` may be a misspelling of."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, list(names), 1, 0.7)), None)
