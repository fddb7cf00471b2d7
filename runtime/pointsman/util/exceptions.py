"""Walk through an exception and its causes."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["causes"]

_MAX_CAUSES = 10


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes, the outermost first.

    A chain of causes can be a ring. For example, code catches an error whose cause is an earlier error, and raises the
    earlier error again. So no exception is yielded twice.

    Args:
        error: The exception.

    Yields:
        Each exception once, and at most 10 exceptions.
    """
    met: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in met and len(met) < _MAX_CAUSES:
        met.add(id(current))
        yield current
        current = current.__cause__ or current.__context__
