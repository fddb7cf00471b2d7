"""Compute the times of a schedule. All times are in UTC; the cron expression is read in its own time zone.

At the start and the end of daylight saving time, the rules of Debian's cron apply. If the minute or the hour of the
expression begins with `*`, the schedule fires by elapsed time, as if the clocks had not changed. Any other expression
names fixed times. If the clocks skip a fixed time, the schedule fires right after the skipped time. If a fixed time
occurs twice, the schedule fires only the first time.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from pointsman.errors import ContractError
from pointsman_schemas.schedules import ScheduleSpec

__all__ = ["MAX_COUNTED", "check_times", "fires_between", "next_fire", "upcoming"]

MAX_COUNTED = 1_000
"""Largest number of missed fires that are counted. Further fires are not counted, because counting would be slow if no
supervisor ran for a very long time."""
_FIELDS = 5
_RESOLUTION = timedelta(minutes=1)
"""Shortest time between two fires of a cron expression."""


def check_times(spec: ScheduleSpec, now: datetime) -> None:
    """Refuse a definition without a valid time.

    Args:
        spec: The definition.
        now: The time.

    Raises:
        ContractError: The cron expression or the time zone is not valid, or no time is left.
    """
    if spec.at is not None:
        if spec.at < now - timedelta(seconds=spec.grace):
            raise ContractError(
                f"the time is {spec.at.isoformat()}, which has passed; give a time that is still to come"
            )
        return
    assert spec.cron is not None
    if len(spec.cron.split()) != _FIELDS:
        raise ContractError(
            f"cron is {spec.cron!r}; expected five fields: minute, hour, day of the month, month, day of the week, "
            "such as '0 9 * * 1-5'"
        )
    try:
        _zone(spec.timezone)
    except (KeyError, ValueError, OSError):  # an unknown name, a path, a folder of zones
        raise ContractError(
            f"the time zone is {spec.timezone!r}; expected an IANA name such as Europe/Oslo, or UTC"
        ) from None
    try:
        first = next_fire(spec, now)
    except CronSimError as error:
        raise ContractError(
            f"cron is {spec.cron!r}: {str(error).lower()}; expected five fields such as '0 9 * * 1-5'"
        ) from None
    if first is None:
        raise ContractError(f"cron is {spec.cron!r}, which has no time in the next 50 years; correct day and month")


def next_fire(spec: ScheduleSpec, after: datetime) -> datetime | None:
    """Return the first fire after a time.

    Args:
        spec: The definition.
        after: The time.

    Returns:
        The fire; None after the last fire.
    """
    return next(_fires(spec, after), None)


def upcoming(spec: ScheduleSpec, after: datetime, count: int) -> list[datetime]:
    """Return the next fires.

    Args:
        spec: The definition.
        after: The time.
        count: The largest number of fires.

    Returns:
        The fires, in order.
    """
    return [fire for fire, _ in zip(_fires(spec, after), range(count), strict=False)]


def fires_between(spec: ScheduleSpec, after: datetime, until: datetime) -> tuple[datetime | None, int]:
    """Find the fires in a span of time.

    Args:
        spec: The definition.
        after: The beginning, exclusive.
        until: The end, inclusive.

    Returns:
        The newest fire, and the number of fires, at most `MAX_COUNTED`.
    """
    newest, count = None, 0
    for fire in _fires(spec, after):
        if fire > until:
            return newest, count
        newest, count = fire, count + 1
        if count == MAX_COUNTED:
            break
    return (newest if newest is None or count < MAX_COUNTED else _newest_fire(spec, newest, until)), count


def _newest_fire(spec: ScheduleSpec, fire: datetime, until: datetime) -> datetime:
    """Return the newest fire up to `until`. The search is a bisection, because the span may have very many fires."""
    bound = until  # invariant: no fire is between `bound` and `until`
    while bound - fire > _RESOLUTION:
        middle = fire + (bound - fire) / 2
        following = next_fire(spec, middle)
        if following is not None and following <= until:
            fire = following
        else:
            bound = middle
    while (following := next_fire(spec, fire)) is not None and following <= until:
        fire = following
    return fire


def _fires(spec: ScheduleSpec, after: datetime) -> Iterator[datetime]:
    """Yield the fires after a time. The fires of a cron expression never end, so the caller must stop the iteration."""
    if spec.at is not None:
        if spec.at > after:
            yield spec.at.astimezone(UTC)
        return
    last = after.astimezone(UTC)
    # The iterator drops the seconds of its start. No fire is lost by this, because each fire is at a whole minute.
    for local in CronSim(spec.cron or "", after.astimezone(_zone(spec.timezone))):
        fire = local.astimezone(UTC)
        if fire > last:  # the iterator returns a fixed time in the repeated hour twice
            yield fire
            last = fire


@lru_cache(256)
def _zone(name: str) -> tzinfo:
    return UTC if name == "UTC" else ZoneInfo(name)
