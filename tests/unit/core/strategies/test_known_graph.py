"""A known graph has conditions, lists of items, fields from results, and requests with a schema."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel, ValidationError
from support.core import WorkflowDriver, card, cards, failure, plan, task

from pointsman.core.replay.replayer import replay_log
from pointsman.core.views.timeline import Timeline
from pointsman.core.views.trace import build_trace
from pointsman_schemas.events import DeadLetter
from pointsman_schemas.log import PlanRejected, TaskDispatched, TaskExpanded, TaskSkipped
from pointsman_schemas.plan import ForEach, Plan, PlannedTask
from pointsman_schemas.retry import RetryPolicy
from pointsman_schemas.strategies import Check, Fixed
from pointsman_schemas.team import Limits, Team


def step(id: str, needs: tuple[str, ...] = (), **given: Any) -> PlannedTask:
    """Return a task for the agent with the same name."""
    return PlannedTask(id=id, **{"agent": id, "intent": f"do the work of {id}", "depends_on": needs, **given})


def begun(*tasks: PlannedTask, request: str | dict[str, Any] = "close May", **given: Any) -> WorkflowDriver:
    fixed = Fixed(plan=Plan(tasks=tasks), **{name: given.pop(name) for name in ("checks",) if name in given})
    live = cards(*(each.agent for each in tasks if each.agent))
    story = WorkflowDriver(**{"strategy": fixed, "cards": live, **given})
    return story.start(request)


def replayed(story: WorkflowDriver) -> bool:
    return list(replay_log(story.commits)) == []


# Conditions

BRANCHES = (
    step("read"),
    step("refund", ("read",), when="read.kind == 'refund'"),
    step("invoice", ("read",), when="read.kind == 'invoice' and request.amount > 100"),
    step("file", ("invoice",)),
    step("report", ("read",), optional_dependencies=("refund", "invoice")),
)


def test_a_false_condition_skips_a_task_and_what_needs_it_without_a_gap() -> None:
    story = begun(*BRANCHES, request={"amount": 50})

    story.complete_task("read", {"kind": "refund"})
    story.complete_task("refund", "paid back")
    story.complete_task("report", "all done")

    assert story.statuses() == {
        "read": "succeeded", "refund": "succeeded", "invoice": "skipped", "file": "skipped", "report": "succeeded",
    }  # fmt: skip
    why = "its condition is false: read.kind == 'invoice' and request.amount > 100 (read.kind is \"refund\", "
    assert [(each.task_id, each.unmet_dependency, each.intended) for each in story.entries_of(TaskSkipped)] == [
        ("invoice", None, True),
        ("file", "invoice", True),
    ]
    assert story.entries_of(TaskSkipped)[0].reason == f"{why}request.amount is 50)"
    assert (story.outcome.status, story.outcome.gaps) == ("completed", ())
    reasons = {each.task_id: each.reason for each in story.outcome.tasks if each.reason}
    assert reasons["invoice"].startswith(why)
    assert reasons["file"].startswith("it needs invoice, which was skipped: its condition is false")
    assert replayed(story)


def test_the_branch_whose_condition_holds_is_taken() -> None:
    story = begun(*BRANCHES, request={"amount": 500})

    story.complete_task("read", {"kind": "invoice"})

    assert story.statuses()["invoice"] == "running"
    assert story.statuses()["refund"] == "skipped"
    assert story.statuses()["report"] == "waiting"


def test_a_workflow_whose_conditions_skip_everything_is_complete() -> None:
    story = begun(step("a", when="request.amount > 1"), step("b", ("a",)), request={"amount": 1})

    assert (story.outcome.status, story.outcome.answer, story.outcome.gaps) == ("completed", {}, ())
    assert story.outcome.reason == "the conditions of the plan skipped every task"


def test_a_condition_on_a_dependency_that_failed_reads_null() -> None:
    story = begun(step("a"), step("b", optional_dependencies=("a",), when="a.total == null"), step("c", ("a",)))

    story.fail_task("a")

    assert story.statuses() == {"a": "failed", "b": "running", "c": "skipped"}
    assert [entry.intended for entry in story.entries_of(TaskSkipped)] == [False]


def test_a_replayed_dependency_has_the_condition_read_again() -> None:
    story = begun(step("a"), step("b", ("a",), when="a.total > 3"), step("x"))
    story.fail_task("a")
    assert story.statuses()["b"] == "skipped"

    story.control("replay", task_id="a")
    story.complete_task("a", {"total": 4})

    assert story.statuses() == {"a": "succeeded", "b": "running", "x": "running"}
    assert replayed(story)


# Lists

LIST = (
    step("find"),
    step("check", ("find",), for_each=ForEach(items="find.invoices", min_success_ratio=0.5)),
    step("sum", ("check",)),
)


def test_each_item_is_a_task_and_the_results_come_back_in_order() -> None:
    story = begun(*LIST)

    story.complete_task("find", {"invoices": [{"id": 7}, {"id": 8}, {"id": 9}]})
    assert story.statuses()["check"] == "expanded"
    assert [story.handoff_input(f"check-{n}") for n in (1, 2, 3)] == [{"id": 7}, {"id": 8}, {"id": 9}]
    assert story.handoff("check-2").context == ()
    for name in ("check-3", "check-1", "check-2"):
        story.complete_task(name, f"{name} ok")

    told = story.handoff("sum").context
    assert [(each.task_id, each.output) for each in told] == [("check", ["check-1 ok", "check-2 ok", "check-3 ok"])]
    story.complete_task("sum", 3)
    assert story.outcome.status == "completed"
    assert story.outcome.answer == {
        "find": {"invoices": [{"id": 7}, {"id": 8}, {"id": 9}]},
        "check": ["check-1 ok", "check-2 ok", "check-3 ok"],
        "sum": 3,
    }
    assert replayed(story)


def test_items_are_retried_and_a_failed_item_is_a_gap() -> None:
    story = begun(*LIST, retry=RetryPolicy(attempts=2, jitter=0))
    story.complete_task("find", {"invoices": [1, 2]})

    story.fail_task("check-1", failure(retryable=True))
    story.wait(2)
    story.complete_task("check-1", "one")
    story.fail_task("check-2")
    story.complete_task("sum", 1)

    assert story.outcome.answer == {"find": {"invoices": [1, 2]}, "check": ["one", None], "sum": 1}
    assert story.outcome.status == "partial"
    assert [gap.task_id for gap in story.outcome.gaps] == ["check-2"]
    assert replayed(story)


def test_too_few_items_fail_the_task_and_a_replayed_item_mends_it() -> None:
    story = begun(step("find"), step("check", ("find",), for_each="find"), step("sum", ("check",)), step("x"))
    story.complete_task("find", [1, 2])
    story.complete_task("check-1", "one")

    story.fail_task("check-2")
    error = story.task("check").error
    assert error is not None
    assert error.message == "1 of 2 items succeeded; at least 2 are required: provider_error was seen"
    assert story.statuses() == {
        "find": "succeeded", "check": "failed", "sum": "skipped", "x": "running",
        "check-1": "succeeded", "check-2": "failed",
    }  # fmt: skip
    story.control("replay", task_id="check", event_id="other")  # a list task has no attempt that could be replayed
    assert story.statuses()["check"] == "failed"
    story.control("replay", task_id="check-2")
    assert (story.statuses()["check"], story.statuses()["sum"]) == ("expanded", "waiting")
    story.complete_task("check-2", "two")
    story.complete_task("sum", 2)
    story.complete_task("x", "x")

    assert story.outcome.status == "completed"
    assert story.outcome.answer == {"find": [1, 2], "check": ["one", "two"], "sum": 2, "x": "x"}
    assert replayed(story)


def test_the_dead_letters_are_those_of_the_items() -> None:
    from support.core import messages

    story = begun(step("find"), step("check", ("find",), for_each="find"), step("x"))
    story.complete_task("find", [1, 2])
    story.complete_task("check-1", "one")
    story.fail_task("check-2")

    letters = [each.event.task_id for each in messages(story.state) if isinstance(each.event, DeadLetter)]
    assert letters == ["check-2"]


def test_an_empty_list_succeeds_at_once() -> None:
    story = begun(*LIST)

    story.complete_task("find", {"invoices": []})

    assert story.task("check").result is not None
    assert [each.output for each in story.handoff("sum").context] == [[]]
    assert replayed(story)


@pytest.mark.parametrize(
    ("found", "limits", "message"),
    [
        ({"bills": []}, Limits(), "find.invoices is missing; a list was expected"),
        ({"invoices": "seven"}, Limits(), "find.invoices is a text; a list was expected"),
        ({"invoices": [1] * 101}, Limits(), "find.invoices has 101 items; at most 100 are allowed (`max_items`)"),
        ({"invoices": [1] * 9}, Limits(tasks=10), "find.invoices has 9 items; the limit of 10 tasks leaves 7"),
    ],
)
def test_another_value_or_a_long_list_fails_the_task(found: Any, limits: Limits, message: str) -> None:
    story = begun(*LIST, limits=limits)

    story.complete_task("find", found)

    assert story.outcome.status == "partial"
    assert story.outcome.gaps[0].reason == message
    assert story.statuses() == {"find": "succeeded", "check": "failed", "sum": "skipped"}
    assert replayed(story)


def test_a_list_may_come_from_the_request_and_its_items_join_the_plans_input() -> None:
    each = step("translate", for_each="request.pages", input={"to": "no"})
    story = begun(each, request={"pages": [{"text": "one"}, "two"]})

    assert story.handoff_input("translate-1") == {"to": "no", "text": "one"}
    assert story.handoff_input("translate-2") == {"to": "no", "item": "two"}


def test_cancelling_ends_the_items_and_their_task() -> None:
    story = begun(*LIST)
    story.complete_task("find", {"invoices": [1, 2]})
    story.complete_task("check-1", "one")

    story.control("cancel")

    assert story.outcome.status == "cancelled"
    assert story.statuses() == {
        "find": "succeeded", "check": "abandoned", "sum": "abandoned",
        "check-1": "succeeded", "check-2": "abandoned",
    }  # fmt: skip
    assert replayed(story)


def test_the_deadline_keeps_the_results_of_the_items() -> None:
    story = begun(*LIST, limits=Limits(deadline=30, task_timeout=100))
    story.complete_task("find", {"invoices": [1, 2]})
    story.complete_task("check-1", "one")

    story.fire_timer()

    assert story.outcome.status == "partial"
    assert story.outcome.answer == {"find": {"invoices": [1, 2]}, "check-1": "one"}
    assert [gap.task_id for gap in story.outcome.gaps] == ["check", "sum", "check-2"]


def test_a_person_allows_each_item_and_may_change_its_input() -> None:
    story = begun(step("pay", for_each="request.bills", approval="required"), request={"bills": [10, 20]})
    first, second = story.state.questions

    story.control("approve", question=first, event_id="one", input=11)
    story.control("reject", question=second, event_id="two")

    assert story.handoff("pay-1").input == 11
    assert story.statuses() == {"pay": "expanded", "pay-1": "running", "pay-2": "failed"}
    assert replayed(story)


def test_the_check_of_a_task_holds_for_each_item() -> None:
    story = begun(*LIST, checks={"check": Check(fields=("total",))}, retry=RetryPolicy(attempts=1))
    story.complete_task("find", {"invoices": [1, 2]})

    story.complete_task("check-1", {"sum": 1})
    story.complete_task("check-2", {"total": 1})

    assert story.statuses()["check-1"] == "failed"
    assert story.task("check").result is not None


def test_items_for_a_skill_are_spread_over_its_agents() -> None:
    each = step("page", agent="", skill="translation", for_each="request.pages")
    able = (card("careful", skills=("translation",)), card("hasty", skills=("translation",)))
    story = begun(each, request={"pages": [1, 2, 3, 4]}, cards=able)

    assert sorted(entry.agent for entry in story.entries_of(TaskDispatched)) == ["careful"] * 2 + ["hasty"] * 2


def test_equal_results_of_items_are_no_contradiction() -> None:
    fixed = Fixed(plan=Plan(tasks=LIST[:2]), synthesizer="writer")
    story = WorkflowDriver(strategy=fixed, cards=cards("find", "check", "judge", "writer")).start()
    story.complete_task("find", {"invoices": [1, 2]})

    story.complete_task("check-1", {"verdict": "yes"})
    story.complete_task("check-2", {"verdict": "no"})

    assert "conflicts" not in story.handoff_input("synthesis")
    assert [each.task_id for each in story.handoff("synthesis").context] == ["find", "check"]


@pytest.mark.parametrize("ratio", [0.5, 1.0])
def test_a_resumed_list_does_its_missing_items_again(ratio: float) -> None:
    whole = step("check", ("find",), for_each=ForEach(items="find", min_success_ratio=ratio))
    story = begun(step("find"), whole, step("sum", ("check",)))
    story.complete_task("find", [1, 2])
    story.complete_task("check-1", "one")
    story.fail_task("check-2")
    if ratio < 1:
        story.complete_task("sum", 1)
    assert story.outcome.status == "partial"

    story.control("resume")
    assert story.statuses()["check"] == "expanded"
    assert [story.statuses()[name] for name in ("check-1", "check-2")] == ["succeeded", "running"]
    story.complete_task("check-2", "two")
    if ratio == 1:
        story.complete_task("sum", 2)

    assert (story.outcome.status, story.outcome.gaps) == ("completed", ())
    assert story.outcome.answer == {"find": [1, 2], "check": ["one", "two"], "sum": 1 if ratio < 1 else 2}
    assert replayed(story)


def test_a_resumed_workflow_reads_its_conditions_again() -> None:
    story = begun(step("a"), step("b", ("a",), when="a.total > 3"), step("c", when="request.none"), request={"x": 1})
    story.fail_task("a")
    assert story.outcome.status == "failed"

    story.control("resume")
    story.complete_task("a", {"total": 4})
    story.complete_task("b", "done")

    assert story.statuses() == {"a": "succeeded", "b": "succeeded", "c": "skipped"}
    assert (story.outcome.status, story.outcome.gaps) == ("completed", ())
    assert replayed(story)


def test_lists_are_shown_with_their_items() -> None:
    story = begun(*BRANCHES[:3], *(step("find"), step("check", ("find",), for_each="find")), request={"amount": 50})
    story.complete_task("find", [1, 2])
    story.complete_task("read", {"kind": "none"})
    story.complete_task("check-1", "one")
    view = Timeline()
    lines = [f"{line.actor} {line.text} {line.detail}" for line in map(view.render, story.log)]

    tree = build_trace(story.log).children[0]

    assert "check gets check for 2 items" in lines
    assert any(line.startswith("refund has refund skipped: its condition is false") for line in lines)
    nodes = {node.task_id: (node.status, node.item_of, node.detail) for node in tree.children}
    assert nodes["check"] == ("expanded", None, "2 items")
    assert nodes["check-2"][1] == "check"
    assert nodes["refund"][0] == "skipped"
    assert nodes["refund"][2].startswith("its condition is false: read.kind == 'refund'")


# Fields


def test_a_task_takes_fields_from_the_request_and_from_results() -> None:
    fields = {"rows": "find.invoices", "first": "find.invoices.0.id", "country": "request.country", "none": "find.x"}
    story = begun(
        step("find"), step("match", ("find",), input={"mode": "strict"}, input_from=fields), request={"country": "NO"}
    )

    story.complete_task("find", {"invoices": [{"id": 7}]})

    expected = {"mode": "strict", "rows": [{"id": 7}], "first": 7, "country": "NO", "none": None}
    assert story.handoff_input("match") == expected
    assert replayed(story)


def test_an_item_is_a_field_where_the_author_says_so() -> None:
    fields = {"bill": "item", "id": "item.id", "rate": "request.rate"}
    story = begun(step("pay", for_each="request.bills", input_from=fields), request={"bills": [{"id": 1}], "rate": 2})

    assert story.handoff_input("pay-1") == {"bill": {"id": 1}, "id": 1, "rate": 2}


# Definition


class Closing(BaseModel):
    country: Literal["NO", "SE"]
    bills: list[int] = []


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ((step("a", when="b.x > 1"), step("b")), "task 'a' reads b.x in `when`, and does not depend on 'b'"),
        ((step("a", for_each="b.rows"), step("b")), "task 'a' reads b.rows in `for_each`, and does not depend on 'b'"),
        ((step("a", for_each="item.rows"),), "task 'a' names 'item' in `for_each`"),
        ((step("a", input_from={"x": "item.rows"}),), "names 'item' in `input_from`, and has no `for_each`"),
        ((step("a", input="text", input_from={"x": "request.bills"}),), "its input is not an object"),
        ((step("a", when="request.amount > 1"),), "reads request.amount in `when`; the request has bills, country"),
    ],
)
def test_a_graph_that_cannot_run_is_refused_when_it_is_defined(tasks: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Fixed(plan=Plan(tasks=tasks), input_schema=Closing.model_json_schema())


@pytest.mark.parametrize("given", [{"when": "a.x >"}, {"for_each": "a rows"}, {"input_from": {"x": "a[0]"}}])
def test_an_expression_that_cannot_be_read_is_refused(given: Any) -> None:
    with pytest.raises(ValidationError, match=r"the condition|is not a path"):
        step("b", ("a",), **given)


@pytest.mark.parametrize(
    ("request_input", "problem"),
    [
        ("close May", "the request is a text; an object with the fields of the team's input schema is expected"),
        ({"country": "DK"}, "does not match the input schema of team: $.country: 'DK' is not one of ['NO', 'SE']"),
        ({}, "does not match the input schema of team: $: 'country' is a required property"),
    ],
)
def test_a_request_that_does_not_match_the_schema_fails_at_once(request_input: Any, problem: str) -> None:
    fixed = Fixed(plan=Plan(tasks=(step("a"),)), input_schema=Closing.model_json_schema())
    story = WorkflowDriver(strategy=fixed, cards=cards("a")).start(request_input or {"other": 1})

    assert story.outcome.status == "failed"
    assert story.outcome.reason.endswith(problem)
    assert not story.entries_of(TaskDispatched)


def test_a_request_that_matches_the_schema_runs_and_may_name_inputs_of_tasks() -> None:
    fixed = Fixed(plan=Plan(tasks=(step("a"), step("b"))), input_schema=Closing.model_json_schema())
    story = WorkflowDriver(strategy=fixed, cards=cards("a", "b")).start({"country": "NO", "inputs": {"a": 3}})

    assert (story.handoff("a").input, story.handoff("b").input) == (3, {"country": "NO"})
    assert Team.model_validate_json(Team(name="t", strategy=fixed).model_dump_json()).strategy == fixed


def test_a_planner_may_not_write_expressions() -> None:
    story = WorkflowDriver().start()

    story.complete_task("plan-1", plan({**task("t1"), "for_each": {"items": "request.rows"}}))

    assert story.entries_of(PlanRejected)[0].problems == (
        "task 't1' has `when`, `for_each` or `input_from`, which a planner may not use",
    )
    assert not story.entries_of(TaskExpanded)
