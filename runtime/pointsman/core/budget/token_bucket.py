"""How much of a provider's limits is left, as arithmetic: a bucket of requests, one of tokens, and calls under way.

A bucket fills at its rate up to ten seconds' worth, so no minute ever sees more than a sixth above the limit. Times are
the callers' own; one that is off by more than a minute changes nothing but its own calls, and what was overdrawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

__all__ = ["BucketState", "ModelLimits", "acquire", "release"]

_MINUTE_S = 60.0
_MAX_RATE = 1e12  # a minute: more than any provider allows
_BURST_SHARE = 1 / 6  # of a minute's worth that may be used at once
_POLL_INTERVAL_S = 0.1  # seconds between two looks for the end of somebody else's call


class ModelLimits(BaseModel):
    """What a provider allows one key for one model: `requests` and `tokens` a minute, and calls at a time."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="forbid")

    requests: Annotated[float, Field(strict=True, gt=0, le=_MAX_RATE)] | None = None
    tokens: Annotated[float, Field(strict=True, gt=0, le=_MAX_RATE)] | None = None
    concurrency: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] | None = None


class BucketState(BaseModel):
    """What is left at `at`. None is a bucket nobody has used yet. `calls` are those under way, and until when each can
    be. Nothing is taken before `closed_until`: the provider said so."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    at: AwareDatetime
    requests: float | None = None
    tokens: float | None = None
    calls: Mapping[str, AwareDatetime] = {}
    closed_until: AwareDatetime | None = None


def acquire(
    allowance: BucketState | None, limits: ModelLimits, now: datetime, call: str, tokens: int, until: datetime
) -> BucketState | float:
    """What is left once `call`, over by `until`, has its share; or the seconds before it is worth asking again.

    `tokens` is a guess, which `release` sets right. A call that needs more than there can ever be waits for a full
    bucket. One that has its share already, as nobody could be sure of, gets no second one."""
    there = _refill(allowance or BucketState(at=now), limits, now)
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
    allowance: BucketState | None, limits: ModelLimits, now: datetime, call: str, tokens: int, closed: float | None
) -> BucketState:
    """What is left once `call` is over: it used `tokens` fewer than was guessed (or more, below 0), and the provider
    asked everybody to wait `closed` seconds, or nobody. A call gives back once: what is said again changes nothing."""
    there = _refill(allowance or BucketState(at=now), limits, now)
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
