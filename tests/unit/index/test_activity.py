"""The columns above the list cover equal periods up to now. Each workflow is in one column."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.index.activity import Activity, activity_of


def test_each_workflow_is_in_the_column_of_its_start_and_part_of_its_end() -> None:
    begun = [(1001.0, "completed"), (1001.9, "failed"), (1002.0, "partial"), (1079.2, "running"), (1079.9, "cancelled")]

    course = activity_of(begun, since=None, now=1080.5)

    assert isinstance(course, Activity)
    assert (course.start, course.step, len(course.columns)) == (1000.0, 2, 41)
    assert {at: column for at, column in enumerate(course.columns) if any(column)} == {
        0: [1, 1, 0, 0],
        1: [0, 1, 0, 0],
        39: [0, 0, 1, 1],
    }


def test_one_workflow_has_nothing_to_compare() -> None:
    assert activity_of([(100.0, "completed")], since=None, now=200.0) is None


def test_requested_period_is_shown_whole() -> None:
    course = activity_of([(3500.0, "completed"), (3550.0, "completed")], since=0.0, now=3600.0)

    assert course is not None
    assert (course.start, course.step, len(course.columns)) == (0.0, 120, 31)


@given(
    st.lists(st.tuples(st.floats(0, 2e9), st.sampled_from(["completed", "failed", "running"])), min_size=2),
    st.floats(0, 2e9),
)
def test_no_workflow_is_lost_and_all_columns_fit(begun: list[tuple[float, str]], now: float) -> None:
    course = activity_of(begun, since=None, now=now)

    assert course is not None
    assert len(course.columns) <= 60
    assert sum(map(sum, course.columns)) == len(begun)


@pytest.mark.parametrize("now", [0.0, 99.0, 100.0])
def test_a_clock_that_is_behind_loses_none(now: float) -> None:
    course = activity_of([(100.0, "completed"), (101.0, "failed")], since=None, now=now)

    assert course is not None
    assert sum(map(sum, course.columns)) == 2
