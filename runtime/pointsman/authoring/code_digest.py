"""Compute a digest of an agent's code, to distinguish two agents with the same name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from pointsman_schemas.ids import derive_id

__all__ = ["code_digest"]

_PLAIN_TYPES = (str, int, float, bool, bytes, type(None))


def code_digest(*parts: object) -> str:
    """Return a digest of the code of functions and classes, and of plain values.

    The digest covers the whole file that defines a function or a class, because a function calls other functions of its
    file. The digest also covers the function's position in the file, its default arguments and the plain values in its
    closure. Processes with equal code compute equal digests, on any machine.

    Args:
        *parts: Functions, classes and plain values. For any other object, the digest covers only its class.

    Returns:
        16 hexadecimal digits.
    """
    return derive_id("code", *(_text_of(part) for part in parts), length=16)


def _text_of(part: object) -> str:
    if isinstance(part, _PLAIN_TYPES):
        return repr(part)
    found = inspect.unwrap(part) if callable(part) and not isinstance(part, type) else part
    if isinstance(found, FunctionType):
        return _text_of_function(found)
    kind = found if isinstance(found, type) else type(found)
    return f"{kind.__module__}.{kind.__qualname__} {_file_text(kind)}"


def _text_of_function(function: FunctionType) -> str:
    code = function.__code__
    cells = [_enclosed(cell) for cell in function.__closure__ or ()]
    values = [repr(value) for value in (*cells, *(function.__defaults__ or ())) if isinstance(value, _PLAIN_TYPES)]
    text = _file_text(function) or _text_of_code(code)
    return f"{function.__qualname__} {code.co_firstlineno} {' '.join(values)} {text}"


def _enclosed(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # a variable without a value yet
        return None


def _text_of_code(code: CodeType) -> str:
    """Return the code of a function without a source file as text, without the memory addresses of inner functions."""
    constants = [
        _text_of_code(value) if isinstance(value, CodeType) else repr(value)
        for value in code.co_consts
        if isinstance(value, (*_PLAIN_TYPES, CodeType))
    ]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def _file_text(of: Callable[..., Any] | type) -> str:
    """Return the digest of the file that defines a function or a class; empty if there is no file."""
    try:
        name = inspect.getsourcefile(of)
    except TypeError:  # built in
        return ""
    return _file_digest(name) if name else ""


@lru_cache(256)
def _file_digest(name: str) -> str:
    try:
        text = Path(name).read_bytes()
    except OSError:
        return ""
    return derive_id(text.replace(b"\r\n", b"\n").decode("utf-8", "replace"))
