"""The files in schemas/json agree with the models, and serialized models match the files."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from support.examples import CARD, EVENTS

from pointsman_schemas import generate
from pointsman_schemas.events import Event
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import Subjects

FOLDER = Path(__file__).parents[3] / "schemas" / "json"
ASYNCAPI: dict[str, Any] = yaml.safe_load((FOLDER / "asyncapi.yaml").read_text(encoding="utf-8"))


def schema(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FOLDER / f"{name}.schema.json").read_text(encoding="utf-8"))
    return loaded


def test_the_files_are_those_that_the_models_give_now() -> None:
    kept = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}

    assert kept.keys() == generate.files().keys()
    for name, text in generate.files().items():
        assert kept[name] == text, f"{name} is out of date: run `make schemas`"


def test_generator_writes_every_file_and_removes_stale_ones(tmp_path: Path) -> None:
    (tmp_path / "gone.schema.json").write_text("{}")
    (tmp_path / "README.md").write_text("kept")

    assert generate.main([str(tmp_path)]) == 0

    assert {path.name for path in tmp_path.iterdir()} == {"README.md", *generate.files()}


def test_generating_needs_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main([]) == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize("name", generate.MODELS)
def test_every_schema_is_a_json_schema_with_an_id_of_its_own(name: str) -> None:
    Draft202012Validator.check_schema(schema(name))

    assert schema(name)["$id"] == f"urn:pointsman:schema:{name}:v1"


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
def test_models_match_their_json_schema(event: Event) -> None:
    Draft202012Validator(schema(event.short_name())).validate(json.loads(dump(event)))


def test_a_card_fits_its_schema() -> None:
    Draft202012Validator(schema("agent-card")).validate(json.loads(dump(CARD)))


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
def test_a_schema_refuses_a_body_without_a_required_field(event: Event) -> None:
    rules = schema(event.short_name())

    for name in rules["required"]:
        body = json.loads(dump(event))
        del body[name]
        assert not Draft202012Validator(rules).is_valid(body)


def test_every_reference_in_the_asyncapi_document_leads_somewhere() -> None:
    references = list(_references(ASYNCAPI))

    assert references
    for reference in references:
        if reference.startswith("./"):
            assert (FOLDER / reference).is_file()
        else:
            target: Any = ASYNCAPI
            for step in reference.removeprefix("#/").split("/"):
                target = target[step]


def test_every_channel_names_its_parameters_and_every_operation_its_messages() -> None:
    for channel in ASYNCAPI["channels"].values():
        assert set(re.findall(r"\{(\w+)\}", channel["address"])) == set(channel["parameters"])
        assert channel["messages"]
    for operation in ASYNCAPI["operations"].values():
        channel = operation["channel"]["$ref"]
        assert operation["action"] in {"send", "receive"}
        assert all(message["$ref"].startswith(f"{channel}/messages/") for message in operation["messages"])


def test_every_channel_is_used_and_every_event_has_a_channel() -> None:
    used = {operation["channel"]["$ref"].split("/")[-1] for operation in ASYNCAPI["operations"].values()}
    carried = {name for channel in ASYNCAPI["channels"].values() for name in channel["messages"]}

    assert used == set(ASYNCAPI["channels"])
    assert carried == set(ASYNCAPI["components"]["messages"])


def test_addresses_are_the_subjects_that_the_processes_use() -> None:
    names = {"namespace": "acme", "team": "t", "agent": "a", "workflow": "w", "task": "k", "attempt": 3, "token": "x"}
    made = {
        name: channel["address"].format(
            **names,
            id="i",
            name="n",
            number=1,
            origin="o",
            caller="c",
            action="cancel",
            actor="d",
            thread="h",
            schedule="s",
        )
        for name, channel in ASYNCAPI["channels"].items()
    }
    subjects = Subjects("acme")

    assert made["requests"] == subjects.request("t", "c")
    assert made["handoffs"] == subjects.handoff("a", "t", "w", "k", 3)
    assert made["results"] == subjects.result("t", "a", "w", "k", 3, "x")
    assert made["deadLetters"] == subjects.dead_letter("o", "w", "i")
    assert made["outcomes"] == subjects.outcome("t", "w")
    assert made["threads"] == subjects.thread("t", "c", "h")
    assert made["schedules"] == subjects.cron("t", "c", "s")


texts = st.text(string.printable + "é𝄞")
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=40)
@given(st.dictionaries(texts | st.sampled_from(["on", "null", "$ref", "1", "a: b"]), json_values, min_size=1))
def test_the_yaml_reads_back_as_the_data_it_was_made_from(data: dict[str, Any]) -> None:
    assert yaml.safe_load("\n".join(generate.to_yaml(data))) == data


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for item in value.values():
            yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)


# Requirements of code generators


def subschemas(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each schema below a schema with its path."""
    if isinstance(value, dict):
        if path:
            yield path, value
        for key, inner in value.items():
            if key not in ("default", "enum", "const", "examples"):
                yield from subschemas(inner, f"{path}/{key}")
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from subschemas(inner, f"{path}/{place}")


@pytest.mark.parametrize("name", generate.MODELS)
def test_a_default_of_null_is_kept_only_with_the_type_null(name: str) -> None:
    for path, each in subschemas(schema(name)):
        if "default" in each and each["default"] is None:
            assert {"type": "null"} in each.get("anyOf", ()) or "null" in each.get("type", ()), path


@pytest.mark.parametrize("name", generate.MODELS)
def test_every_schema_that_becomes_a_type_has_a_name(name: str) -> None:
    for path, each in subschemas(schema(name)):
        is_type = {"enum", "allOf", "anyOf", "oneOf"} & each.keys() or each.get("type") == "object"
        if is_type and not path.endswith(("/properties", "/$defs")):
            assert each.get("title"), path


def test_one_name_is_one_definition_in_all_files() -> None:
    found: dict[str, dict[str, str]] = {}
    for name in generate.MODELS:
        whole = schema(name)
        root = {key: value for key, value in whole.items() if not key.startswith("$")}
        for title, each in [(whole["title"], root), *whole.get("$defs", {}).items()]:
            found.setdefault(title, {}).setdefault(json.dumps(each, sort_keys=True), name)

    assert {title: list(texts.values()) for title, texts in found.items() if len(texts) > 1} == {}


def test_a_channel_and_a_message_have_different_names() -> None:
    """Generators make a type of each channel with several messages, and of each message."""
    messages = {name.lower() for name in ASYNCAPI["components"]["messages"]}

    assert not messages & {name.lower() for name in ASYNCAPI["channels"]}


def test_asyncapi_has_durable_consumers_and_no_queue_groups() -> None:
    consumers = {
        name: operation["x-jetstream"]["consumer"]["durable_name"]
        for name, operation in ASYNCAPI["operations"].items()
        if "x-jetstream" in operation
    }

    assert consumers["agentReceivesHandoffs"] == "agent-{agent}"
    assert not [name for name, operation in ASYNCAPI["operations"].items() if "bindings" in operation]


def test_asyncapi_has_the_models_that_are_no_messages() -> None:
    schemas = ASYNCAPI["components"]["schemas"]

    assert {"AgentCard", "Plan", "PlannerInput", "Selection"} <= schemas.keys()
    assert all((FOLDER / each["$ref"]).is_file() for each in schemas.values())
