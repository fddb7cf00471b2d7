"""Find public classes and functions whose docstring lacks a parameter, a return value or an exception.

The public API is `__all__` of `pointsman`, of its public sub-packages and of the modules of `pointsman_schemas`.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import pkgutil
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from enum import Enum
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from pydantic import BaseModel

import pointsman_schemas

__all__ = ["PUBLIC", "documented", "incomplete_docstrings", "missing"]

PUBLIC = (
    "pointsman",
    "pointsman.errors",
    "pointsman.ports.bus",
    "pointsman.ports.clock",
    "pointsman.ports.model",
    "pointsman.settings",
    "pointsman.client.client",
    "pointsman.client.workflow",
    "pointsman.evaluation.runner",
    "pointsman.evaluation.suite",
    "pointsman.testing",
    *(f"pointsman_schemas.{module.name}" for module in pkgutil.iter_modules(pointsman_schemas.__path__)),
)
_OURS = ("pointsman.", "pointsman_schemas.")
_NOTHING = frozenset({"None", "Never", "NoReturn"})
_SECTIONS = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Examples?|Notes?|Warnings?):$")
_ENTRY = re.compile(r"^    \*{0,2}([\w.]+)(?: \([^)]*\))?:(?: |$)")


@cache
def incomplete_docstrings(root: Path) -> tuple[tuple[str, int, str, str], ...]:
    """Return path (relative to `root`), line, rule and missing part for each incomplete docstring."""
    return tuple(_incomplete(root))


def _incomplete(root: Path) -> Iterator[tuple[str, int, str, str]]:
    seen: set[int] = set()
    for module in PUBLIC:
        exported = import_module(module)
        for name in getattr(exported, "__all__", ()):
            value = getattr(exported, name)
            if id(value) in seen or not (inspect.isclass(value) or inspect.isfunction(value)):
                continue
            if not (value.__module__ + ".").startswith(_OURS):
                continue
            seen.add(id(value))
            for each, label, rule, what in _of_class(value) if inspect.isclass(value) else _of_function(value, name):
                file = inspect.getsourcefile(inspect.unwrap(each))
                if file and Path(file).is_relative_to(root):
                    line = inspect.getsourcelines(inspect.unwrap(each))[1]
                    yield str(Path(file).relative_to(root)), line, rule, f"{label}: {what}"


def documented(docstring: str | None) -> dict[str, set[str]]:
    """Return the sections of a Google-style docstring, each with the names of its entries."""
    sections: dict[str, set[str]] = {}
    current: set[str] | None = None
    for line in inspect.cleandoc(docstring or "").splitlines():
        if section := _SECTIONS.match(line):
            current = sections.setdefault(section[1], set())
        elif line and not line.startswith(" "):
            current = None
        elif current is not None and (entry := _ENTRY.match(line)):
            current.add(entry[1])
    return sections


def missing(function: Any, root_error: str = "PointsmanError") -> Iterator[tuple[str, str]]:
    """Yield the rule and the missing part for each gap in the docstring of `function`."""
    if not function.__doc__:
        yield "docstring", "no docstring"
        return
    sections = documented(function.__doc__)
    signature = inspect.signature(function)
    names = [name for name in signature.parameters if name not in ("self", "cls") and not name.startswith("_")]
    if absent := [name for name in names if name not in sections.get("Args", ())]:
        yield "args", f"`Args:` lacks {', '.join(absent)}"
    returned = signature.return_annotation
    returns = str(returned) not in _NOTHING and returned not in (None, inspect.Signature.empty)
    if returns and not sections.keys() & {"Returns", "Yields"}:
        yield "returns", "no `Returns:` or `Yields:`"
    if absent := sorted(_raised(function, root_error) - {each.split(".")[-1] for each in sections.get("Raises", ())}):
        yield "raises", f"`Raises:` lacks {', '.join(absent)}"


def _of_function(function: Any, name: str) -> Iterator[tuple[Any, str, str, str]]:
    for rule, what in missing(function):
        yield function, name, rule, what


def _of_class(cls: type) -> Iterator[tuple[Any, str, str, str]]:
    if not cls.__dict__.get("__doc__"):
        yield cls, cls.__name__, "docstring", "no docstring"
    if absent := [name for name in _constructor(cls) if name not in _described(cls)]:
        yield cls, cls.__name__, "args", f"`Args:` or `Attributes:` lacks {', '.join(absent)}"
    for name, value in vars(cls).items():
        if name.startswith("_"):
            continue
        if isinstance(value, property | cached_property):
            function: Any = value.fget if isinstance(value, property) else value.func
            if function is not None and not _inherited(cls, name) and not function.__doc__:
                yield function, f"{cls.__name__}.{name}", "docstring", "no docstring"
            continue
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        function = inspect.unwrap(function) if callable(function) else function
        own = isinstance(function, FunctionType) and function.__qualname__.startswith(cls.__name__)
        if own and (function.__doc__ or not _inherited(cls, name)):
            for rule, what in missing(function):
                yield function, f"{cls.__name__}.{name}", rule, what


def _constructor(cls: type) -> list[str]:
    if issubclass(cls, BaseModel | Enum):
        return []
    if dataclasses.is_dataclass(cls) and "__init__" in vars(cls):
        return [each.name for each in dataclasses.fields(cls) if each.init and not each.name.startswith("_")]
    init = vars(cls).get("__init__")
    if isinstance(init, FunctionType) and init.__qualname__ == f"{cls.__qualname__}.__init__":
        return [name for name in inspect.signature(init).parameters if name != "self" and not name.startswith("_")]
    return []


def _described(cls: type) -> set[str]:
    """Return the parameters and attributes that have a text: in the class, in `__init__` or below an attribute."""
    found: set[str] = set()
    for base in cls.__mro__:
        for docstring in (base.__dict__.get("__doc__"), getattr(base.__dict__.get("__init__"), "__doc__", None)):
            sections = documented(docstring)
            found |= sections.get("Args", set()) | sections.get("Attributes", set())
        if (base.__module__ + ".").startswith(_OURS):
            found |= _described_attributes(base)
    return found


@cache
def _described_attributes(cls: type) -> frozenset[str]:
    """Return the attributes that are followed by a docstring in the body of the class."""
    found = set()
    for field, text in itertools.pairwise(_classes(sys.modules[cls.__module__])[cls.__qualname__].body):
        is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and is_text:
            found.add(ast.unparse(field.target))
    return frozenset(found)


@cache
def _classes(module: ModuleType) -> dict[str, ast.ClassDef]:
    """Return the classes of a module by their qualified names. `inspect.getsource` parses the module for each class."""
    found: dict[str, ast.ClassDef] = {}

    def visit(body: Iterable[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                found[f"{prefix}{node.name}"] = node
                visit(node.body, f"{prefix}{node.name}.")

    visit(ast.parse(inspect.getsource(module)).body, "")
    return found


def _inherited(cls: type, name: str) -> bool:
    return any(getattr(vars(base).get(name), "__doc__", None) for base in cls.__mro__[1:-1])


def _raised(function: Any, root_error: str) -> set[str]:
    """Return the names of Pointsman's errors that the body of `function` raises directly."""
    inner = inspect.unwrap(function)
    tree = ast.parse(textwrap.dedent(inspect.getsource(inner)))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
            error = inner.__globals__.get(node.exc.func.id)
            if isinstance(error, type) and any(base.__name__ == root_error for base in error.__mro__):
                found.add(error.__name__)
    return found
