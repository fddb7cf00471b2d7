"""Times of schedules: fields, time zones, changes to daylight saving time, and refused definitions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from pointsman.core.schedules.times import MAX_COUNTED, check_times, fires_between, next_fire, upcoming
from pointsman.errors import ContractError
from pointsman_schemas.events import Request
from pointsman_schemas.schedules import ScheduleSpec

NOW = datetime(2026, 1, 5, 12, 0, 30, tzinfo=UTC)  # a Monday


def spec(cron: str, timezone: str = "UTC") -> ScheduleSpec:
    return ScheduleSpec(cron=cron, timezone=timezone, request=Request(input="go"))


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


@pytest.mark.parametrize(
    ("cron", "zone", "expected"),
    [
        ("0 9 * * 1-5", "Europe/Oslo", ["2026-01-06T08:00Z", "2026-01-07T08:00Z"]),
        ("0 9 * * MON", "UTC", ["2026-01-12T09:00Z", "2026-01-19T09:00Z"]),
        ("*/15 * * * *", "UTC", ["2026-01-05T12:15Z", "2026-01-05T12:30Z"]),
        ("0 0 L * *", "UTC", ["2026-01-31T00:00Z", "2026-02-28T00:00Z"]),
        ("30 18 * * *", "Asia/Kolkata", ["2026-01-05T13:00Z", "2026-01-06T13:00Z"]),
    ],
)
def test_times_are_those_of_the_expression_in_its_zone(cron: str, zone: str, expected: list[str]) -> None:
    assert upcoming(spec(cron, zone), NOW, 2) == [at(each) for each in expected]


def test_fire_that_the_clocks_skip_comes_right_after_the_gap() -> None:
    # In Oslo, 02:00 to 03:00 of 2026-03-29 do not exist.
    found = upcoming(spec("30 2 * * *", "Europe/Oslo"), at("2026-03-28T12:00Z"), 2)

    assert found == [at("2026-03-29T01:00Z"), at("2026-03-30T00:30Z")]


@pytest.mark.parametrize("after", ["2026-10-24T12:00Z", "2026-10-25T00:29Z"])
def test_fire_that_occurs_twice_comes_once(after: str) -> None:
    # In Oslo, 02:00 to 03:00 of 2026-10-25 occur twice.
    found = upcoming(spec("30 2 * * *", "Europe/Oslo"), at(after), 2)

    assert found == [at("2026-10-25T00:30Z"), at("2026-10-26T01:30Z")]


def test_second_half_of_the_repeated_hour_fires_no_more() -> None:
    assert next_fire(spec("30 2 * * *", "Europe/Oslo"), at("2026-10-25T01:10Z")) == at("2026-10-26T01:30Z")


def test_expression_of_every_half_hour_follows_elapsed_time() -> None:
    found = upcoming(spec("*/30 * * * *", "Europe/Oslo"), at("2026-10-25T00:10Z"), 5)

    assert [later - earlier for earlier, later in pairwise(found)] == [timedelta(minutes=30)] * 4


@pytest.mark.parametrize("cron", ["0 3 * * *", "*/7 * * * *", "30 2 * * *", "0 */2 * * *"])
@pytest.mark.parametrize("zone", ["Europe/Oslo", "America/St_Johns", "Australia/Lord_Howe"])
def test_times_only_grow(cron: str, zone: str) -> None:
    found = upcoming(spec(cron, zone), at("2026-03-27T00:00Z"), 1_000)

    assert all(earlier < later for earlier, later in pairwise(found))


def test_newest_fire_of_a_span_is_found_with_the_number_of_fires() -> None:
    newest, count = fires_between(spec("0 9 * * *"), at("2026-01-01T09:00Z"), at("2026-01-05T08:59Z"))

    assert (newest, count) == (at("2026-01-04T09:00Z"), 3)


def test_year_of_missed_minutes_is_counted_up_to_a_bound() -> None:
    newest, count = fires_between(spec("* * * * *"), NOW - timedelta(days=365), NOW)

    assert (newest, count) == (at("2026-01-05T12:00Z"), MAX_COUNTED)


def test_newest_of_many_fires_is_found_after_a_long_gap() -> None:
    # The schedule fires each January, so the newest fire is eleven months before the end.
    newest, count = fires_between(spec("* * * 1 *"), at("2020-01-01T00:00Z"), at("2026-12-01T00:00Z"))

    assert (newest, count) == (at("2026-01-31T23:59Z"), MAX_COUNTED)


@pytest.mark.parametrize(
    ("cron", "zone", "reason"),
    [
        ("0 9 * * * *", "UTC", "expected five fields"),
        ("every day at nine", "UTC", "expected five fields"),
        ("61 9 * * *", "UTC", "bad minute"),
        ("0 9 * * 1-9", "UTC", "bad day-of-week"),
        ("0 0 30 2 *", "UTC", "bad day-of-month"),
        ("0 9 * * *", "Europe/Atlantis", "expected an IANA name"),
        ("0 9 * * *", "../etc/passwd", "expected an IANA name"),
        ("0 9 * * *", "Europe", "expected an IANA name"),
    ],
)
def test_definition_without_times_is_refused_with_the_reason(cron: str, zone: str, reason: str) -> None:
    with pytest.raises(ContractError, match=reason):
        check_times(spec(cron, zone), NOW)


def test_time_that_has_passed_is_refused() -> None:
    with pytest.raises(ContractError, match="which has passed"):
        check_times(ScheduleSpec(at=NOW - timedelta(hours=1), request=Request(input="go")), NOW)
