"""Count the workflows of a list by start time and status, in columns of equal duration up to now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Activity", "activity_of"]

_MAX_COLUMNS = 60  # largest number of columns, which fits on the screen of a phone
_STEP_SECONDS = (
    0.1,
    0.2,
    0.5,
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    900,
    1800,
    3600,
    7200,
    14400,
    43200,
    86400,
    604800,
)
"""The possible durations of a column, in seconds."""
_SERIES_INDEX = {"completed": 0, "failed": 1, "partial": 1, "cancelled": 2}
_OPEN_INDEX = 3


@dataclass(frozen=True, slots=True)
class Activity:
    """Numbers of workflows by start time.

    Each column covers `step` seconds. The first column begins at `start`, in seconds since 1970. A column has four
    numbers of the workflows that began within its time: completed; failed or partial; cancelled; not ended.
    """

    start: float
    step: float
    columns: Sequence[Sequence[int]]


def activity_of(begun: Sequence[tuple[float, str]], *, since: float | None, now: float) -> Activity | None:
    """Count workflows by their start and status.

    All times are in seconds since 1970. The columns cover the time from `since`, or from the first start, up to `now`.

    Returns:
        The numbers; None for fewer than two workflows.
    """
    if len(begun) < 2:
        return None
    first = min(at for at, _ in begun) if since is None else since
    whole = max(now - first, 1.0)
    step = next((each for each in _STEP_SECONDS if whole / each < _MAX_COLUMNS), whole / (_MAX_COLUMNS - 1))
    start = first - first % step
    columns = [[0, 0, 0, 0] for _ in range(max(1, min(_MAX_COLUMNS, int((now - start) // step) + 1)))]
    last = len(columns) - 1
    part, parts = _SERIES_INDEX.get, _OPEN_INDEX + 1
    counted = Counter([int((at - start) / step) * parts + part(status, _OPEN_INDEX) for at, status in begun])
    for place, count in counted.items():
        column, of = divmod(place, parts)
        columns[max(0, min(last, column))][of] += count
    return Activity(start, step, columns)
