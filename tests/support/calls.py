"""Count function calls. A count is the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["counting"]


@contextmanager
def counting(places: tuple[str, ...] = ("",)) -> Iterator[list[int]]:
    """Count the calls that this thread makes in the block, from and within files below `places`; by default all."""
    counted = [0]

    def note(frame: FrameType, event: str, given: Any) -> None:
        if event in ("call", "c_call"):
            counted[0] += frame.f_code.co_filename.startswith(places)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield counted
    finally:
        sys.setprofile(before)
