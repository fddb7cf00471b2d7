"""The checked-in OpenAPI document is current and valid, and each of its parts has a description."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from openapi_spec_validator import OpenAPIV31SpecValidator, validate

from pointsman.gateway.app import openapi_document
from pointsman.gateway.openapi import openapi_text
from pointsman.gateway.page import draw_page

FILE = Path(__file__).parents[3] / "docs" / "openapi.json"


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    paths = openapi_document()["paths"]
    return [(path, method, operation) for path, methods in paths.items() for method, operation in methods.items()]


def test_the_checked_in_document_is_current() -> None:
    assert FILE.read_text() == openapi_text(), "run `make schemas`"


def test_the_document_is_valid_openapi_3_1() -> None:
    validate(openapi_document(), cls=OpenAPIV31SpecValidator)


def test_each_operation_has_an_id_a_summary_a_description_and_one_tag() -> None:
    ids = [operation["operationId"] for _, _, operation in operations()]

    assert len(set(ids)) == len(ids)
    for path, method, operation in operations():
        assert operation["summary"], (path, method)
        assert operation["description"], (path, method)
        assert len(operation["tags"]) == 1


def test_each_parameter_field_and_schema_is_described() -> None:
    for path, method, operation in operations():
        for parameter in operation.get("parameters", ()):
            assert parameter.get("description"), (path, method, parameter["name"])
    for name, schema in openapi_document()["components"]["schemas"].items():
        assert schema.get("description") or "enum" in schema, name
        for field, content in schema.get("properties", {}).items():
            assert content.get("description"), (name, field)


def test_nothing_is_changed_by_get() -> None:
    assert {method for _, method, operation in operations() if "requestBody" in operation} == {"post"}


def test_each_schema_is_used() -> None:
    text = openapi_text()
    names = [name for name in openapi_document()["components"]["schemas"] if name != "WorkflowEvent"]

    assert [name for name in names if f'"#/components/schemas/{name}"' not in text] == []


def test_the_page_escapes_what_it_shows() -> None:
    document = openapi_document()
    document = {**document, "info": {**document["info"], "description": "<script>alert(1)</script>"}}

    assert "<script" not in draw_page(document)
