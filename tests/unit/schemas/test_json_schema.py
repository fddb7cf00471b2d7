"""The check of a JSON Schema agrees with the meta-schema of draft 2020-12."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from jsonschema_specifications import REGISTRY as SPECIFICATIONS  # type: ignore[import-untyped]
from pydantic import ValidationError

from pointsman_schemas.card import AgentCard
from pointsman_schemas.events import Handoff, Request
from pointsman_schemas.json_schema import json_schema_problem

META = Draft202012Validator.META_SCHEMA
PARTS = ("core", "applicator", "unevaluated", "validation", "meta-data", "format-annotation", "content")
VOCABULARIES = [SPECIFICATIONS.contents(f"https://json-schema.org/draft/2020-12/meta/{part}") for part in PARTS]
KEYWORDS = sorted({keyword for each in (META, *VOCABULARIES) for keyword in each["properties"]})
LEAVES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2.0, 0.5, "", "a", "object", "strin", "#x", [], ["a"], ["a", "a"], ["null"], {}, [{}],
    {"a": {}}, {"a": 1}, {"a": True}, {"a": ["b"]}, {"a": {"type": 1}}, [{"type": "null"}, 1],
)  # fmt: skip
values = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: (
        st.dictionaries(st.sampled_from((*KEYWORDS, "other")), inner, max_size=4) | st.lists(inner, max_size=3)
    ),
    max_leaves=12,
)


def is_schema(value: Any) -> bool:
    try:
        Draft202012Validator.check_schema(value)
    except SchemaError:
        return False
    return True


def test_check_agrees_with_the_meta_schema_on_each_keyword() -> None:
    schemas = [{keyword: leaf} for keyword in KEYWORDS for leaf in LEAVES]

    assert [each for each in schemas if (json_schema_problem(each) == "") is not is_schema(each)] == []


@given(value=values)
@settings(max_examples=200, derandomize=True, database=None)
def test_check_agrees_with_the_meta_schema_on_nested_schemas(value: Any) -> None:
    assert (json_schema_problem(value) == "") is is_schema(value), value


@pytest.mark.parametrize("model", [Request, Handoff, AgentCard])
def test_schemas_that_pydantic_writes_have_no_problem(model: Any) -> None:
    assert json_schema_problem(model.model_json_schema()) == ""


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "strin"}, "type is 'strin'; expected one of array, boolean"),
        ({"properties": {"age": {"type": "int"}}}, "properties.age.type is 'int'; expected one of"),
        ({"properties": []}, "properties is []; expected an object"),
        ({"anyOf": [{"type": "string"}, 7]}, "anyOf[1] is 7; expected a JSON Schema"),
        ({"required": "name"}, "required is 'name'; expected a list of different names"),
        ({"minLength": -1}, "minLength is -1; expected a whole number, 0 or more"),
        ({"enum": "x" * 200}, "..."),
    ],
)
def test_problem_names_the_path_and_the_expected_form(schema: dict[str, Any], problem: str) -> None:
    assert problem in json_schema_problem(schema)
    assert len(json_schema_problem(schema)) < 200


@pytest.mark.parametrize("field", ["input_schema", "output_schema"])
def test_card_with_a_field_that_is_no_schema_is_refused(field: str) -> None:
    body = json.dumps({"name": "writer", "description": "writes", field: {"type": "strin"}})

    with pytest.raises(ValidationError, match=r"not a JSON Schema: type is 'strin'"):
        AgentCard.model_validate_json(body)
