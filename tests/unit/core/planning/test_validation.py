"""The refusal of a plan names all of its faults."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.core import plan, task
from support.mutations import at_most, mutated

from pointsman.core.planning.validation import MAX_RAW_CHARS, check_plan, raw_text, read_plan, read_selection
from pointsman.llm.json_extraction import find_json
from pointsman_schemas.plan import Plan
from pointsman_schemas.strict_json import compact_json
from pointsman_schemas.team import Limits

AGENTS = frozenset({"worker", "other"})


def problems_of(*tasks: dict[str, Any], limits: Limits | None = None, **existing: bool) -> tuple[str, ...]:
    read = read_plan(plan(*tasks))
    assert isinstance(read, Plan), read
    return check_plan(read, AGENTS, limits or Limits(), existing)


def test_a_sound_plan_has_no_problems() -> None:
    assert problems_of(task("a"), task("b", "other", needs=["a"]), task("c", optional=["a", "b"])) == ()


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        ([task("a", "ghost")], "the agent 'ghost', which is not one of: other, worker"),
        ([task("a", "Worker")], "the agent 'Worker', which is not one of"),
        ([task("a"), task("a", "other")], "the id 'a' is used 2 times"),
        ([task("a", needs=["a"])], "task 'a' depends on itself"),
        ([task("a", optional=["a"])], "task 'a' depends on itself"),
        ([task("a", needs=["b"])], "depends on 'b', which is not a task of the plan"),
        ([task("a", optional=["b"])], "depends on 'b', which is not a task of the plan"),
        ([task("a", needs=["b"]), task("b", needs=["a"])], "wait for each other in a circle: a, b"),
        ([task("a", intent=" ")], "task 'a' has an empty intent; say in a sentence"),
        ([task("a.b")], "the task id is 'a.b'"),
        ([task(">")], "the task id is '>'"),
        ([task("")], "the task id is ''"),
        ([task("a", intent="the same"), task("b", intent="the same")], "tasks 'a' and 'b' are the same"),
        ([], "the plan has no tasks"),
    ],
)
def test_each_fault_is_named(tasks: list[dict[str, Any]], expected: str) -> None:
    problems = problems_of(*tasks)

    assert len(problems) == 1
    assert expected in problems[0]


def test_a_task_that_waits_for_a_cycle_is_not_named_as_a_part() -> None:
    needs = {"a": (), "b": ("a", "c"), "c": ("b",), "d": ("c",), "e": ("d",)}

    problems = problems_of(*(task(name, needs=list(needed)) for name, needed in needs.items()))

    assert problems == ("these tasks wait for each other in a circle: b, c",)


def test_a_plan_without_a_live_agent_names_none() -> None:
    plan = Plan.model_validate(
        {"goal": "g", "tasks": [task("a"), {"id": "b", "skill": "poetry", "intent": "Write it"}]}
    )

    assert check_plan(plan, (), Limits()) == (
        "task 'a' names the agent 'worker', but no agent is alive",
        "task 'b' asks for the skill 'poetry', but no live agent has a skill",
    )


def test_all_faults_are_reported_together() -> None:
    problems = problems_of(task("a", "ghost", needs=["a"]), task("b b", intent=" ", needs=["nowhere"]))

    assert len(problems) == 5


def test_names_are_trimmed_before_they_are_compared() -> None:
    assert problems_of(task(" a "), task("b", " worker\n", needs=["a  "])) == ()


def test_a_plan_has_at_most_as_many_tasks_as_the_limits_allow() -> None:
    tasks = [task(f"t{number}") for number in range(3)]

    assert problems_of(*tasks, limits=Limits(tasks=3)) == ()
    assert "3 tasks; at most 2" in problems_of(*tasks, limits=Limits(tasks=2))[0]


def test_a_chain_has_at_most_as_many_links_as_the_limits_allow() -> None:
    chain = [task("t0"), task("t1", needs=["t0"]), task("t2", needs=["t1"])]

    assert problems_of(*chain, limits=Limits(depth=3)) == ()
    assert "has 3 links; at most 2" in problems_of(*chain, limits=Limits(depth=2))[0]


def test_the_id_of_a_task_that_has_started_is_taken() -> None:
    assert "belongs to a task that has already started" in problems_of(task("a"), a=True)[0]


def test_new_task_may_need_a_started_task_but_not_a_failed_one() -> None:
    assert problems_of(task("b", needs=["a"]), a=True) == ()
    assert "'a', which is not a task of the plan" in problems_of(task("b", needs=["a"]), a=False)[0]


def test_a_plan_without_tasks_may_report_the_reason() -> None:
    assert check_plan(Plan(cannot="nobody here cooks"), AGENTS, Limits()) == ()


@pytest.mark.parametrize(
    ("output", "seen"),
    [
        (None, "empty"),
        ("I think ...", "plain text"),
        ([1], "a list"),
        (3, "a int"),
        ({"tasks": "none"}, "does not fit"),
        ({"tasks": [{"id": "a"}]}, "does not fit"),
    ],
)
def test_an_answer_that_is_no_plan_is_described(output: Any, seen: str) -> None:
    read = read_plan(output)

    assert isinstance(read, tuple)
    assert seen in read[0]
    assert "expected a JSON object with goal, tasks and final_instruction" in read[0]


@pytest.mark.parametrize("output", ["billing", {"agents": [{"agent": "billing", "confidence": 1.5}]}, None])
def test_an_answer_that_is_no_selection_is_described(output: Any) -> None:
    read = read_selection(output)

    assert isinstance(read, tuple)
    assert "expected a JSON object with agents" in read[0]


def test_a_refused_answer_is_kept_as_text_of_bounded_length() -> None:
    assert raw_text("a" * MAX_RAW_CHARS) == "a" * MAX_RAW_CHARS
    assert len(raw_text({"long": "ä" * 2 * MAX_RAW_CHARS})) == MAX_RAW_CHARS + 3


names = st.sampled_from(("a", "b", "worker", " worker ", "", ">", "a.b", "x" * 300, "\x00", "\r\nPUB")) | st.text(
    max_size=5
)
junk = st.none() | st.booleans() | st.integers() | st.text(max_size=10) | st.lists(st.none(), max_size=2)
some_tasks = st.fixed_dictionaries(
    {"id": names | junk, "agent": names | junk},
    optional={
        "intent": st.text(max_size=10) | junk,
        "input": junk,
        "depends_on": st.lists(names, max_size=3) | junk,
        "optional_dependencies": st.lists(names, max_size=3) | junk,
        "unknown": junk,
    },
)
some_plans = st.fixed_dictionaries(
    {"tasks": st.lists(some_tasks | junk, max_size=8) | junk}, optional={"goal": junk, "cannot": junk}
)
BODIES = (compact_json(plan(task("a"), task("b", "other", needs=["a"]))), b'```json\n{"tasks": []}\n```')
steady = settings(
    max_examples=400,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def checked(output: Any) -> None:
    with at_most(0.2):
        read = read_plan(output)
        problems = read if isinstance(read, tuple) else check_plan(read, AGENTS, Limits(), {"a": True})
        read_selection(output)
        raw_text(output)
    assert all(len(problem) < 3_000 for problem in problems)
    if not problems and isinstance(read, Plan):
        assert all(each.agent in AGENTS for each in read.tasks)


@steady
@given(some_plans | junk)
def test_any_answer_is_a_plan_or_has_problems(output: Any) -> None:
    checked(output)


@steady
@given(mutated(BODIES) | st.binary(max_size=300))
def test_any_text_of_a_planner_is_parsed_quickly(body: bytes) -> None:
    with at_most(0.2):
        found = find_json(body.decode("utf-8", "replace"))

    for output in found:
        checked(output)


@pytest.mark.parametrize(
    "text",
    [
        " " * 200_000,
        "{" * 200_000,
        '{"a":' * 40_000,
        '"' * 200_000,
        "[" * 200_000,
        '{"' + "\\" * 199_999,
        "{}" * 100_000,
    ],
    ids=lambda text: text[:6],
)
def test_text_of_200_kb_is_parsed_in_little_time(text: str) -> None:
    with at_most(0.2):
        find_json(text)


def test_a_plan_of_very_many_wrong_tasks_is_refused_in_few_words() -> None:
    problems = problems_of(*(task(f"t{number}", "ghost") for number in range(20_000)))

    assert len(problems) <= 21
    assert problems[-1] == "and 19981 more problems"
