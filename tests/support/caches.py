"""Caches that have a bound, for tests that measure what is kept: how full they are depends on the tests before."""

from __future__ import annotations

import functools
import gc

__all__ = ["empty_caches"]


def empty_caches() -> None:
    """Every `lru_cache` with a bound of this process is empty, whoever made it, and what was thrown away is gone.

    A full one grows in steps: its dictionary alone is made anew with tens of kilobytes more.
    """
    gc.collect()
    for each in gc.get_objects():
        if isinstance(each, functools._lru_cache_wrapper) and each.cache_parameters()["maxsize"] is not None:
            each.cache_clear()
    gc.collect()
