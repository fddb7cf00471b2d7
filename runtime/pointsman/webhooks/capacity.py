"""Bound the deliveries that one service sends at a time. A slow receiver must not delay other receivers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from pointsman.ports.clock import Clock
from pointsman.webhooks.endpoints import Endpoint
from pointsman.webhooks.sender import jittered

__all__ = ["Capacity"]

_MAX_DEFERRAL_S = 60.0  # longest time for which a delivery without capacity is deferred
_MAX_THROTTLE_S = 300.0  # longest time for which nothing is sent to an overloaded endpoint
_FIRST_DURATION_S = 0.1  # assumed duration of an exchange with an endpoint, before the first measurement
_SMOOTHING = 0.3  # weight of the newest exchange in the mean duration of an endpoint
_MAX_KNOWN = 10_000  # number of endpoints whose durations and pauses are in memory

_Group: TypeAlias = tuple[str, str]


class Capacity:
    """The capacity of one service for deliveries.

    One endpoint may use a quarter of the capacity. All endpoints of one caller together may also use a quarter. The
    endpoints of all callers together may use three quarters. Callers choose their receivers, and slow receivers of
    callers must not delay deliveries of operators.

    Args:
        concurrency: The number of deliveries that the service sends at a time.
        clock: The clock.
    """

    def __init__(self, concurrency: int, clock: Clock) -> None:
        self._clock = clock
        self._quarter, self._three_quarters = max(1, concurrency // 4), max(1, concurrency * 3 // 4)
        self._active: Counter[_Group] = Counter()
        self._durations: dict[str, float] = {}  # by endpoint, in seconds
        self._queues: dict[_Group, float] = {}  # by group: the time until which the newest deferred delivery waits
        self._throttled: dict[str, float] = {}  # by endpoint: the time until which nothing is sent

    def deferral(self, endpoint: Endpoint) -> float:
        """Return the seconds for which a delivery must wait, if its endpoint is overloaded or has no capacity left.

        The caller returns the delivery to the broker for these seconds. Each further delivery without capacity gets a
        longer time, so that the deliveries come back one after another, at the rate at which exchanges end.

        Args:
            endpoint: The endpoint.

        Returns:
            The seconds; 0 if the delivery may be sent now.
        """
        now = self._clock.monotonic()
        if (until := self._throttled.get(endpoint.id, 0.0)) > now:
            return jittered(until - now)
        for group, most in self._groups(endpoint):
            if self._active[group] >= most:
                duration = self._durations.get(endpoint.id, _FIRST_DURATION_S)
                room_at = max(now, self._queues.get(group, 0.0)) + duration / most
                self._queues[group] = min(room_at, now + _MAX_DEFERRAL_S)
                return self._queues[group] - now
        return 0.0

    @contextmanager
    def sending(self, endpoint: Endpoint) -> Iterator[None]:
        """Count a delivery while it is sent.

        Args:
            endpoint: The endpoint.

        Yields:
            Nothing.
        """
        groups = [group for group, _ in self._groups(endpoint)]
        self._active.update(groups)
        try:
            yield
        finally:
            self._active.subtract(groups)
            for group in groups:
                if not self._active[group]:
                    del self._active[group]

    def record(self, endpoint: Endpoint, seconds: float) -> None:
        """Record the duration of an exchange.

        Args:
            endpoint: The endpoint.
            seconds: The duration.
        """
        if max(len(self._durations), len(self._throttled), len(self._queues)) >= _MAX_KNOWN:
            self._durations.clear()
            self._throttled.clear()
            self._queues.clear()
        before = self._durations.get(endpoint.id, _FIRST_DURATION_S)
        self._durations[endpoint.id] = before + (seconds - before) * _SMOOTHING

    def throttle(self, endpoint: Endpoint, seconds: float) -> None:
        """Send nothing to an overloaded endpoint for a time.

        Args:
            endpoint: The endpoint.
            seconds: The time that the endpoint asks for, in seconds. A time above 300 s counts as 300 s.
        """
        self._throttled[endpoint.id] = self._clock.monotonic() + min(seconds, _MAX_THROTTLE_S)

    def _groups(self, endpoint: Endpoint) -> Sequence[tuple[_Group, int]]:
        if endpoint.caller is None:
            return ((("endpoint", endpoint.id), self._quarter),)
        return (("caller", endpoint.caller), self._quarter), (("callers", ""), self._three_quarters)
