"""A schema is sent in a form that every provider accepts. An answer of this form is read correctly."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, JsonValue, RootModel

from pointsman.authoring.context import Context
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.llm.json_schemas import WRAPPED, object_schema, tool_parameters, unwrapped, without_keywords
from pointsman.testing.models import ScriptedModel, text_reply


class Node(BaseModel):
    name: str
    children: list[Node] = []


class Cat(BaseModel):
    purrs: bool


class Dog(BaseModel):
    barks: bool


class Pets(RootModel[list[Cat]]):
    pass


class Pet(RootModel[Cat | Dog]):
    pass


class Ages(RootModel[dict[str, int]]):
    pass


class Wrapped(BaseModel):
    value: int


class Either(RootModel[Wrapped | Cat]):
    pass


CASES: list[tuple[type[BaseModel], Any, Any]] = [
    (Node, {"name": "a", "children": [{"name": "b", "children": []}]}, None),
    (Pets, [{"purrs": True}], {WRAPPED: [{"purrs": True}]}),
    (Pets, [], {WRAPPED: []}),
    (Pet, {"barks": False}, {WRAPPED: {"barks": False}}),
    (Ages, {"Ann": 7}, None),
    (Either, {"value": 7}, {WRAPPED: {"value": 7}}),
]


@pytest.mark.parametrize(("output", "answer", "wrapped"), CASES)
def test_the_root_of_a_schema_is_an_object_with_properties(output: type[BaseModel], answer: Any, wrapped: Any) -> None:
    schema = output.model_json_schema()

    sent = object_schema(schema)

    assert (sent["type"], "properties" in sent) == ("object", True)
    assert not {"$ref", "anyOf", "oneOf", "allOf"} & sent.keys()
    written = answer if wrapped is None else wrapped
    Draft202012Validator(sent).validate(written)
    assert unwrapped(schema, written) == answer
    assert object_schema(sent) == sent, "a second conversion must not change the schema"


@pytest.mark.parametrize(("output", "answer", "wrapped"), CASES)
@pytest.mark.parametrize("around", ["{}", "```json\n{}\n```", "Here it is: {}."])
async def test_an_agent_s_output_may_be_recursive_a_list_or_a_union(
    output: type[BaseModel], answer: Any, wrapped: Any, around: str
) -> None:
    written = output.model_validate(answer).model_dump_json()
    text = written if wrapped is None else f'{{"{WRAPPED}": {written}}}'
    model = ScriptedModel(text_reply(around.replace("{}", text)))
    agent = LLMAgent(name="a", description="d", instructions="i", model=model, output=output)
    context = Context.for_test("x")

    found = await agent.run(context.handoff, context)

    assert found == answer
    assert model.requests[0].output_schema == object_schema(output.model_json_schema())
    assert agent.card.output_schema == output.model_json_schema()


BARE: list[tuple[Any, Any]] = [
    (None, {"type": "object", "properties": {}}),
    ({}, {"type": "object", "properties": {}}),
    ({"type": "object"}, {"type": "object", "properties": {}}),
    ({"type": "object", "properties": None}, {"type": "object", "properties": {}}),
    ({"properties": {"a": {"type": "string"}}}, {"type": "object", "properties": {"a": {"type": "string"}}}),
    (
        {"type": "object", "properties": {"a": {"type": "array"}}},
        {"type": "object", "properties": {"a": {"type": "array", "items": {}}}},
    ),
    (
        {"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "properties": {"a": {}}, "required": ["a"]}}},
        {
            "type": "object",
            "properties": {"a": {}},
            "required": ["a"],
            "$defs": {"A": {"type": "object", "properties": {"a": {}}, "required": ["a"]}},
        },
    ),
    (
        {"anyOf": [{"properties": {"a": {"type": "string"}, "b": {}}, "required": ["a"]},
                   {"properties": {"a": {"type": "integer"}}, "required": ["a"]}]},
        {"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}, {"type": "integer"}]}, "b": {}},
         "required": ["a"]},
    ),
    (
        {"allOf": [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}, "required": ["b"]}]},
        {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a", "b"]},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "sent"), BARE)
def test_the_arguments_of_any_tool_are_an_object_with_properties(schema: Any, sent: Any) -> None:
    assert tool_parameters(schema) == sent


def test_a_schema_that_is_sound_is_sent_as_it_is() -> None:
    schema: dict[str, JsonValue] = {
        "type": "object", "properties": {"items": {"type": "array", "items": {"type": "string"}}},
        "required": ["items"], "additionalProperties": False, "$defs": {"x": {"type": "array", "prefixItems": [{}]}},
    }  # fmt: skip

    assert tool_parameters(schema) == schema


def test_a_keyword_is_taken_out_and_a_property_of_that_name_is_not() -> None:
    schema: dict[str, JsonValue] = {
        "type": "object", "title": "T",
        "properties": {"title": {"type": "string", "title": "Title", "const": "x"}, "pattern": {"pattern": "^a$"}},
        "$defs": {"format": {"anyOf": [{"format": "date"}, {"items": {"format": "uri"}}]}},
    }  # fmt: skip

    assert without_keywords(schema, ("title", "const", "pattern", "format")) == {
        "type": "object",
        "properties": {"title": {"type": "string", "enum": ["x"]}, "pattern": {}},
        "$defs": {"format": {"anyOf": [{}, {"items": {}}]}},
    }


JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.sampled_from(["object", "array", "#/$defs/A"])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["type", "properties", "anyOf", "allOf", "required", "$ref", "$defs", "A", "items", "const"]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=15,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(["type", "properties", "anyOf", "oneOf", "required", "$ref", "$defs"]), JSON))
def test_any_schema_of_a_foreign_tool_is_an_object_with_properties(schema: dict[str, Any]) -> None:
    sent = tool_parameters(schema)

    assert sent["type"] == "object"
    assert isinstance(sent["properties"], dict)
    assert tool_parameters(sent) == sent
    assert object_schema(schema)["type"] == "object"
    without_keywords(schema, ("const", "pattern"))
