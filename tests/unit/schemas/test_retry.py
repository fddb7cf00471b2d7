"""A retry policy sets the number of tries, the retried errors and the delays."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from pointsman_schemas.events import AttemptError
from pointsman_schemas.retry import FINAL_KINDS, RetryPolicy


def test_the_delay_grows_up_to_its_bound() -> None:
    assert [RetryPolicy().delay_after(attempt) for attempt in (1, 2, 3, 9, 10, 2_000)] == [1, 2, 4, 256, 300, 300]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"backoff": 301}, "backoff is 301 s, longer than max_backoff, 300 s: lower backoff or raise max_backoff"),
        ({"retry_on": ("refused", "timeout", "limit")}, "retry_on names limit, refused, which end a task: remove them"),
        ({"retry_on": ("a",), "no_retry_on": ("a",)}, "both retry_on and no_retry_on name a: name each kind once"),
        ({"attempts": 0}, "greater than or equal to 1"),
        ({"factor": 0.5}, "greater than or equal to 1"),
        ({"jitter": 1.5}, "less than or equal to 1"),
        ({"no_retry_on": ("",)}, "at least 1 character"),
    ],
)
def test_a_policy_that_contradicts_itself_is_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        RetryPolicy(**given)


@pytest.mark.parametrize("name", ["attempts", "backoff", "factor", "max_backoff", "jitter"])
@pytest.mark.parametrize("value", [-1, True, "5", math.inf, math.nan, 1e308])
def test_number_that_no_retry_can_use_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValidationError):
        RetryPolicy.model_validate({name: value})


@pytest.mark.parametrize("kind", sorted(FINAL_KINDS))
def test_an_error_that_ends_a_task_cannot_be_retried(kind: str) -> None:
    with pytest.raises(ValidationError, match="which end a task"):
        RetryPolicy(retry_on=(kind,))


def test_a_bounded_policy_never_exceeds_its_bound() -> None:
    wanted = RetryPolicy(attempts=9, backoff=0.5, retry_on=("a", "b"), no_retry_on=("c",))
    bound = RetryPolicy(attempts=2, backoff=4, retry_on=("b", "c"), no_retry_on=("d",))

    bounded = wanted.within(bound)

    assert bounded == RetryPolicy(attempts=2, backoff=0.5, retry_on=("b",), no_retry_on=("c", "d"))
    assert RetryPolicy.model_validate(bounded.model_dump()) == bounded
    for kind in "abcde":
        for marked in (True, False):
            error = AttemptError(kind=kind, message="seen", retryable=marked)
            assert bounded.is_retried(error) <= min(wanted.is_retried(error), bound.is_retried(error))
