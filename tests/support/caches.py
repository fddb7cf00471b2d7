"""Caches that have a bound, for tests that measure what is kept: how full they are depends on the tests before."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Iterator

__all__ = ["empty_caches"]


def empty_caches() -> None:
    """Every `lru_cache` with a bound of a module or of a class in one is empty, and what was thrown away is gone.

    A full one grows in steps: its dictionary alone is made anew with tens of kilobytes more.
    """
    for cache in _caches():
        if cache.cache_parameters()["maxsize"] is not None:
            cache.cache_clear()
    gc.collect()


def _caches() -> Iterator[functools._lru_cache_wrapper[object]]:
    """Found by name: those that were there before all tests are frozen, and `gc.get_objects` does not tell of them."""
    for module in list(sys.modules.values()):
        for named in list(vars(module).values()):
            for each in (named, *vars(named).values()) if isinstance(named, type) else (named,):
                if isinstance(each, functools._lru_cache_wrapper):
                    yield each
