"""Paths and conditions are evaluated. Invalid expressions are refused when a plan is defined."""

from __future__ import annotations

from typing import Any

import pytest

from pointsman_schemas.expressions import evaluate, parse_condition, parse_path, read_path

VALUES: dict[str, Any] = {
    "request": {"country": "NO", "amount": 120, "urgent": True, "note": ""},
    "match": {"unpaid": [{"total": 3}, {"total": 4.5}], "rate": 0.25, "state": None},
    "month-end": "done",
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("match.unpaid", True),
        ("request.note", False),
        ("match.state", False),
        ("match.absent.further", False),
        ("request.amount > 100", True),
        ("request.amount >= 120 and request.amount <= 120", True),
        ("request.amount < 120", False),
        ("match.rate == 0.25", True),
        ("match.unpaid.1.total > match.unpaid.0.total", True),
        ("match.unpaid.2.total == null", True),
        ('request.country == "NO"', True),
        ("request.country == 'NO'", True),
        ("request.country in ['SE', 'NO']", True),
        ("request.country not in ['SE', 'NO']", False),
        ("'total' in match.unpaid.0", True),
        ("'on' in month-end", True),
        ("month-end == 'done'", True),
        ("request.urgent == true", True),
        ("request.urgent == 1", False),
        ("request.country > 3", False),
        ("not request.note and not match.state", True),
        ("request.note or request.amount > 100 and match.rate > 1", False),
        ("(request.note or request.amount > 100) and match.rate < 1", True),
        ("not (match.rate > 1 or request.amount < -5)", True),
        ("'it\\'s' != \"it\\\"s\"", True),
    ],
)
def test_a_condition_holds_or_not(text: str, holds: bool) -> None:
    assert evaluate(parse_condition(text), lambda path: read_path(VALUES, path)) is holds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "ends where a path, a number"),
        ("a.b >", "ends where a path"),
        ("a.b > > 1", "has '>' where a path"),
        ("a.b = 1", "cannot be read at '= 1'"),
        ("a.b + 1", r"cannot be read at '\+ 1'"),
        ("f(1)", r"has '\(' where the end, `and` or `or` is expected"),
        ("__import__('os')", r"has '\(' where the end"),
        ("(a.b", r"ends where '\)' is expected"),
        ("a in [1, [2]]", "a list without lists in it"),
        ("a in [1 2]", "has '2' where ',' is expected"),
        ("1.2.3 > 1", "cannot be read"),
        ("'\\x'", "has an unknown escape"),
        ("(" * 21 + "a" + ")" * 21, "nested deeper than 20"),
        ("a or " * 300 + "a", "has 1501 characters; at most 1000"),
    ],
)
def test_another_text_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_condition(text)


@pytest.mark.parametrize("text", ["", "a b", "a..b", ".a", "1.a", "a[0]", "a" * 1001, "null", "a.b.", "a.__init__()"])
def test_another_path_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a path|has 1001 characters; at most 1000"):
        parse_path(text)


def test_a_condition_names_the_paths_that_it_reads_once_and_in_order() -> None:
    parsed = parse_condition("b.x > a.y and not (b.x == 1 or c-d.0 in [1])")

    assert parsed.paths == (("b", "x"), ("a", "y"), ("c-d", "0"))
