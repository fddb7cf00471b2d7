"""The text of a field is forwarded while its object is written, for every split into pieces."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.llm.json_text_field import JsonTextField

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def read(text: str, size: int, name: str = "answer") -> str:
    found: list[str] = []
    field = JsonTextField(name, found.append)
    for start in range(0, len(text), size):
        field.feed(text[start : start + size])
    return "".join(found)


@settings(max_examples=50)
@given(
    st.dictionaries(st.text(max_size=8), values, max_size=3),
    st.text(),
    st.integers(1, 7),
    st.booleans(),
    st.sampled_from(["", "```json\n"]),
)
def test_a_field_has_the_same_text_for_pieces_of_any_size(
    others: dict[str, Any], answer: str, size: int, ascii_only: bool, before: str
) -> None:
    others.pop("answer", None)
    whole = {**others, "answer": answer, "more": others}

    assert read(before + json.dumps(whole, ensure_ascii=ascii_only), size) == answer


@pytest.mark.parametrize(
    "text",
    [
        '{"answer": 7}',
        '{"answer": ["x"]}',
        '{"other": {"answer": "x"}}',
        '["answer", "x"]',
        "answer: x",
        '{"x": "answer"}',
    ],
)
def test_other_values_lead_to_no_text(text: str) -> None:
    assert read(text, 3) == ""


def test_text_comes_before_the_object_is_whole() -> None:
    assert read('{"gaps": [], "answer": "You were \\u20ac5 short', 4) == "You were €5 short"
