"""Bounded caches, for tests that measure memory: earlier tests fill these caches."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Iterator
from types import ModuleType

__all__ = ["empty_caches"]


def empty_caches() -> None:
    """Empty every bounded `lru_cache` of our modules and every one made since the tests began, and collect garbage.

    A cache keeps new entries until it is full, and its dictionary grows in steps of tens of kilobytes.
    """
    gc.collect()
    for cache in list(_caches()):
        if cache.cache_parameters()["maxsize"] is not None:
            cache.cache_clear()
    gc.collect()


def _caches() -> Iterator[functools._lru_cache_wrapper[object]]:
    """Our caches are found by name, because objects from before all tests are frozen and `gc.get_objects` omits them.

    The search does not load lazy modules, although reading an attribute of a lazy module would load it.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("pointsman"):
            for each in list(ModuleType.__getattribute__(module, "__dict__").values()):
                if type(each) is functools._lru_cache_wrapper:
                    yield each
    for each in gc.get_objects():
        if type(each) is functools._lru_cache_wrapper:
            yield each
