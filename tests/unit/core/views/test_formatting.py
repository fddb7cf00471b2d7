"""Requests are formatted for a list that people read."""

from __future__ import annotations

import pytest
from pydantic import JsonValue

from pointsman.core.views.formatting import request_text


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ("mend it", "mend it"),
        ({"question": "why?"}, "why?"),
        ({"intent": "find the charges", "request": "I was charged twice"}, "find the charges"),
        ({"a": 1, "b": "c"}, '{"a":1,"b":"c"}'),
        ({"intent": 7, "b": "c"}, '{"intent":7,"b":"c"}'),
        ({"text": ""}, '{"text":""}'),
        ([1], "[1]"),
        (None, "null"),
        ("", "(the request could not be read)"),
    ],
)
def test_request_is_shown_by_its_text_if_it_has_one(request_: JsonValue, text: str) -> None:
    assert request_text(request_) == text
