"""If a schema constrains a model token by token, the model can only use existing names and bounded texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, JsonValue

from pointsman.core.planning.validation import check_plan
from pointsman_schemas.events import TaskReport
from pointsman_schemas.plan import Plan, Selection
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
from pointsman_schemas.role_schemas import closed_schema, plan_schema, review_schema, ruling_schema, selection_schema
from pointsman_schemas.team import Limits

ORDER: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"order": {"$ref": "#/$defs/Order"}, "kind": {"type": "string", "enum": ["refund", "resend"]}},
    "required": ["order"],
    "$defs": {"Order": {"type": "string", "pattern": "^A-[0-9]{1,3}$"}},
}
AGENTS = (
    AvailableAgent(name="billing", description="Refunds", skills=("refunds", "invoices"), input_schema=ORDER),
    AvailableAgent(name="technical", description="Faults", skills=("faults",)),
    AvailableAgent(name="writer-2", description="Letters"),
)
DONE = tuple(
    TaskReport(task_id=task_id, agent="billing", intent="look", status="succeeded") for task_id in ("t1", "t7", "check")
)
INPUTS: dict[str, tuple[type[BaseModel], BaseModel]] = {
    "plan": (Plan, PlannerInput(request="help", agents=AGENTS)),
    "adaptive": (Plan, PlannerInput(request="help", agents=AGENTS, adaptive=True, results=DONE, max_tasks=3)),
    "one agent": (Plan, PlannerInput(request="help", agents=AGENTS[1:2])),
    "selection": (Selection, ClassifierInput(request="help", agents=AGENTS)),
    "synthesis": (Synthesis, SynthesizerInput(request="help")),
    "refinement": (Refinement, RefinerInput(request="help", intent="x", agent="billing", attempts=2, error="x")),
    "ruling": (ConflictRuling, JudgeInput(request="help", conflicts=("due: a says Monday; b says Friday",))),
    "review": (Review, ReviewInput(request="help", task_id="t1", agent="billing", intent="x")),
}


def written(schema: JsonValue, root: dict[str, Any], chance: Random) -> Any:
    """Return a random value of a model that only the schema constrains."""
    assert isinstance(schema, dict)
    found: dict[str, Any] = dict(schema)
    if "$ref" in found:
        return written(root["$defs"][found["$ref"].rpartition("/")[2]], root, chance)
    if "anyOf" in found:
        return written(chance.choice(found["anyOf"]), root, chance)
    if "enum" in found:
        return chance.choice(found["enum"])
    match found.get("type"):
        case "object":
            names = [name for name in found["properties"] if name in found.get("required", ()) or chance.random() < 0.5]
            made = {name: written(found["properties"][name], root, chance) for name in names}
            more = found.get("additionalProperties")
            return made | ({f"x{n}": written(more, root, chance) for n in range(2)} if isinstance(more, dict) else {})
        case "array":
            count = chance.randint(found.get("minItems", 0), min(found["maxItems"], 4))
            return [written(found["items"], root, chance) for _ in range(count)]
        case "string" if "pattern" in found:
            return _matching(found["pattern"], chance)
        case "string":
            least = found.get("minLength", 0)
            return "".join(chance.choice("ab é\n") for _ in range(chance.randint(least, max(least, 6)))) or ""
        case "number":
            return chance.choice([0, 1.5, -3])
        case "boolean":
            return chance.random() < 0.5
    return None


def _matching(pattern: str, chance: Random) -> str:
    if listed := re.fullmatch(r"\^\(([\w|-]+)\)\$", pattern):
        return str(chance.choice(listed[1].split("|")))
    return {"^t[1-9][0-9]?$": f"t{chance.randint(1, 99)}", "^A-[0-9]{1,3}$": "A-7"}[pattern]


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("seed", range(40))
def test_all_that_a_schema_allows_is_an_answer_of_its_role(name: str, seed: int) -> None:
    output, given = INPUTS[name]
    schema = closed_schema(output, given)
    assert schema is not None
    Draft202012Validator.check_schema(schema)

    value = written(schema, schema, Random(seed))

    Draft202012Validator(schema).validate(value)
    if name == "review" and not value["reason"].strip():
        return  # the schema cannot refuse a reason that is only white space
    output.model_validate(value)


BEYOND_A_SCHEMA = (
    "is used",
    "depends on",
    "are the same",
    "wait for each other",
    "links",
    "no tasks",
    "has an empty intent",
)
"""Rules that a schema cannot express: ids and tasks differ; dependencies are in the plan and form no cycle."""


@pytest.mark.parametrize("name", ["plan", "adaptive", "one agent"])
@pytest.mark.parametrize("seed", range(60))
def test_a_plan_within_its_schema_names_agents_skills_and_ids_that_may_be_named(name: str, seed: int) -> None:
    given = INPUTS[name][1]
    assert isinstance(given, PlannerInput)
    schema = plan_schema(given)

    plan = Plan.model_validate(written(schema, schema, Random(seed)))

    skills = {skill for agent in given.agents for skill in agent.skills}
    existing = {report.task_id: True for report in given.results}
    problems = check_plan(plan, [agent.name for agent in given.agents], Limits(tasks=50), existing, skills)
    assert [each for each in problems if not any(words in each for words in BEYOND_A_SCHEMA)] == []
    assert not {task.id for task in plan.tasks} & existing.keys()


def invalid(schema: dict[str, JsonValue], value: JsonValue) -> bool:
    return not Draft202012Validator(schema).is_valid(value)


def test_a_plan_with_another_agent_skill_id_or_field_is_outside_of_its_schema() -> None:
    given = INPUTS["adaptive"][1]
    assert isinstance(given, PlannerInput)
    schema = plan_schema(given)
    task: dict[str, JsonValue] = {
        "id": "t8",
        "agent": "technical",
        "intent": "Look into it",
        "depends_on": ["t1", "t9"],
    }
    assert not invalid(schema, {"tasks": [task]})

    changes: tuple[dict[str, JsonValue], ...] = (
        {"agent": "mobile"}, {"skill": "faults"}, {"id": "t1"}, {"id": "t7"}, {"id": "check"}, {"id": "x"},
        {"intent": "x" * 1_001}, {"intent": ""}, {"depends_on": ["t99"]}, {"priority": 1}, {"approval": "maybe"},
    )  # fmt: skip
    for change in changes:
        assert invalid(schema, {"tasks": [{**task, **change}]}), change
    assert invalid(schema, {"tasks": [{**task, "id": f"t{n}"} for n in range(8, 12)]}), (
        "more than max_tasks must be refused"
    )
    assert invalid(schema, {"tasks": [{**task, "agent": "billing", "input": {"kind": "refund"}}]}), (
        "an input must match the agent's schema"
    )
    assert not invalid(schema, {"tasks": [{**task, "agent": "billing", "input": {"order": "A-1"}}]})


def test_without_agents_a_plan_says_why_there_is_none() -> None:
    schema = plan_schema(PlannerInput(request="help"))

    assert not invalid(schema, {"tasks": [], "cannot": "nobody is there"})
    assert invalid(schema, {"tasks": []})
    assert invalid(schema, {"tasks": [{"id": "t1", "agent": "a", "intent": "Look"}], "cannot": ""})


def test_a_selection_has_live_agents_and_a_confidence() -> None:
    schema = selection_schema(ClassifierInput(request="help", agents=AGENTS))

    assert not invalid(
        schema, {"agents": [{"agent": "billing", "confidence": 0.85}, {"skill": "faults", "confidence": 1}]}
    )
    outside: tuple[dict[str, JsonValue], ...] = (
        {"agent": "mobile", "confidence": 1}, {"agent": "billing", "confidence": 7}, {"agent": "billing"},
        {"confidence": 0.5}, {"skill": "cooking", "confidence": 0.5},
    )  # fmt: skip
    for wrong in outside:
        assert invalid(schema, {"agents": [wrong]}), wrong


def test_a_ruling_needs_a_contradiction_and_a_last_review_asks_for_no_change() -> None:
    ruling = ruling_schema(JudgeInput(request="help", conflicts=("due: Monday or Friday",)))
    last = review_schema(ReviewInput(request="x", task_id="t1", agent="a", intent="x", is_last_attempt=True))

    decision: dict[str, JsonValue] = {"description": "due: Monday or Friday", "decision": "Monday", "reason": "signed"}
    assert not invalid(ruling, {"decisions": [decision]})
    assert invalid(ruling, {"decisions": [{**decision, "description": "price"}]})
    assert invalid(ruling, {"decisions": []})
    assert invalid(last, {"verdict": "again", "reason": "thin"})


def unbounded(schema: Any, path: str = "") -> Iterator[str]:
    """Yield places of unbounded texts, lists and objects. An author's schema may have such places."""
    if isinstance(schema, list):
        for place, each in enumerate(schema):
            yield from unbounded(each, f"{path}[{place}]")
    elif isinstance(schema, dict):
        if schema.get("type") == "string" and not {"maxLength", "enum", "pattern"} & schema.keys():
            yield path
        if schema.get("type") == "array" and "maxItems" not in schema:
            yield path
        open_ended = schema.get("type") == "object" and schema.get("additionalProperties") is not False
        if open_ended and "order" not in schema["properties"]:
            yield path
        for name, each in schema.items():
            if not name.startswith("billing__"):
                yield from unbounded(each, f"{path}.{name}")


@pytest.mark.parametrize("name", INPUTS)
def test_every_text_and_every_list_has_an_end(name: str) -> None:
    assert list(unbounded(closed_schema(*INPUTS[name]))) == []


def test_input_without_a_schema_has_the_fields_of_request_metadata_and_agents() -> None:
    given = PlannerInput(request={"text": "help"}, metadata={"customer": 7, "x" * 65: 1}, agents=AGENTS)

    schema = plan_schema(given)

    definitions = schema["$defs"]
    assert isinstance(definitions, dict)
    found = definitions["input"]
    assert isinstance(found, dict)
    assert list(found["properties"]) == ["request", "text", "customer", "order", "kind"]  # type: ignore[arg-type]
    task = {"id": "t1", "agent": "technical", "intent": "look"}
    assert not invalid(schema, {"tasks": [{**task, "input": {"request": "help", "customer": "7"}}]})
    assert invalid(schema, {"tasks": [{**task, "input": {"request": "help", "version": "3"}}]})


def test_more_agents_than_an_enum_may_have_are_a_pattern() -> None:
    many = tuple(AvailableAgent(name=f"a{n}", description="d", skills=(f"s{n}",)) for n in range(251))

    for schema in (plan_schema(PlannerInput(request="x", agents=many)), selection_schema(ClassifierInput(request="x", agents=many))):  # fmt: skip  # noqa: E501
        assert '"a250"' not in str(schema).replace("'", '"')
        assert "[A-Za-z0-9_-]" in str(schema)


def test_what_is_no_pair_of_a_role_has_the_schema_of_its_model() -> None:
    assert closed_schema(Plan, "text") is None
    assert closed_schema(Plan, ClassifierInput(request="x")) is None
    assert closed_schema(None, PlannerInput(request="x")) is None
