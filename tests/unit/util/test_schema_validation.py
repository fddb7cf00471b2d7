"""Validation with a foreign schema ends quickly for every schema and value."""

from __future__ import annotations

from typing import Any

import pytest

from pointsman.util.schema_validation import value_problem

LEVELS = 40
BOMB: dict[str, Any] = {
    "$defs": {
        "a0": {"type": "string"},
        **{f"a{level}": {"allOf": [{"$ref": f"#/$defs/a{level - 1}"}] * 2} for level in range(1, LEVELS)},
    },
    "$ref": f"#/$defs/a{LEVELS - 1}",
}
MANY = [{"a": number} for number in range(20_000)]
BACKTRACKING = "a" * 60 + "!"
COSTLY: dict[str, tuple[dict[str, Any], Any]] = {
    "references that double": (BOMB, "x"),
    "unique objects": ({"uniqueItems": True}, MANY),
    "pattern": ({"pattern": "^(a+)+$"}, BACKTRACKING),
    "pattern of names": ({"patternProperties": {"^(a+)+$": {}}, "additionalProperties": False}, {BACKTRACKING: 1}),
    "pattern of unevaluated names": (
        {"patternProperties": {"^(a+)+$": {}}, "unevaluatedProperties": False}, {BACKTRACKING: 1},
    ),
    "many unevaluated names": ({"unevaluatedProperties": False}, {f"a{number}": 1 for number in range(50_000)}),
    "long enumeration": ({"items": {"enum": [f"a{number}" for number in range(5_000)]}}, ["x"] * 20_000),
    "many properties": ({"items": {"properties": {f"a{number}": {} for number in range(5_000)}}}, [{}] * 20_000),
    "required names": ({"required": MANY[:4_000]}, {}),
}  # fmt: skip


@pytest.mark.timeout(30)  # with the fault, each pattern took between minutes and years
@pytest.mark.parametrize(("schema", "value"), COSTLY.values(), ids=COSTLY)
def test_no_schema_and_no_value_hold_the_process(
    schema: dict[str, Any], value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pointsman.util.schema_validation.MAX_STEPS", 20_000)

    assert len(value_problem(schema, value)) < 400


@pytest.mark.parametrize(
    ("schema", "value", "valid"),
    [
        ({"uniqueItems": True}, [1, 1.0], False),
        ({"uniqueItems": True}, [1, True, "1", None, [1], [True], {"a": 1}, {"a": True}], True),
        ({"uniqueItems": True}, [{"a": 1, "b": [2]}, {"b": [2.0], "a": 1}], False),
        ({"pattern": "b+"}, "abc", True),
        ({"pattern": "^b+$"}, "abc", False),
        ({"pattern": r"^\d{3}\/\w$"}, "123/x", True),
        ({"pattern": "^(?=a)b"}, "abc", True),  # not checked, because the engine has no look-around
        ({"pattern": "("}, "abc", True),
        ({"patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": False}, {"x-a": 1}, True),
        ({"patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": False}, {"x-a": "1"}, False),
        ({"patternProperties": {"^x-": {}}, "additionalProperties": False}, {"x-a": 1, "b": 1}, False),
        ({"patternProperties": {"^x-": {}}, "additionalProperties": {"type": "string"}}, {"x-a": 1, "b": 1}, False),
        ({"properties": {"a": {}}, "additionalProperties": False}, {"a": 1}, True),
        ({"properties": {"a": {}}, "unevaluatedProperties": False}, {"a": 1, "b": 1}, False),
        ({"items": {"type": "number", "minimum": 0}}, list(range(1_000)), True),
        ({"$ref": "https://example.org/schema"}, 1, True),
    ],
)
def test_values_are_checked_as_before(schema: dict[str, Any], value: Any, *, valid: bool) -> None:
    assert (value_problem(schema, value) == "") is valid
