"""Compute the unused part of a provider's limits, from a bucket of requests, a bucket of tokens and the current calls.

A bucket fills at the rate of its limit, and its size is the amount of ten seconds. So no minute exceeds the limit by
more than a sixth.

The time comes from the clock of each caller. If the stored time is more than a minute ahead of the next caller's clock,
the next caller's time replaces it. So a fast clock makes no other caller wait. But each time that a caller with a fast
clock follows, the difference fills the buckets, even overdrawn ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

__all__ = ["BucketState", "ModelLimits", "acquire", "release"]

_MINUTE_S = 60.0
_MAX_RATE = 1e12  # per minute; larger than the limit of any provider
_BURST_SHARE = 1 / 6  # share of a minute's limit that may be used in one burst
_POLL_INTERVAL_S = 0.1  # seconds until the next try, if the maximum number of calls is in progress


class ModelLimits(BaseModel):
    """The limits of a provider for one key and one model.

    Attributes:
        requests: Number of requests in a minute; None for no limit.
        tokens: Number of tokens in a minute; None for no limit.
        concurrency: Number of calls at the same time; None for no limit.
    """

    model_config = ConfigDict(frozen=True, defer_build=True, extra="forbid")

    requests: Annotated[float, Field(strict=True, gt=0, le=_MAX_RATE)] | None = None
    tokens: Annotated[float, Field(strict=True, gt=0, le=_MAX_RATE)] | None = None
    concurrency: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] | None = None


class BucketState(BaseModel):
    """The unused part of the limits at a time.

    Attributes:
        at: The time.
        requests: Requests that are left; None for a bucket that was not used yet.
        tokens: Tokens that are left; None for a bucket that was not used yet.
        calls: The calls in progress, each with the latest time of its end.
        closed_until: The time before which the provider accepts no call.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    at: AwareDatetime
    requests: float | None = None
    tokens: float | None = None
    calls: Mapping[str, AwareDatetime] = {}
    closed_until: AwareDatetime | None = None


def acquire(
    state: BucketState | None, limits: ModelLimits, now: datetime, call: str, tokens: int, until: datetime
) -> BucketState | float:
    """Take the share of a call.

    A call that needs more than the size of the bucket waits for a full bucket. A call that already has its share gets
    no second share. So a caller that does not know whether the state was stored may simply try again.

    Args:
        state: The state; None for limits that were not used yet.
        limits: The limits.
        now: The time.
        call: The id of the call.
        tokens: The estimated number of tokens of the call. `release` corrects the estimate.
        until: The latest time of the call's end.

    Returns:
        The state with the call; or the seconds until the caller may try again.
    """
    there = _refill(state or BucketState(at=now), limits, now)
    if call in there.calls:
        return there
    if there.closed_until is not None and there.closed_until > now:
        return (there.closed_until - now).total_seconds()
    if limits.concurrency is not None and len(there.calls) >= limits.concurrency:
        return _POLL_INTERVAL_S
    wait = max(
        _seconds_until(there.requests, 1.0, limits.requests),
        _seconds_until(there.tokens, float(tokens), limits.tokens),
    )
    if wait > 0:
        return wait
    return there.model_copy(
        update={
            "requests": None if there.requests is None else there.requests - 1,
            "tokens": None if there.tokens is None else there.tokens - tokens,
            "calls": {**there.calls, call: until},
        }
    )


def release(
    state: BucketState | None, limits: ModelLimits, now: datetime, call: str, tokens: int, closed: float | None
) -> BucketState:
    """Release the share of a call that has ended. If the share was released before, the buckets do not change.

    Args:
        state: The state; None for limits that were not used yet.
        limits: The limits.
        now: The time.
        call: The id of the call.
        tokens: The estimated number of tokens minus the used number; below 0 if the call used more.
        closed: Seconds for which the provider asked all callers to wait; None if the provider did not ask.

    Returns:
        The state without the call.
    """
    there = _refill(state or BucketState(at=now), limits, now)
    update: dict[str, object] = {"calls": {name: until for name, until in there.calls.items() if name != call}}
    if there.tokens is not None and call in there.calls:
        update["tokens"] = there.tokens + tokens
    if closed is not None:
        update["closed_until"] = max(there.closed_until or now, now + timedelta(seconds=closed))
    return there.model_copy(update=update)


def _refill(there: BucketState, limits: ModelLimits, now: datetime) -> BucketState:
    apart = (now - there.at).total_seconds()
    passed = max(apart, 0.0)
    return there.model_copy(
        update={
            "at": there.at if -_MINUTE_S < apart < 0 else now,
            "requests": _refill_bucket(there.requests, passed, limits.requests),
            "tokens": _refill_bucket(there.tokens, passed, limits.tokens),
            "calls": {name: until for name, until in there.calls.items() if until > now},
            "closed_until": there.closed_until if there.closed_until and there.closed_until > now else None,
        }
    )


def _refill_bucket(left: float | None, passed: float, limit: float | None) -> float | None:
    if limit is None:
        return None
    full = max(1.0, limit * _BURST_SHARE)
    return full if left is None else min(full, left + passed * limit / _MINUTE_S)


def _seconds_until(left: float | None, wanted: float, limit: float | None) -> float:
    if left is None or limit is None:
        return 0.0
    missing = min(wanted, max(1.0, limit * _BURST_SHARE)) - left
    return missing * _MINUTE_S / limit if missing > 1e-9 else 0.0
