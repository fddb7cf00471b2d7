"""structlog, which here loads rich when it first draws a traceback with it, and not when it is imported itself.

To import rich takes a fifth of a second of CPU and 6 MiB, in every process, for tracebacks that ours write without it.
"""

from __future__ import annotations

import sys
from pkgutil import resolve_name
from typing import Any, cast

__all__ = ["structlog"]

_RICH = ("rich", "rich.console", "rich.pretty", "rich.traceback")  # what structlog imports of it


class _Late:
    """What is found under `path`, looked up when it is called."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> _Late:
        if name.startswith("_"):  # the import system asks for such names, and takes it for a module that has none
            raise AttributeError(name)
        return _Late(f"{self._path}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return resolve_name(self._path)(*args, **kwargs)


if "rich" in sys.modules or "structlog" in sys.modules:
    import structlog
else:
    sys.modules.update({name: cast(Any, _Late(name)) for name in _RICH})
    try:
        import structlog
    finally:
        for name in _RICH:
            del sys.modules[name]
