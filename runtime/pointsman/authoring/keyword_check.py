"""Refuse an unknown keyword in a definition, and name the keyword that the author probably meant."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from pointsman_schemas.unknown_fields import unknown_name_message

__all__ = ["check_keywords"]

P = ParamSpec("P")
R = TypeVar("R")


def check_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Add a check to a function or an `__init__`, so that an error for an unknown keyword names the meant keyword.

    Args:
        function: The function. Its signature names all keywords, so it has no `**keywords`.

    Returns:
        The function with the check. An unknown keyword raises a `TypeError`.
    """
    names = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is not inspect.Parameter.POSITIONAL_ONLY and name != "self"
    ]
    owner = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def checked(*args: P.args, **keywords: P.kwargs) -> R:
        for name in keywords:
            if name not in names:
                raise TypeError(f"{owner} {unknown_name_message(name, names)}")
        return function(*args, **keywords)

    return checked
