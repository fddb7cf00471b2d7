"""Token buckets enforce provider limits. No minute exceeds a rate, and a crash loses no tokens."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pointsman.core.budget.token_bucket import BucketState, ModelLimits, acquire, release

START = datetime(2030, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def taken(left: BucketState | float) -> BucketState:
    assert isinstance(left, BucketState), left
    return left


@pytest.mark.parametrize("rate", [6.0, 60.0, 500.0])
def test_no_minute_exceeds_the_limit_by_more_than_a_sixth(rate: float) -> None:
    limits, allowance, now, calls = ModelLimits(requests=rate), None, 0.0, list[float]()
    while now < 240:
        left = acquire(allowance, limits, at(now), f"c{len(calls)}", 1, at(now + 1))
        if isinstance(left, BucketState):
            allowance = left
            calls.append(now)
        else:
            now += max(left, 1e-3)

    busiest = max(sum(first <= call < first + 60 for call in calls) for first in calls)
    assert busiest <= rate * 7 / 6 + 1
    assert len(calls) >= rate * 4 - 1


def test_tokens_are_guessed_before_and_set_right_after() -> None:
    limits = ModelLimits(tokens=600)
    left = taken(acquire(None, limits, at(0), "a", 100, at(60)))
    assert acquire(left, limits, at(0), "b", 1, at(60)) == pytest.approx(0.1)

    spared = release(left, limits, at(0), "a", 60, None)
    overdrawn = release(left, limits, at(0), "a", -500, None)

    assert taken(acquire(spared, limits, at(0), "b", 60, at(60)))
    assert acquire(overdrawn, limits, at(0), "b", 50, at(60)) == pytest.approx(55.0)


def test_overdraft_of_n_minutes_is_made_up_in_n_minutes() -> None:
    limits = ModelLimits(tokens=600)
    left = taken(acquire(None, limits, at(0), "a", 100, at(60)))
    left = release(left, limits, at(0), "a", -5_000, None)

    assert acquire(left, limits, at(400), "b", 50, at(460)) == pytest.approx(105.0)
    assert taken(acquire(left, limits, at(505), "b", 50, at(560)))


def test_call_larger_than_the_bucket_waits_until_it_is_full() -> None:
    limits = ModelLimits(tokens=600)
    left = taken(acquire(None, limits, at(0), "a", 5000, at(60)))

    assert acquire(left, limits, at(0), "b", 5000, at(60)) == pytest.approx(500.0)


def test_concurrent_calls_are_bounded_and_dead_ones_expire() -> None:
    limits = ModelLimits(concurrency=2)
    left = taken(acquire(None, limits, at(0), "a", 1, at(60)))
    left = taken(acquire(left, limits, at(0), "b", 1, at(30)))
    assert not isinstance(acquire(left, limits, at(1), "c", 1, at(60)), BucketState)

    assert set(taken(acquire(release(left, limits, at(1), "a", 0, None), limits, at(1), "c", 1, at(60))).calls) == {
        "b",
        "c",
    }
    assert set(taken(acquire(left, limits, at(31), "c", 1, at(90))).calls) == {"a", "c"}


def test_provider_pause_holds_all_callers_and_the_longer_counts() -> None:
    limits = ModelLimits(requests=600)
    left = release(None, limits, at(0), "a", 0, 20.0)
    left = release(left, limits, at(1), "b", 0, 5.0)

    assert acquire(left, limits, at(2), "c", 1, at(60)) == pytest.approx(18.0)
    assert taken(acquire(left, limits, at(20), "c", 1, at(60))).closed_until is None


def test_clock_an_hour_off_blocks_no_call() -> None:
    limits = ModelLimits(requests=60)
    left = None
    for number in range(10):
        left = taken(acquire(left, limits, at(3600), f"fast{number}", 1, at(3660)))

    assert acquire(left, limits, at(0), "a", 1, at(60)) == pytest.approx(1.0)
    assert release(left, limits, at(0), "x", 0, None).at == at(0)
