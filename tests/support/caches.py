"""Caches that have a bound, for tests that measure what is kept: how full they are depends on the tests before."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Iterator
from types import ModuleType

__all__ = ["empty_caches"]


def empty_caches() -> None:
    """Every `lru_cache` with a bound, in a module of ours or made since the tests began, is empty, and what was thrown
    away is gone.

    Until one is full it keeps what is new, and its dictionary is made anew in steps of tens of kilobytes.
    """
    gc.collect()
    for cache in list(_caches()):
        if cache.cache_parameters()["maxsize"] is not None:
            cache.cache_clear()
    gc.collect()


def _caches() -> Iterator[functools._lru_cache_wrapper[object]]:
    """Ours are found by name: what was there before all tests is frozen, and `gc.get_objects` does not tell of it.

    No module is loaded by being looked at, which asking one that loads late for its attributes would do.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("pointsman"):
            for each in list(ModuleType.__getattribute__(module, "__dict__").values()):
                if type(each) is functools._lru_cache_wrapper:
                    yield each
    for each in gc.get_objects():
        if type(each) is functools._lru_cache_wrapper:
            yield each
