"""What an author writes in Python is refused where a name in it is misspelled. What was read is not: who reads ignores
what it does not know, so that an older version reads what a newer one has written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Options", "nearest", "no_such"]


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
