"""`find_json` finds strict JSON in prose in bounded time."""

from __future__ import annotations

import pytest
from pydantic import JsonValue

from pointsman.llm.json_extraction import find_json


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": 1}', ({"a": 1},)),
        ("[1, 2]", ([1, 2],)),
        ('see {"a": {"b": 1}} and {"c": 2}', ({"a": {"b": 1}}, {"c": 2})),
        ('{"a": 1e400}', ()),
        ("{{{{", ()),
        ('{"a": [{"b": 1},]}', ()),
        ('{"a": "}", "b": [{"c": 1},]}', ()),
        ('{"a": [{"b": 1}', ()),
        ('use {braces} so: {"a": "}"}', ({"a": "}"},)),
        ("", ()),
        ("\ufeff[1, 2]", ([1, 2],)),
        ('{"a": "\ud800"}', ({"a": "?"},)),
        ('\ufeff {"a": 1}', ({"a": 1},)),
    ],
)
def test_strict_json_alone_is_found(text: str, found: tuple[JsonValue, ...]) -> None:
    assert find_json(text) == found


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "text",
    ["{" * 100_000, '{"a":' * 50_000, '{"' + '\\"' * 50_000, '{"' + '\\"' * 50_000 + "\\", "{'" * 50_000],
    ids=["braces", "keys", "escaped quotes", "an escape at the end", "single quotes"],
)
def test_a_hostile_text_is_read_in_bounded_time(text: str) -> None:
    assert find_json(text) == ()
