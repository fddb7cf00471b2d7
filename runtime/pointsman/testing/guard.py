"""No test calls a model that costs money."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pointsman.llm.network_guard import ACTIVE_GUARDS

__all__ = ["forbid_real_models"]


@contextmanager
def forbid_real_models() -> Iterator[None]:
    """Stop every call of a model that is not on this machine, and fail in the end if there was one.

    Raises:
        AssertionError: a call was stopped, even if whoever made it passed over its failure.
    """
    stopped: list[str] = []
    ACTIVE_GUARDS.append(stopped)
    try:
        yield
    finally:
        ACTIVE_GUARDS[:] = [each for each in ACTIVE_GUARDS if each is not stopped]  # another's may be equal
    assert not stopped, f"{len(stopped)} calls of real models were stopped: {', '.join(sorted(set(stopped)))}"
