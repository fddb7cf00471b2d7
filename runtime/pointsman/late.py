"""A part of somebody's package that its other parts import, and that we do not need: loaded when it is first used."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any

__all__ = ["loaded_late"]

_taking = threading.Lock()


class _Late(ModuleType):
    """Stands in for a module until it is asked for a name, and from then on asks the module, which the import system
    loads: once, and under its own lock, so that no thread finds it half loaded. The standard library's lazy module is
    loaded by the next import of it."""

    def __getattr__(self, name: str) -> Any:
        with _taking:
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


@contextmanager
def loaded_late(name: str) -> Iterator[None]:
    """Whoever imports the module `name` of a package in the block gets it unloaded. Where the package has been imported
    already, nothing is changed."""
    package, _, part = name.rpartition(".")
    found = None if package in sys.modules else PathFinder.find_spec(package)
    spec = found and PathFinder.find_spec(name, found.submodule_search_locations)
    if spec is None:
        yield
        return
    module = sys.modules[name] = module_from_spec(spec)
    module.__class__ = _Late
    vars(module).pop("__path__", None)  # missed by whoever imports a part of it, which may need all of it loaded first
    yield
    setattr(sys.modules[package], part, sys.modules[name])  # as the import system does for what it finds by itself
