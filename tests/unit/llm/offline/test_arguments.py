"""The offline model uses the schema of a tool to find the tool's arguments in texts and results."""

from __future__ import annotations

import pytest
from pydantic import JsonValue

from pointsman.llm.offline.arguments import Sources, extract_arguments


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string", "examples": ["INV-001"]}, "INV-734"),
        ({"anyOf": [{"type": "string", "pattern": "^INV-[0-9]+$"}, {"type": "null"}]}, "INV-734"),
        ({"$ref": "#/$defs/Colour"}, "red"),
        ({"type": "number"}, 12.5),
        ({"type": "string", "format": "uri"}, "https://example.org/a"),
        ({"type": "string", "pattern": "("}, "a red one, INV-734, for $12.50, see https://example.org/a"),
    ],
)
def test_value_is_found_by_its_schema(schema: dict[str, JsonValue], value: JsonValue) -> None:
    root: dict[str, JsonValue] = {
        "properties": {"it": schema},
        "required": ["it"],
        "$defs": {"Colour": {"enum": ["blue", "red"]}},
    }
    sources = Sources(["a red one, INV-734, for $12.50, see https://example.org/a"])

    assert extract_arguments(root, sources) == {"it": value}


def test_a_value_of_the_wrong_kind_is_not_taken_by_its_name() -> None:
    schema: dict[str, JsonValue] = {"properties": {"count": {"type": "integer"}}, "required": ["count"]}

    assert extract_arguments(schema, Sources(["no number"], [{"count": "many"}, {"count": True}])) is None
    assert extract_arguments(schema, Sources(["no number"], [{"deep": [{"Count": 3}]}])) == {"count": 3}


def test_list_is_gathered_from_all_sources_without_duplicates() -> None:
    schema: dict[str, JsonValue] = {"properties": {"urls": {"type": "array"}}, "required": ["urls"]}

    found = extract_arguments(
        schema, Sources([], [{"urls": ["a", {"b": 1}]}, {"urls": "c"}, {"deep": {"urls": [{"b": 1}, "d"]}}])
    )

    assert found == {"urls": ["a", {"b": 1}, "d"]}
