"""Limit the number of requests, bytes or changes of each caller in a period, at one gateway."""

from __future__ import annotations

from time import monotonic

__all__ = ["CallerRates"]

_MAX_CALLERS = 10_000  # number of callers whose buckets are in memory


class CallerRates:
    """A token bucket for each caller. A bucket holds at most the limit of one period, and fills evenly.

    Args:
        period: The period in seconds.
    """

    def __init__(self, period: float) -> None:
        self._period = period
        self._buckets: dict[str, tuple[float, float]] = {}  # the remaining tokens, and the time of the last change

    def spend(self, caller: str, limit: float, amount: float = 1.0) -> float:
        """Take an amount from the bucket of a caller, if the bucket has the amount.

        Args:
            caller: The caller.
            limit: The largest amount in one period.
            amount: The amount to take.

        Returns:
            The seconds until the bucket has the amount; 0 if the amount was taken.
        """
        now = monotonic()
        left, at = self._buckets.pop(caller, (float(limit), now))
        left = min(float(limit), left + (now - at) * limit / self._period)
        taken = left >= amount
        self._buckets[caller] = (left - amount if taken else left), now
        while len(self._buckets) > _MAX_CALLERS:
            del self._buckets[next(iter(self._buckets))]
        return 0.0 if taken else max((amount - left) * self._period / limit, 0.001) if limit else self._period
