"""Each table on the page of the wire contract agrees with the code."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pointsman.bus.jetstream.pull_consumer import durable_config
from pointsman.bus.jetstream.stream_config import stream_configs
from pointsman.bus.stream_names import STORED_KINDS, stream_names
from pointsman.engine.process.consumers import agent_consumer, input_consumers, request_consumer, webhook_consumers
from pointsman.settings import Settings
from pointsman_schemas import subjects as subjects_module
from pointsman_schemas.events import ErrorKind
from pointsman_schemas.ids import (
    attempt_token,
    child_id_for,
    dead_letter_id,
    delayed_handoff_id,
    schedule_id_for,
    span_id_for,
    task_key,
    workflow_id_for,
)
from pointsman_schemas.retry import FINAL_KINDS
from pointsman_schemas.subjects import Subjects

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "protocol.md").read_text()
NS = Subjects("acme")
FORMULAS: dict[str, Callable[..., str]] = {
    "workflow": lambda subject, source, request: workflow_id_for(subject, request, source),
    "child workflow": lambda team, workflow, task, attempt: child_id_for(team, workflow, task, int(attempt)),
    "schedule": schedule_id_for,
    "attempt token": lambda secret, task, attempt: attempt_token(secret, task, int(attempt)),
    "idempotency key": task_key,
    "span of an attempt": lambda workflow, task, attempt: span_id_for(workflow, task, int(attempt)),
    "dead letter of a task": lambda workflow, task, attempt: dead_letter_id(workflow, task, int(attempt)),
    "schedule of a handoff": lambda task, attempt: delayed_handoff_id(task, int(attempt)),
}


def table(first: str) -> list[list[str]]:
    """Return the rows of the table whose first column is `first`."""
    (found,) = re.findall(rf"^\| {first} \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found.splitlines()]


def named(cell: str) -> list[str]:
    """Return the code in a cell, with the namespace of the test."""
    return [code.replace("{ns}", "acme").replace("{NS}", "ACME") for code in re.findall(r"`([^`]+)`", cell)]


def test_streams_are_those_of_the_broker() -> None:
    configs = {config["name"]: config for config in stream_configs(NS, Settings(namespace="acme"))}
    rows = {named(name)[0]: (named(subjects), rights) for name, _, subjects, rights in table("Stream")}

    assert rows.keys() == configs.keys()
    for name, (subjects, rights) in rows.items():
        stored = [subject for subject in configs[name]["subjects"] if not subject.startswith("$JS.EVENT.")]
        assert sorted(subjects) == sorted(stored)
        assert configs[name]["duplicate_window"] == (1e8 if name == "ACME_REQUESTS" else 120e9)
        found = [configs[name][key] for key in ("allow_msg_schedules", "allow_msg_ttl", "allow_rollup_hdrs")]
        assert found == {"yes": [True] * 3, "no": [False] * 3, "TTL": [False, True, False]}[rights]


def test_subjects_are_those_of_the_module() -> None:
    listed = {subject: stored == "yes" for subject, _, stored in table("Subject")}
    known = re.findall(r"^\| `(\{ns\}[^`]+)` \|", subjects_module.__doc__ or "", re.MULTILINE)

    assert {subject.strip("`") for subject in listed} == {
        subject.replace('{workflow or "none"}', "{workflow}") for subject in known
    } - {"{ns}.handed.{supervisor}.>"}
    for subject, stored in listed.items():
        _, kind, *rest = subject.strip("`").split(".")
        assert (kind in STORED_KINDS) is stored
        if stored:
            assert len(rest) == STORED_KINDS[kind].tokens


@pytest.mark.parametrize("row", table("Id"), ids=lambda row: row[0])
def test_example_of_an_id_follows_from_its_formula(row: Sequence[str]) -> None:
    name, _, arguments, example = row

    assert [FORMULAS[name](*named(arguments))] == named(example)


def test_each_formula_has_an_example() -> None:
    assert [row[0] for row in table("Id")] == list(FORMULAS)


def test_consumers_are_those_of_the_processes() -> None:
    names = stream_names(NS, apart=False)
    mine = [request_consumer(NS, "t"), *input_consumers(NS, "t"), agent_consumer(NS, "a"), *webhook_consumers(NS)]
    shown = [
        [code.replace("{team}", "t").replace("{agent}", "a") for cell in row for code in named(cell)]
        for row in table("Consumer")
    ]

    assert shown == [[each.name, names[each.stream], each.subject] for each in mine]


def test_fields_of_a_consumer_are_those_of_the_broker() -> None:
    config = durable_config("timer-t", "acme.timer.t.>", 20.0, 1000, ranked=True)
    shown = {named(field)[0]: named(value)[0] for field, value in table("Field")}

    assert shown.pop("ack_wait") == "POINTSMAN_ACK_WAIT"
    assert config["ack_wait"] == Settings().ack_wait * 1e9
    assert {field: str(config[field]) for field in shown} == shown
    assert config["priority_policy"] == "prioritized"


def test_kinds_of_errors_are_listed_with_their_retry() -> None:
    assert {named(kind)[0]: ends for kind, ends in table("Kind")} == {
        kind.value: "yes" if kind in FINAL_KINDS else "no" for kind in ErrorKind
    }
