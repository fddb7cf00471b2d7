"""A part of somebody's package that its other parts import, and that we do not need: loaded when it is first used."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["loaded_late"]


class _Late(ModuleType):
    """Stands in for a module where its package names it: what is asked of it, it asks the module, which the import
    system loads, once, and under its own lock, so that no thread finds it half loaded."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:  # asked for in the block, by somebody who cannot wait
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


@contextmanager
def loaded_late(name: str) -> Iterator[None]:
    """Whoever imports the module `name` of a package in the block gets it unloaded. Where the package has been imported
    already, nothing is changed."""
    package, _, part = name.rpartition(".")
    if package in sys.modules:
        yield
        return
    late = sys.modules[name] = _Late(name)
    try:
        yield
    finally:
        waits = sys.modules.get(name) is late
        if waits:  # in the way of whoever imports it next, or a part of it: that part would be loaded twice
            del sys.modules[name]
    if waits:
        setattr(sys.modules[package], part, late)
