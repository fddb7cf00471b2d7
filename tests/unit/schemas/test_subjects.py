"""Subjects are built from checked tokens and parsed to the same tokens."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.bus.validation import matches
from pointsman_schemas.errors import ContractError, InvalidTokenError
from pointsman_schemas.subjects import (
    ControlAddress,
    HandoffAddress,
    ResultAddress,
    Subjects,
    TimerAddress,
)

tokens = st.text(alphabet="abcXYZ0189_-", min_size=1, max_size=64)
attempts = st.integers(min_value=1, max_value=10**6)

BUILDERS = {
    name: method
    for name, method in inspect.getmembers(Subjects, inspect.isfunction)
    if not name.startswith(("_", "parse", "kind_of", "workflow_of")) and len(inspect.signature(method).parameters) > 1
}


@given(tokens, tokens, tokens, tokens, tokens, attempts)
def test_a_handoff_reads_back(namespace: str, agent: str, team: str, workflow: str, task: str, attempt: int) -> None:
    subjects = Subjects(namespace)

    subject = subjects.handoff(agent, team, workflow, task, attempt)

    assert subjects.parse(subject, HandoffAddress) == HandoffAddress(agent, team, workflow, task, attempt)


@given(tokens, tokens, tokens, tokens, attempts, tokens)
def test_a_result_reads_back(team: str, agent: str, workflow: str, task: str, attempt: int, last: str) -> None:
    subjects = Subjects()

    subject = subjects.result(team, agent, workflow, task, attempt, last)

    assert subjects.parse(subject, ResultAddress) == ResultAddress(team, agent, workflow, task, attempt, last)


@given(tokens, tokens, tokens, tokens, tokens)
def test_controls_and_timers_read_back(team: str, workflow: str, action: str, actor: str, name: str) -> None:
    subjects = Subjects()

    timer, control = subjects.timer(team, workflow, name), subjects.control(team, workflow, action, actor, name)

    assert subjects.parse(timer, TimerAddress) == TimerAddress(team, workflow, name)
    assert subjects.parse(control, ControlAddress) == ControlAddress(team, workflow, action, actor, name)


def test_filter_of_a_kind_selects_the_messages_of_its_workflow_alone() -> None:
    subjects = Subjects()

    def messages(workflow: str) -> dict[str, str]:
        return {
            "control": subjects.control("crew", workflow, "cancel", "ada", "c1"),
            "result": subjects.result("crew", "a", workflow, "t1", 1, "token"),
            "step": subjects.step("a", "crew", workflow, "t1", 1, "s1"),
            "event": subjects.event("crew", workflow, "a", "t1"),
            "handoff": subjects.handoff("a", "crew", workflow, "t1", 1),
            "message": subjects.message("a", "crew", workflow, 1),
            "timer": subjects.timer("crew", workflow, "wake-1"),
            "schedule": subjects.retry("crew", workflow, "t1"),
        }

    selected = {
        kind: [
            subject
            for subject in (*messages("wf_1").values(), *messages("wf_2").values())
            if matches(subjects.workflow_messages(kind, "crew", "wf_1"), subject)  # type: ignore[arg-type]
        ]
        for kind in messages("wf_1")
    }

    assert selected == {kind: [subject] for kind, subject in messages("wf_1").items()}


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
@pytest.mark.parametrize("hostile", ["a b", "a\r\nPUB x 0\r\n", "*", ">", "a.b", "ä", "a" * 65])
def test_no_builder_lets_a_hostile_name_into_a_subject(build: Callable[..., str], hostile: str) -> None:
    parameters = [p for name, p in inspect.signature(build).parameters.items() if name != "self"]
    fixed: dict[str, object] = {"attempt": 1, "kind": "result"}
    words = [p.name for p in parameters if p.name not in fixed]

    for word in words:
        arguments = {p.name: fixed.get(p.name, hostile if p.name == word else "good") for p in parameters}
        with pytest.raises(InvalidTokenError):
            build(Subjects(), **arguments)


@pytest.mark.parametrize("namespace", ["", "a.b", "a b", "*", "a" * 65])
def test_a_namespace_is_one_token(namespace: str) -> None:
    with pytest.raises(InvalidTokenError, match="namespace"):
        Subjects(namespace)


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "pointsman",
        "other.handoff.a.c.w.t.1",
        "pointsman.handoff.a.c.w.t",
        "pointsman.handoff.a.c.w.t.one",
        "pointsman.handoff.a.c.w.t.1.2",
        "pointsman.handoff.a.c..t.1",
        "pointsman.handoff.a.c.w.*.1",
        "pointsman.result.team.a.w.t.1.token",
    ],
)
def test_a_subject_that_is_no_handoff_is_a_typed_error(subject: str) -> None:
    with pytest.raises(ContractError):
        Subjects().parse(subject, HandoffAddress)


@pytest.mark.parametrize(
    "subject",
    [
        "pointsman.result.t.a.w.t.1",
        "pointsman.control.t.w.cancel.ada",
        "pointsman.timer.t.w",
        "pointsman.handoff.a.c.w.t.1",
        "other.timer.t.w.n",
    ],
)
def test_a_subject_of_another_form_is_a_typed_error(subject: str) -> None:
    subjects = Subjects()

    for form in (ResultAddress, ControlAddress, TimerAddress):
        with pytest.raises(ContractError):
            subjects.parse(subject, form)


@pytest.mark.parametrize("attempt", ["0", "00", "01", "-1", "1_000", "1000000000", "9" * 64])
def test_an_attempt_is_a_number_from_one_on_written_in_one_way(attempt: str) -> None:
    subjects = Subjects()

    with pytest.raises(ContractError, match="ATTEMPT"):
        subjects.parse(f"pointsman.handoff.a.c.w.t.{attempt}", HandoffAddress)
    with pytest.raises(ContractError, match="ATTEMPT"):
        subjects.parse(f"pointsman.result.team.a.w.t.{attempt}.token", ResultAddress)


@given(st.text(max_size=100))
def test_no_text_breaks_reading(subject: str) -> None:
    subjects = Subjects()

    for form in (HandoffAddress, ResultAddress, ControlAddress, TimerAddress):
        with pytest.raises(ContractError):
            subjects.parse(subject, form)


def test_source_is_a_path_of_subject_tokens() -> None:
    assert Subjects("acme").source("team", "helpdesk") == "/acme/team/helpdesk"
    with pytest.raises(InvalidTokenError):
        Subjects("acme").source("team", "help/desk")


def test_streams_and_buckets_are_the_namespace_in_capitals() -> None:
    subjects = Subjects("acme-eu")

    assert (subjects.work_stream, subjects.log_stream, subjects.dead_letter_stream) == (
        "ACME-EU_WORK",
        "ACME-EU_LOG",
        "ACME-EU_DEAD",
    )
    assert subjects.agents_bucket == "ACME-EU_AGENTS"
    assert subjects.gateway_bucket == "ACME-EU_GATEWAY"
