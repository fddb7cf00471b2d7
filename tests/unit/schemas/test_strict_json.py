"""An accepted value of strict JSON can be written and read back. Other values are refused quickly, with their path."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, JsonValue
from support.mutations import at_most

from pointsman_schemas.errors import NotJsonError, UndecodableEventError
from pointsman_schemas.events import Event, Request, Result
from pointsman_schemas.strict_json import MAX_DEPTH, as_json_value, compact_json, dump, parse, parse_json


class Box(BaseModel):
    value: JsonValue = None


class Priced(BaseModel):
    price: float
    tags: set[str] = set()
    label: str = Field(default="", serialization_alias="Label")
    anything: Any = None


@dataclass
class Point:
    x: float
    at: datetime | None = None


class Colour(Enum):
    RED = "red"


def nested(depth: int, leaf: Any = 1) -> Any:
    for _ in range(depth):
        leaf = [leaf]
    return leaf


def own_tail(width: int) -> list[Any]:
    value: list[Any] = []
    value.extend([value] * width)
    return value


def own_field() -> Point:
    point = Point(1.0)
    point.at = point  # type: ignore[assignment]  # what a careless tool might do
    return point


NOT_JSON = {
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "minus Infinity": float("-inf"),
    "an integer of more than 4,300 digits": 10**4300,
    "bytes": b"raw",
    "two keys of one text": {1: 1, "1": 2},
    "an iterator": iter([1]),
    "a class": Box,
    "an instance": object(),
    "an exception": ValueError("secret"),
    "a function": compact_json,
    "a decimal that is not a number": Decimal("NaN"),
    "a model with an invalid field": Priced(price=1).model_copy(update={"price": "free"}),
    "a model without a field": Priced.model_construct(),  # type: ignore[call-arg]
    "200 levels": nested(200),
    "10,000 levels": nested(10_000),
    "a lone surrogate": "\ud800",
    "a lone surrogate as key": {"\ud800": 1},
    "key None": {None: 1},
    "a tuple as key": {(1, 2): 1},
    "a time without a zone": datetime(2026, 1, 1),
    "a list inside itself": own_tail(1),
    "a list twice inside itself": own_tail(2),
    "a dataclass inside itself": own_field(),
    "NaN in a model": Priced(price=float("nan")),
    "NaN in a model's JSON field": Box(value=float("nan")),
    "an object in a model": Priced(price=1, anything=object()),
    "a lone surrogate in a model": Priced(price=1, anything="\ud800"),
    "NaN in a dataclass": Point(float("nan")),
}


@pytest.mark.parametrize("value", NOT_JSON.values(), ids=NOT_JSON)
def test_non_json_value_is_refused_by_path_without_its_content(value: Any) -> None:
    with at_most(0.2), pytest.raises(NotJsonError) as refused:
        as_json_value({"answer": [value]})

    assert "$.answer[0]" in str(refused.value)
    assert "secret" not in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2**63, 2**63),
        (2**200, 2**200),
        (-(2**200), -(2**200)),
        (nested(50), nested(50)),
        (nested(MAX_DEPTH), nested(MAX_DEPTH)),
        ((1, 2), [1, 2]),
        (Colour.RED, "red"),
        (date(2026, 1, 2), "2026-01-02"),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00+00:00"),
        (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (Point(1.5), {"x": 1.5, "at": None}),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({2, 1}), [1, 2]),
        (deque([1]), [1]),
        (Decimal("1.50"), "1.50"),
        (timedelta(minutes=1), "PT1M"),
        (time(1, 2), "01:02:00"),
        (Path("a/b"), "a/b"),
        (IPv4Address("10.0.0.1"), "10.0.0.1"),
        ({1: 2, Colour.RED: 3, date(2026, 1, 2): 4}, {"1": 2, "red": 3, "2026-01-02": 4}),
        (Priced(price=1, tags={"a"}, label="L"), {"price": 1.0, "tags": ["a"], "Label": "L", "anything": None}),
        ("𝄞 and é", "𝄞 and é"),
        (True, True),
    ],
    ids=lambda value: str(value)[:30],
)
def test_json_value_round_trips_unchanged(value: Any, expected: JsonValue) -> None:
    carried = as_json_value(value)

    assert carried == expected
    assert parse_json(compact_json(carried)) == expected


def test_one_list_in_two_places_is_no_cycle() -> None:
    shared = [1]

    assert as_json_value([shared, shared]) == [[1], [1]]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_json_data_survives_a_round_trip_with_every_digit(value: JsonValue) -> None:
    assert as_json_value(value) == value
    assert parse_json(compact_json(value)) == value
    assert parse(Box, dump(Box(value=value))).value == value


NOT_STRICT = {
    "nothing": b"",
    "cut off": b'{"value": [1, 2',
    "two values": b"{} {}",
    "NaN": b'{"value": NaN}',
    "Infinity": b'{"value": [-Infinity]}',
    "1e400": b'{"value": 1e400}',
    "1E+400": b'{"value": -1.0E+400}',
    "1e0400": b'{"value": 1e0400}',
    "overflow by digits": b'{"value": ' + b"9" * 400 + b".5}",
    "overflow by digits and a short exponent": b'{"value": ' + b"9" * 250 + b"e99}",
    "too many digits": b'{"value": ' + b"9" * 5000 + b"}",
    "lone surrogate": b'{"value": "\\ud800"}',
    "not UTF-8": b'{"value": "\xff"}',
    "10,000 levels": b'{"value": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "100,000 open brackets": b"[" * 100_000,
    "single quotes": b"{'value': 1}",
    "a byte order mark": b'\xef\xbb\xbf{"value": 1}',
    "a key twice": b'{"value": 1, "value": 1}',
    "a key twice, deep within": b'{"value": [{"a": 1, "b": {"c": 1, "d": 2, "c": 3}}]}',
    "a key twice, once escaped": b'{"value": 1, "\\u0076alue": 2}',
    "a long key twice": b'{"value": {"' + b"k" * 5000 + b'": 1, "' + b"k" * 5000 + b'": 2}}',
    "a key twice that the model does not know": b'{"value": 1, "x": 1, "x": 2}',
    "pickle": b"\x80\x04K\x01.",
}


@pytest.mark.parametrize("body", NOT_STRICT.values(), ids=NOT_STRICT)
def test_a_body_that_is_not_strict_json_is_refused(body: bytes) -> None:
    with at_most(0.2), pytest.raises(UndecodableEventError) as refused:
        parse(Box, body)
    with at_most(0.2), pytest.raises(UndecodableEventError):
        parse_json(body)

    assert len(str(refused.value)) < 600


def test_the_same_key_in_two_objects_is_no_key_twice() -> None:
    body = b'{"value": [{"a": 1}, {"a": 2}, "{\\"a\\": 1, \\"a\\": 2}"]}'

    assert parse(Box, body).value == [{"a": 1}, {"a": 2}, '{"a": 1, "a": 2}']


def test_numbers_and_words_that_only_look_like_overflow_are_taken() -> None:
    body = b'{"value": ["NaN", "Infinity", "1e400", 1e300, 1e-400, ' + str(10**400).encode() + b"]}"

    assert parse(Box, body).value == ["NaN", "Infinity", "1e400", 1e300, 0.0, 10**400]


@pytest.mark.parametrize(("depth", "taken"), [(50, True), (MAX_DEPTH, True), (150, False), (198, False)])
def test_data_that_others_must_wrap_may_not_use_up_the_parsers_depth(depth: int, taken: bool) -> None:
    body = b'{"input": {"x": ' + b"[" * depth + b"]" * depth + b"}}"

    if taken:
        assert parse(Request, body)
    else:
        with pytest.raises(UndecodableEventError, match="deeper than"):
            parse(Request, body)


def test_wide_data_is_not_deep() -> None:
    wide = compact_json({"input": {"rows": [[number] for number in range(10_000)]}})

    with at_most(0.2):
        assert parse(Request, wide)


@pytest.mark.parametrize("field", [{"output": float("nan")}, {"output": {"a": [float("inf")]}}])
def test_value_that_would_become_null_is_refused(field: dict[str, Any]) -> None:
    made = {
        "workflow_id": "w",
        "task_id": "t",
        "attempt": 1,
        "agent": "a",
        "status": "succeeded",
        "started_at": datetime.now(UTC),
        "ended_at": datetime.now(UTC),
    }

    with pytest.raises(ValueError, match="finite"):
        Result.model_validate({**made, **field})


def test_a_refusal_names_at_most_three_problems_and_no_content() -> None:
    class Wide(Event):
        a: int
        b: int
        c: int
        d: int

    with pytest.raises(UndecodableEventError, match=r"a: .*b: .*c: .*and 1 more") as refused:
        parse(Wide, json.dumps(dict.fromkeys("abcd", "secret")).encode())

    assert "secret" not in str(refused.value)


@pytest.mark.timeout(20)  # a report of all members' errors took two minutes and two gigabytes
@pytest.mark.parametrize("member", [{}, 1])
def test_body_full_of_invalid_members_is_refused_soon(member: object) -> None:
    body = json.dumps({"input": "x", "files": [member] * 200_000}).encode()

    with pytest.raises(UndecodableEventError, match=r"files\.0"):
        parse(Request, body)
