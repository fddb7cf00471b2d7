"""A part of somebody's package that its other parts import, and that we do not need: loaded when it is first used."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any

__all__ = ["loaded_late"]


class _Late(ModuleType):
    """Its first missing name has it loaded. The standard library's lazy module is loaded by the next import of it."""

    def __getattr__(self, name: str) -> Any:
        self.__class__ = ModuleType  # type: ignore[assignment]  # from now on what is not there is missing
        if self.__spec__ is not None and self.__spec__.loader is not None:
            self.__path__ = self.__spec__.submodule_search_locations or []
            self.__spec__.loader.exec_module(self)
        return getattr(self, name)


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
    setattr(sys.modules[package], part, module)  # as the import system does for what it finds by itself
