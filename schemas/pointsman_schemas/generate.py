"""Generate the contract for other languages: a JSON Schema for every wire model, and one AsyncAPI document.

`python -m pointsman_schemas.generate schemas/json` writes the files. All of their content comes from the models.
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
from pydantic_core.core_schema import TaggedUnionSchema

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
    Synthesis,
    SynthesizerInput,
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
    "fixed-input": FixedInput,
}
"""The models with a schema file, by the name of the file."""

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
    return {**texts, "asyncapi.yaml": header + "\n".join(to_yaml(document())) + "\n"}


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
    return {**head, **schema}


def to_yaml(value: Any, indent: str = "") -> Iterator[str]:
    """Write JSON data as block YAML. Scalars are written as JSON, which every YAML reader can parse.

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
    """Write all files to a folder, and remove schema files without a model.

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
    """Omits titles that repeat a field's name, and OpenAPI's `discriminator`, which AsyncAPI defines differently."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def tagged_union_schema(self, schema: TaggedUnionSchema) -> JsonSchemaValue:
        return {key: value for key, value in super().tagged_union_schema(schema).items() if key != "discriminator"}


def _is_block(value: Any) -> bool:
    return bool(value) and isinstance(value, Mapping | list | tuple)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
