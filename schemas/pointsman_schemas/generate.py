"""Generate the contract for other languages: a JSON Schema for every wire model, and one AsyncAPI document.

`python -m pointsman_schemas.generate schemas/json` writes the files. Their whole content is generated from the models,
so change the models and never the files.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import AnySchema, TaggedUnionSchema

from pointsman_schemas.asyncapi import EVENTS, document
from pointsman_schemas.card import AgentCard
from pointsman_schemas.events import Event
from pointsman_schemas.plan import Plan, Selection
from pointsman_schemas.role_io import (
    ClassifierInput,
    ConflictRuling,
    JudgeInput,
    PlannerInput,
    Refinement,
    RefinerInput,
    SummarizerInput,
    Synthesis,
    SynthesizerInput,
    ThreadSummary,
)
from pointsman_schemas.strategies import FixedInput

__all__ = ["MODELS", "files", "json_schema", "main", "to_yaml"]

MODELS: Mapping[str, type[BaseModel]] = {
    **{event.short_name(): event for event in EVENTS},
    "agent-card": AgentCard,
    "plan": Plan,
    "selection": Selection,
    "planner-input": PlannerInput,
    "classifier-input": ClassifierInput,
    "synthesizer-input": SynthesizerInput,
    "synthesis": Synthesis,
    "refiner-input": RefinerInput,
    "refinement": Refinement,
    "judge-input": JudgeInput,
    "ruling": ConflictRuling,
    "summarizer-input": SummarizerInput,
    "thread-summary": ThreadSummary,
    "fixed-input": FixedInput,
}
"""The models with a schema file, by the name of the file."""

_JSON_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
_PLAIN_YAML_KEY = re.compile(r"[A-Za-z$][A-Za-z0-9_$-]*")
_YAML_RESERVED_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})  # in YAML 1.1


def files() -> dict[str, str]:
    """Generate all files.

    Returns:
        The text of each file, by its name.
    """
    schemas = {f"{name}.schema.json": json_schema(name) for name in MODELS}
    texts = {name: json.dumps(schema, indent=2, ensure_ascii=False) + "\n" for name, schema in schemas.items()}
    header = "# Generated from the models: run `make schemas`.\n"
    return {**texts, "asyncapi.yaml": header + "\n".join(to_yaml(document(_payloads()))) + "\n"}


def _payloads() -> dict[str, str]:
    """Return the file of each model that is not an event, by the name of the model."""
    return {model.__name__: f"./{name}.schema.json" for name, model in MODELS.items() if not issubclass(model, Event)}


def json_schema(name: str) -> dict[str, Any]:
    """Generate the JSON Schema (2020-12) of a model.

    Args:
        name: A key of `MODELS`.

    Returns:
        The schema.
    """
    model = MODELS[name]
    schema = model.model_json_schema(schema_generator=_PlainJsonSchema, mode="validation")
    head = {
        "$schema": GenerateJsonSchema.schema_dialect,
        "$id": f"urn:pointsman:schema:{name}:v1",
        "title": model.__name__,
    }
    if issubclass(model, Event):
        head["$comment"] = f"The CloudEvents type is {model.event_type}"
    definitions = schema.get("$defs", {})
    _add_titles(schema, model.__name__)
    for each, definition in definitions.items():
        _add_titles(definition, each)
        definition.setdefault("title", each)
    return {**head, **schema}


def _add_titles(schema: dict[str, Any], name: str) -> None:
    """Give a title to each unnamed schema within a named schema, because code generators use titles as type names."""
    for field, inner in schema.get("properties", {}).items():
        _add_title(inner, name + "".join(part[:1].upper() + part[1:] for part in field.split("_")))
    for place, inner in enumerate(schema.get("anyOf", schema.get("oneOf", ()))):
        _add_title(inner, f"{name}{place + 1}")


def _add_title(schema: Any, name: str) -> None:
    if not isinstance(schema, dict):
        return
    if "$ref" in schema and len(schema) > 1:  # if a reference has other keywords, generators copy the definition
        schema["allOf"] = [{"$ref": schema.pop("$ref")}]
    if schema.keys() & {"enum", "allOf", "anyOf", "oneOf"} or schema.get("type") == "object":
        schema.setdefault("title", name)
    for keyword, suffix in (("items", "Item"), ("additionalProperties", "Value")):
        _add_title(schema.get(keyword), name + suffix)
    for keyword in ("anyOf", "oneOf", "prefixItems"):
        for place, inner in enumerate(schema.get(keyword, ())):
            _add_title(inner, f"{name}{_suffix(inner, place)}")
    _add_titles({key: schema[key] for key in ("properties",) if key in schema}, name)


def _suffix(schema: Any, place: int) -> str:
    kind = schema.get("type") if isinstance(schema, dict) else None
    return {"object": "Object", "array": "List"}.get(kind, str(place + 1)) if isinstance(kind, str) else str(place + 1)


def to_yaml(value: Any, indent: str = "") -> Iterator[str]:
    """Write JSON data as block YAML. Scalars are written as JSON, because every YAML reader can parse JSON scalars.

    Args:
        value: A mapping or a list.
        indent: The indentation of the lines.

    Yields:
        The lines.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            plain = _PLAIN_YAML_KEY.fullmatch(key) and key.lower() not in _YAML_RESERVED_WORDS
            name = key if plain else json.dumps(key, ensure_ascii=False)
            if _is_block(item):
                yield f"{indent}{name}:"
                yield from to_yaml(item, indent + "  ")
            else:
                yield f"{indent}{name}: {json.dumps(item, ensure_ascii=False)}"
    else:
        for item in value:
            if _is_block(item):
                first, *rest = to_yaml(item, indent + "  ")
                yield f"{indent}- {first[len(indent) + 2 :]}"
                yield from rest
            else:
                yield f"{indent}- {json.dumps(item, ensure_ascii=False)}"


def main(arguments: Sequence[str]) -> int:
    """Write all files to a folder. Remove schema files whose model does not exist any more.

    Args:
        arguments: The folder.

    Returns:
        The exit code: 2 for wrong usage.
    """
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m pointsman_schemas.generate FOLDER\n")
        return 2
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    written = files()
    for stale in {path.name for path in folder.glob("*.schema.json")} - written.keys():
        (folder / stale).unlink()
    for name, text in written.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    sys.stdout.write(f"{len(written)} files written to {folder}\n")
    return 0


class _PlainJsonSchema(GenerateJsonSchema):
    """Generator that omits titles equal to a field's name, and OpenAPI's `discriminator`, which AsyncAPI redefines."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def any_schema(self, schema: AnySchema) -> JsonSchemaValue:
        """Return a schema with all JSON types, because code generators treat a schema without a type as an object."""
        return {"type": list(_JSON_TYPES)}

    def tagged_union_schema(self, schema: TaggedUnionSchema) -> JsonSchemaValue:
        return {key: value for key, value in super().tagged_union_schema(schema).items() if key != "discriminator"}


def _is_block(value: Any) -> bool:
    return bool(value) and isinstance(value, Mapping | list | tuple)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
