"""Generate JSON Schemas for the answers of planners and other roles. A schema allows only the choices of one request.

If a model server enforces a schema token by token, the answer can name only agents, skills and task ids that exist, and
the length of each text is limited. Other servers do not enforce schemas. So the models of `plan` and `role_io` validate
each answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from pydantic import BaseModel

from pointsman_schemas.events import Conflict
from pointsman_schemas.ids import TOKEN_PATTERN
from pointsman_schemas.plan import Plan, PlannedTask, PlanQuestion, SelectedAgent, Selection
from pointsman_schemas.role_io import (
    AvailableAgent,
    ClassifierInput,
    ConflictRuling,
    JudgeInput,
    PlannerInput,
    Refinement,
    RefinerInput,
    Review,
    ReviewInput,
    Synthesis,
    SynthesizerInput,
)
from pointsman_schemas.strict_json import JsonValue

__all__ = [
    "closed_schema",
    "plan_schema",
    "refinement_schema",
    "review_schema",
    "ruling_schema",
    "selection_schema",
    "synthesis_schema",
]

_MAX_TASKS: Final = 50  # number of tasks in a plan; the answer of a planner has no room for more
_MAX_SELECTED: Final = 8  # number of agents in a selection
_MAX_DEPENDENCIES: Final = 20  # number of dependencies of a task
_MAX_ENUM: Final = 250  # number of values in an enum; for a larger enum, OpenAI limits the total length of the values
_MAX_LISTED_IDS: Final = 100  # number of task ids in a pattern
_MAX_INPUT_SCHEMA_CHARS: Final = 1_500  # size of an agent's input schema that becomes a part of a plan's schema
_MAX_INPUT_SCHEMAS: Final = 20  # number of agents whose input schemas become a part of a plan's schema
_MAX_INPUT_SCHEMAS_CHARS: Final = 6_000  # size of all these schemas together; the prompt contains them, too
_MAX_INPUT_NAMES: Final = 100  # number of fields in an input without a schema
_MAX_INPUT_NAME_CHARS: Final = 64
_MAX_QUESTIONS: Final = 5  # number of questions in a plan; a person must answer all of them before the planner plans
_MAX_CHOICES: Final = 20  # number of choices of a question
_CHOICE_CHARS: Final = 200
_SENTENCE_CHARS: Final = 500
_PARAGRAPH_CHARS: Final = 1_000
_ANSWER_CHARS: Final = 20_000
_MIN_INTENT_CHARS: Final = 1  # an empty intent is refused
_CONFIDENCE_STEPS: Final = 20
_TASK_ID: Final = re.compile(r"t([1-9][0-9]{0,8})")

_Schema = dict[str, JsonValue]


def closed_schema(output: object, given: object) -> dict[str, JsonValue] | None:
    """Return the schema of a role's answer to one input.

    Args:
        output: The model of the answer, such as `Plan`.
        given: The input, such as a `PlannerInput`.

    Returns:
        A JSON Schema; None if `output` and `given` do not belong to the same role.
    """
    found = next((write for model, kind, write in _ROLES if output is model and isinstance(given, kind)), None)
    return found(given) if found is not None else None


def plan_schema(given: PlannerInput) -> dict[str, JsonValue]:
    """Return the schema of a plan that uses the live agents and skills of a planner's input, and new task ids.

    Args:
        given: The input of the planner.

    Returns:
        A JSON Schema of a `Plan`.
    """
    count = max(0, min(given.max_tasks, _MAX_TASKS)) if given.agents else 0
    used = [report.task_id for report in given.results]
    new_id, known_id = _task_ids(used, count)
    definitions: _Schema = {
        "new_id": _described(new_id, _description(PlannedTask, "id")),
        "intent": _described(_text(_PARAGRAPH_CHARS, _MIN_INTENT_CHARS), _description(PlannedTask, "intent")),
        "known_ids": _list(known_id, _MAX_DEPENDENCIES),
        "input": _free_input(given),
        "input_value": _input_value(),
    }
    tasks = [_task(choice) for choice in _choices(given.agents, definitions)]
    properties: _Schema = {
        "goal": _text(_SENTENCE_CHARS),
        "tasks": _list(_any_of(tasks), count),
        "final_instruction": _text(_PARAGRAPH_CHARS),
        "cannot": _text(_SENTENCE_CHARS),
    }
    if given.may_ask:
        text, choices = _text(_PARAGRAPH_CHARS, _MIN_INTENT_CHARS), _list(_text(_CHOICE_CHARS, 1), _MAX_CHOICES)
        question: _Schema = {"question": text, "choices": choices}
        properties["questions"] = _list(_object(PlanQuestion, question, ["question"]), _MAX_QUESTIONS)
    if given.adaptive:
        properties["done"] = {"type": "boolean"}
    schema = _object(Plan, properties, ["tasks"] if given.agents else ["tasks", "cannot"])
    return {**schema, "$defs": definitions} if tasks else schema


def selection_schema(given: ClassifierInput) -> dict[str, JsonValue]:
    """Return the schema of a selection among the live agents and skills of a classifier's input.

    Args:
        given: The input of the classifier.

    Returns:
        A JSON Schema of a `Selection`.
    """
    # The schema is an enum and has no `minimum` or `maximum`, because a server that enforces a schema token by token
    # does not check these two keywords for a number with a fraction.
    confidence: _Schema = {
        "type": "number", "enum": [step / _CONFIDENCE_STEPS for step in range(_CONFIDENCE_STEPS + 1)],
    }  # fmt: skip
    about: _Schema = {"confidence": confidence, "intent": _text(_SENTENCE_CHARS)}
    chosen = [
        _object(SelectedAgent, {name: names, **about}, [name, "confidence"])
        for name, names in _names_by_kind(given.agents).items()
    ]
    count = min(_MAX_SELECTED, len(given.agents) + len(_skills(given.agents)))
    return _object(
        Selection,
        {
            "agents": _list(_any_of(chosen), count),
            "unserved": _text(_SENTENCE_CHARS),
            "question": _text(_SENTENCE_CHARS),
        },
        ["agents"],
    )


def synthesis_schema(_: SynthesizerInput) -> dict[str, JsonValue]:
    """Return the schema of a synthesizer's answer.

    Returns:
        A JSON Schema of a `Synthesis`.
    """
    return _object(Synthesis, {"answer": _text(_ANSWER_CHARS, 1)}, ["answer"])


def refinement_schema(_: RefinerInput) -> dict[str, JsonValue]:
    """Return the schema of a refiner's answer.

    Returns:
        A JSON Schema of a `Refinement`.
    """
    return _object(Refinement, {"intent": _text(_PARAGRAPH_CHARS, _MIN_INTENT_CHARS)}, ["intent"])


def ruling_schema(given: JudgeInput) -> dict[str, JsonValue]:
    """Return the schema of a ruling on the contradictions of a judge's input.

    Args:
        given: The input of the judge.

    Returns:
        A JSON Schema of a `ConflictRuling`.
    """
    listed = _enum(given.conflicts)
    decision = _object(
        Conflict,
        {
            "description": _text(_PARAGRAPH_CHARS, 1) if listed is None else listed,
            "decision": _text(_SENTENCE_CHARS, 1),
            "reason": _text(_SENTENCE_CHARS, 1),
        },
        ["description", "decision", "reason"],
    )
    return _object(
        ConflictRuling, {"decisions": {**_list(decision, max(1, len(given.conflicts))), "minItems": 1}}, ["decisions"]
    )


def review_schema(given: ReviewInput) -> dict[str, JsonValue]:
    """Return the schema of a review. At the last attempt of a stage, the verdict `again` is not allowed.

    Args:
        given: The input of the reviewer.

    Returns:
        A JSON Schema of a `Review`.
    """
    verdicts: list[JsonValue] = ["pass", "stop"] if given.is_last_attempt else ["pass", "again", "stop"]
    return _object(
        Review,
        {"verdict": {"type": "string", "enum": verdicts}, "reason": _text(_PARAGRAPH_CHARS, 1)},
        ["verdict", "reason"],
    )


_ROLES: Final[tuple[tuple[type[BaseModel], type[BaseModel], Callable[[Any], dict[str, JsonValue]]], ...]] = (
    (Plan, PlannerInput, plan_schema),
    (Selection, ClassifierInput, selection_schema),
    (Synthesis, SynthesizerInput, synthesis_schema),
    (Refinement, RefinerInput, refinement_schema),
    (ConflictRuling, JudgeInput, ruling_schema),
    (Review, ReviewInput, review_schema),
)


# Agents and skills


def _choices(agents: Sequence[AvailableAgent], definitions: _Schema) -> list[_Schema]:
    """Return the choices for a task. A choice has two properties of the task: the agent or the skill, and the input.

    An agent with a small input schema is a separate choice, with that schema for the input. All other agents together
    are one choice, and all skills together are one choice. These two have the input of `_free_input`.
    """
    own: dict[str, _Schema] = {}
    budget = _MAX_INPUT_SCHEMAS_CHARS
    for agent in agents:
        size = len(json.dumps(agent.input_schema))
        is_small = size <= min(_MAX_INPUT_SCHEMA_CHARS, budget) and len(own) < _MAX_INPUT_SCHEMAS
        if is_small and agent.input_schema.get("type") == "object":
            budget -= size
            own[agent.name] = _embedded(agent, definitions)
    rest = [agent for agent in agents if agent.name not in own]
    names = {kind: found for kind, found in _names_by_kind(agents).items() if kind == "skill"}
    names |= {kind: found for kind, found in _names_by_kind(rest).items() if kind == "agent"}
    shared: list[_Schema] = [{kind: found, "input": _reference("input")} for kind, found in names.items()]
    single: list[_Schema] = [
        {"agent": {"type": "string", "enum": [name]}, "input": schema} for name, schema in own.items()
    ]
    return [*single, *shared]


def _names_by_kind(agents: Sequence[AvailableAgent]) -> dict[str, JsonValue]:
    """Return the schemas of the fields `agent` and `skill`. A field is omitted if there are no names for it."""
    found: dict[str, JsonValue] = {}
    for kind, names in (("agent", [agent.name for agent in agents]), ("skill", _skills(agents))):
        if names:
            listed = _enum(names)
            unlisted: _Schema = {"type": "string", "pattern": TOKEN_PATTERN} if kind == "agent" else _text(200, 1)
            found[kind] = unlisted if listed is None else listed
    return found


def _skills(agents: Iterable[AvailableAgent]) -> list[str]:
    return list(dict.fromkeys(skill for agent in agents for skill in agent.skills))


def _embedded(agent: AvailableAgent, definitions: _Schema) -> _Schema:
    """Return an agent's input schema for use inside another schema. Move its definitions to `definitions`.

    The name of the agent becomes the prefix of each definition, so definitions of two agents never have the same name.
    """
    prefix = f"{agent.name}__"
    own = agent.input_schema.get("$defs")
    for name, schema in own.items() if isinstance(own, dict) else ():
        definitions[prefix + name] = _renamed(schema, prefix)
    inner = {name: value for name, value in agent.input_schema.items() if name not in ("$defs", "$schema", "$id")}
    renamed = _renamed(inner, prefix)
    assert isinstance(renamed, dict)
    return renamed


def _renamed(schema: JsonValue, prefix: str) -> JsonValue:
    if isinstance(schema, list):
        return [_renamed(each, prefix) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _renamed(each, prefix) for name, each in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        found["$ref"] = f"#/$defs/{prefix}{reference.removeprefix('#/$defs/')}"
    return found


def _free_input(given: PlannerInput) -> _Schema:
    """Return the schema of the input for a skill, or for an agent whose own input schema is not used.

    The schema allows only field names from the request, its metadata and the agents' schemas. If it allowed any name, a
    small model might write one field after another without an end.
    """
    declared = [agent.input_schema.get("properties") for agent in given.agents]
    known = [given.request, given.metadata, *declared]
    names = [name for each in known if isinstance(each, dict) for name in each if len(name) <= _MAX_INPUT_NAME_CHARS]
    listed = [name for name in dict.fromkeys(names) if name != "request"][:_MAX_INPUT_NAMES]
    properties: _Schema = {"request": _text(_PARAGRAPH_CHARS), **{name: _reference("input_value") for name in listed}}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _input_value() -> _Schema:
    """Return the schema of a value whose size is limited."""
    kinds: list[JsonValue] = [{"type": "number"}, {"type": "boolean"}, {"type": "null"}]
    return {"anyOf": [_text(_PARAGRAPH_CHARS), *kinds, _list(_text(_SENTENCE_CHARS), 20)]}


# Tasks


def _task(choice: _Schema) -> _Schema:
    """Return the schema of a task. Parts that all tasks share are definitions, so each part is sent only once."""
    kind = next(name for name in choice if name != "input")
    return {
        "type": "object",
        "properties": {
            "id": _reference("new_id"),
            kind: choice[kind],
            "intent": _reference("intent"),
            "input": choice["input"],
            "depends_on": _reference("known_ids"),
            "optional_dependencies": _reference("known_ids"),
            "approval": {"type": "string", "enum": ["required"]},
        },
        "required": ["id", kind, "intent"],
        "additionalProperties": False,
    }


def _reference(name: str) -> _Schema:
    return {"$ref": f"#/$defs/{name}"}


def _task_ids(used: Sequence[str], count: int) -> tuple[_Schema, _Schema]:
    """Return two schemas: for the id of a new task, and for the id of any new or existing task."""
    if not used:
        pattern: _Schema = {"type": "string", "pattern": "^t[1-9][0-9]?$", "maxLength": 3}
        return pattern, pattern
    numbers = [int(found[1]) for each in used if (found := _TASK_ID.fullmatch(each))]
    first = max(numbers, default=0) + 1
    new = [f"t{number}" for number in range(first, first + max(count, 1))]
    listed = [*dict.fromkeys(used), *new]
    any_id = f"^({'|'.join(listed)})$" if len(listed) <= _MAX_LISTED_IDS else TOKEN_PATTERN
    return (
        {"type": "string", "pattern": f"^({'|'.join(new)})$", "maxLength": 64},
        {"type": "string", "pattern": any_id, "maxLength": 64},
    )


# Parts


def _object(model: type[BaseModel], properties: _Schema, required: list[str]) -> _Schema:
    """Return the schema of an object, with the descriptions of the fields of `model`."""
    described = {name: _described(schema, _description(model, name)) for name, schema in properties.items()}
    return {
        "type": "object", "properties": described, "required": [*required], "additionalProperties": False,
    }  # fmt: skip


def _description(model: type[BaseModel], field: str) -> str:
    return model.model_fields[field].description or ""


def _described(schema: JsonValue, description: str) -> JsonValue:
    return {**schema, "description": description} if isinstance(schema, dict) and description else schema


def _text(most: int, least: int = 0) -> _Schema:
    text: _Schema = {"type": "string", "maxLength": most}
    return {**text, "minLength": least} if least else text


def _list(items: _Schema | None, most: int) -> _Schema:
    return {"type": "array", "maxItems": most if items is not None else 0, "items": items if items is not None else {}}


def _any_of(schemas: list[_Schema]) -> _Schema | None:
    if not schemas:
        return None
    return schemas[0] if len(schemas) == 1 else {"anyOf": [*schemas]}


def _enum(values: Sequence[str]) -> _Schema | None:
    """Return an enum of texts; None if providers refuse an enum of this size."""
    names = list(dict.fromkeys(values))
    return {"type": "string", "enum": [*names]} if 0 < len(names) <= _MAX_ENUM else None
