"""Empty bounded caches before a measurement of memory, because earlier tests fill these caches."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Iterator
from types import ModuleType

__all__ = ["empty_caches"]


def empty_caches() -> None:
    """Empty the bounded caches (`lru_cache`) of our modules and of the tests. Then collect garbage.

    A cache keeps new entries until it is full, and its dictionary grows in steps of tens of kilobytes.
    """
    gc.collect()
    for cache in list(_caches()):
        if cache.cache_parameters()["maxsize"] is not None:
            cache.cache_clear()
    gc.collect()


def _caches() -> Iterator[functools._lru_cache_wrapper[object]]:
    """Yield the caches. Our modules are searched, because `gc.get_objects` omits objects frozen before the tests.

    The search reads `__dict__`, because an ordinary attribute access would load a lazy module.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("pointsman"):
            for each in list(ModuleType.__getattribute__(module, "__dict__").values()):
                if type(each) is functools._lru_cache_wrapper:
                    yield each
    for each in gc.get_objects():
        if type(each) is functools._lru_cache_wrapper:
            yield each
