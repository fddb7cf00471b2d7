"""Load parts of third-party packages at their first use. This module also imports structlog in this way.

The start of a process consists mostly of imports, and two packages import modules that no worker uses. structlog
imports rich (0.15 s of CPU) for tracebacks, which Pointsman writes without rich. nats-py imports its JetStream client
(0.05 s), which `bus/jetstream` replaces. An application can still use rich and `nats.js`, because the first use of a
placeholder loads the module.

Use this only for modules that third-party code imports by name. For a slow and rare import of Pointsman, write the
import statement into the function that needs the module, with the reason in a comment.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["lazy_import", "structlog"]


class _LazyModule(ModuleType):
    """Placeholder of a module, which loads the module when an attribute is read.

    The import system loads the module once, under a lock. So threads that read attributes at the same time never get a
    partly loaded module.
    """

    def __init__(self, name: str, attributes: frozenset[str], group: Mapping[str, _LazyModule]) -> None:
        super().__init__(name)
        self._lazy_attributes = attributes
        self._lazy_group = group

    def __getattr__(self, name: str) -> Any:
        if self._lazy_attributes and sys.modules.get(self.__name__) is self:  # inside the block
            if name in self._lazy_attributes:
                return _LazyAttribute(self, name)
            if name == "__path__":  # `from module import name` reads this to check if the module is a package
                raise AttributeError(name)
        return self._lazy_load(name)

    def _lazy_load(self, name: str) -> Any:
        # First remove all placeholders of the group from sys.modules. Modules of one package import each other, and the
        # import system would load a submodule of a placeholder twice.
        for module, placeholder in self._lazy_group.items():
            if sys.modules.get(module) is placeholder:
                del sys.modules[module]
        for module in self._lazy_group:
            import_module(module)
        return getattr(sys.modules[self.__name__], name)


class _LazyAttribute:
    """Placeholder of a function or class that was imported by name. A call or a read loads the module."""

    def __init__(self, module: _LazyModule, name: str) -> None:
        self._module = module
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module._lazy_load(self._name), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._module._lazy_load(self._name)(*args, **kwargs)


@contextmanager
def lazy_import(*names: str) -> Iterator[None]:
    """Replace the modules `names` by placeholders inside the block. A placeholder loads its module at the first use.

    If a package of `names` has been imported already, nothing is changed.

    Args:
        names: Modules that a package imports whole, such as `nats.js`, or `module:attribute` for a function or class
            that a package imports by name and only calls later. Any other attribute that is read inside the block loads
            all modules of the block together.
    """
    attributes: dict[str, set[str]] = {}
    for each in names:
        module, _, attribute = each.partition(":")
        attributes.setdefault(module, set()).update(filter(None, [attribute]))
    if any(module.partition(".")[0] in sys.modules for module in attributes):
        yield
        return
    group: dict[str, _LazyModule] = {}
    group |= {module: _LazyModule(module, frozenset(of), group) for module, of in attributes.items()}
    sys.modules.update(group)
    try:
        yield
    finally:
        waiting = [module for module, placeholder in group.items() if sys.modules.get(module) is placeholder]
        for module in waiting:  # removed, because a later import of a submodule would load the module again
            del sys.modules[module]
    for module in waiting:
        package, _, part = module.rpartition(".")
        if package in sys.modules:
            setattr(sys.modules[package], part, group[module])


with lazy_import("rich", "rich.console:Console", "rich.pretty", "rich.traceback:Traceback"):
    import structlog
