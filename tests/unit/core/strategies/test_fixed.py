"""A fixed plan runs as its author wrote it, without a planner and with inputs from the request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError
from support.core import WorkflowDriver, admission, card, cards, failure, plan, task

from pointsman.core.model.inputs import RequestReceived
from pointsman.core.replay.replayer import replay_log
from pointsman_schemas.card import Role
from pointsman_schemas.events import Request
from pointsman_schemas.log import PlanAccepted, RetryScheduled, TimerArmed
from pointsman_schemas.plan import Plan, PlannedTask
from pointsman_schemas.retry import RetryPolicy
from pointsman_schemas.strategies import Check, Fixed
from pointsman_schemas.team import Limits, Team


def step(id: str, needs: tuple[str, ...] = (), **given: Any) -> PlannedTask:
    """Return a task for the agent with the same name."""
    return PlannedTask(id=id, **{"agent": id, "intent": f"do the work of {id}", "depends_on": needs, **given})


PLAN = Plan(
    goal="Close the month",
    tasks=(step("invoices"), step("payments"), step("match", ("invoices", "payments")), step("report", ("match",))),
    final_instruction="Name the difference.",
)
NAMES = ("invoices", "payments", "match", "report")


def begun(request: str | dict[str, Any] = "close May", /, *, metadata: Any = None, **given: Any) -> WorkflowDriver:
    story = WorkflowDriver(**{"strategy": Fixed(plan=PLAN), "cards": cards(*NAMES), **given})
    return story.start(request, metadata=metadata or {})


def replayed(story: WorkflowDriver) -> bool:
    return list(replay_log(story.commits)) == []


# The run


def test_tasks_start_at_once_although_no_agent_is_live() -> None:
    story = begun(cards=())

    assert story.statuses() == {"invoices": "running", "payments": "running", "match": "waiting", "report": "waiting"}
    assert [entry.reason for entry in story.entries_of(TimerArmed)] == [""]
    assert story.entries_of(PlanAccepted)[0].plan == PLAN
    assert replayed(story)


def test_tasks_follow_their_dependencies_and_receive_the_results() -> None:
    story = begun()

    story.complete_task("payments", [2])
    assert story.statuses()["match"] == "waiting"
    story.complete_task("invoices", [1])

    assert {each.task_id: each.output for each in story.handoff("match").context} == {"invoices": [1], "payments": [2]}
    assert "report" not in [entry.task_id for entry in story.log if entry.kind == "task_dispatched"]


def test_the_answer_is_the_results_by_task() -> None:
    story = begun()

    for name in NAMES:
        story.complete_task(name, f"{name} done")

    assert story.outcome.status == "completed"
    assert story.outcome.answer == {name: f"{name} done" for name in NAMES}
    assert replayed(story)


def test_a_synthesizer_writes_the_answer_where_one_is_named() -> None:
    story = begun(strategy=Fixed(plan=PLAN, synthesizer="writer"))
    for name in NAMES:
        story.complete_task(name)

    told = story.handoff_input("synthesis")
    story.complete_task("synthesis", {"answer": "All is paid."})

    assert (told["goal"], told["final_instruction"]) == ("Close the month", "Name the difference.")
    assert (story.outcome.status, story.outcome.answer) == ("completed", "All is paid.")


def test_a_failure_skips_its_dependents_and_the_rest_is_the_answer() -> None:
    story = begun()

    story.fail_task("invoices")
    story.complete_task("payments", [2])

    assert story.statuses() == {"invoices": "failed", "payments": "succeeded", "match": "skipped", "report": "skipped"}
    assert (story.outcome.status, story.outcome.answer) == ("partial", [2])
    assert [gap.task_id for gap in story.outcome.gaps] == ["invoices", "match", "report"]
    assert replayed(story)


def test_at_the_deadline_the_existing_results_are_the_answer() -> None:
    story = begun(limits=Limits(deadline=30, task_timeout=100))
    story.complete_task("payments", [2])

    story.fire_timer()

    assert (story.outcome.status, story.outcome.answer) == ("partial", [2])
    assert story.outcome.reason == "the deadline of 30 s was reached"


def test_a_plan_above_the_quota_of_the_caller_ends_the_workflow() -> None:
    story = WorkflowDriver(strategy=Fixed(plan=PLAN), cards=cards(*NAMES)).start(budget={"tasks": 3})

    assert story.outcome.status == "failed"
    assert story.outcome.reason == "the limit of 3 tasks leaves 3, and serving the request takes 4"


def test_a_task_for_a_skill_is_held_until_an_agent_has_it() -> None:
    strategy = Fixed(plan=Plan(tasks=(step("a", agent="", skill="craft"),)))
    story = begun(strategy=strategy, cards=())
    assert story.statuses() == {"a": "held"}

    story.cards = (card("worker", skills=("craft",)),)
    story.fire_timer()

    assert (story.task("a").agent, story.statuses()["a"]) == ("worker", "running")
    assert replayed(story)


def test_a_task_may_be_tried_more_often_than_the_team_allows_others() -> None:
    tasks = (step("a", retry=RetryPolicy(attempts=4, jitter=0, factor=1)), step("b"))
    story = begun(strategy=Fixed(plan=Plan(tasks=tasks)), retry=RetryPolicy(attempts=1))

    for _ in range(3):
        story.fail_task("a", failure(retryable=True))
        story.wait(2)
    story.fail_task("b", failure(retryable=True))
    story.complete_task("a")

    assert [entry.attempt for entry in story.entries_of(RetryScheduled)] == [2, 3, 4]
    assert story.statuses() == {"a": "succeeded", "b": "failed"}


def test_tasks_may_differ_in_their_inputs_alone() -> None:
    tasks = tuple(PlannedTask(id=f"page-{number}", agent="worker", intent="Translate it") for number in (1, 2))
    story = begun({"inputs": {"page-1": "uno", "page-2": "due"}}, strategy=Fixed(plan=Plan(tasks=tasks)))

    assert inputs_of(story, "page-1", "page-2") == ["uno", "due"]


# Persons and judges


def test_a_task_waits_for_the_approval_that_its_plan_requires() -> None:
    story = begun(strategy=Fixed(plan=Plan(tasks=(step("pay", approval="required", input={"sum": 7}),))))
    assert story.statuses() == {"pay": "awaiting_answer"}

    story.control("approve", question="wf_1-q1", input={"sum": 5})

    assert story.handoff("pay").input == {"sum": 5}
    assert replayed(story)


def test_an_input_that_a_person_edits_counts_and_not_that_of_the_request() -> None:
    strategy = Fixed(plan=Plan(tasks=(step("pay", approval="required"),)))
    story = begun({"inputs": {"pay": {"sum": 7}}}, strategy=strategy)

    story.control("approve", question="wf_1-q1", input={"sum": 5})

    assert story.handoff("pay").input == {"sum": 5}


@pytest.mark.parametrize("edited", [False, True])
def test_the_whole_plan_may_wait_for_an_approval(edited: bool) -> None:
    story = WorkflowDriver(strategy=Fixed(plan=PLAN), cards=cards(*NAMES))
    team = Team(name="team", strategy=story.strategy, approve_plan=True)
    admitted = replace(admission(story.strategy, story.limits), team=team)
    story.decide_and_apply(RequestReceived(admitted, Request(input="close May")))
    assert not story.state.tasks

    story.control("approve", question="wf_1-q1", input=plan(task("only", "match")) if edited else None)

    assert list(story.statuses()) == (["only"] if edited else list(NAMES))
    assert replayed(story)


def test_a_rejected_plan_ends_the_workflow() -> None:
    story = WorkflowDriver(strategy=Fixed(plan=PLAN), cards=cards(*NAMES))
    team = Team(name="team", strategy=story.strategy, approve_plan=True)
    admitted = replace(admission(story.strategy, story.limits), team=team)
    story.decide_and_apply(RequestReceived(admitted, Request(input="close May")))

    story.control("reject", question="wf_1-q1", reason="not this month")

    assert (story.outcome.status, story.outcome.reason) == ("failed", "the plan was not allowed: not this month")


def test_the_output_of_a_task_is_checked_and_judged() -> None:
    checks = {"match": Check(fields=("difference",), judge="reviewer")}
    story = begun(strategy=Fixed(plan=PLAN, checks=checks), cards=(*cards(*NAMES), card("reviewer", role=Role.JUDGE)))
    story.complete_task("invoices")
    story.complete_task("payments")

    story.complete_task("match", {"sum": 1})
    assert story.handoff("match").feedback == "the output lacks difference, or has an empty value there"
    story.complete_task("match", {"difference": 3})
    assert story.statuses()["match"] == "in_review"
    story.complete_task("judge-match", {"verdict": "pass"})

    assert story.statuses() == {**dict.fromkeys(NAMES, "succeeded"), "report": "running"}
    assert replayed(story)


def test_contradictions_go_to_the_judge_of_the_team() -> None:
    story = begun(cards=(*cards(*NAMES), card("judge", role=Role.JUDGE)))
    for name in NAMES:
        story.complete_task(name, {"paid": name == "match"})

    assert story.handoff_input("judge")["conflicts"] == [
        "paid: invoices says no; payments says no; match says yes; report says no"
    ]
    ruling = {"description": "paid", "decision": "paid: no", "reason": "three say so"}
    story.complete_task("judge", {"decisions": [ruling]})

    assert [each.decision for each in story.outcome.conflicts] == ["paid: no"]


# The inputs of a request


def inputs_of(story: WorkflowDriver, *names: str) -> list[Any]:
    return [story.handoff(name).input for name in names]


def test_a_text_request_and_its_metadata_are_the_input_of_every_task() -> None:
    story = begun("close May", metadata={"ledger": 3})

    assert inputs_of(story, "invoices", "payments") == [{"ledger": 3, "request": "close May"}] * 2


def test_a_request_names_the_inputs_of_its_tasks() -> None:
    request = {"month": "May", "inputs": {"invoices": {"folder": "in"}, "match": "exact", "payments": None}}
    story = begun(request, metadata={"ledger": 3})

    assert inputs_of(story, "invoices", "payments") == [{"folder": "in"}, {"ledger": 3, "month": "May"}]
    story.complete_task("invoices")
    story.complete_task("payments")
    assert inputs_of(story, "match") == ["exact"]
    assert [each.input for each in story.entries_of(PlanAccepted)[0].plan.tasks] == [None] * 4
    assert replayed(story)


@pytest.mark.parametrize(
    ("planned", "given", "expected"),
    [
        ({"format": "csv", "limit": 5}, {"limit": 9}, {"format": "csv", "limit": 9}),
        ({"format": "csv"}, None, {"format": "csv"}),
        ({"format": "csv"}, "all", "all"),
        ("all", {"limit": 9}, {"limit": 9}),
    ],
)
def test_an_input_of_the_request_is_merged_with_that_of_the_plan(planned: Any, given: Any, expected: Any) -> None:
    story = begun({"inputs": {"a": given}}, strategy=Fixed(plan=Plan(tasks=(step("a", input=planned),))))

    assert inputs_of(story, "a") == [expected]
    assert replayed(story)


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        (
            {"invoices": {}, "invoice": {}, "nothing": 1},
            "the request has inputs for invoice, nothing; the tasks of the plan are invoices, payments, match, report",
        ),
        ([1], "the inputs of the request cannot be read: inputs: an object is expected"),
        ({"a b": 1}, "the inputs of the request cannot be read: inputs"),
    ],
)
def test_inputs_that_do_not_fit_the_plan_refuse_the_request(inputs: Any, reason: str) -> None:
    story = begun({"inputs": inputs})

    assert story.outcome.status == "failed"
    assert story.outcome.reason.startswith(reason)
    assert str(story.outcome.answer).startswith(f"Could not help, because {reason}")
    assert "Correct the request and publish it again under a new id." in str(story.outcome.answer)
    assert story.state.tasks == {}
    assert replayed(story)


# The definition


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"plan": Plan()}, "the plan has no tasks"),
        (
            {"plan": Plan(cannot="no way")},
            "`cannot`, `done` and `questions` are answers of a planner",
        ),
        ({"plan": Plan(tasks=(step("a"), step("a")))}, "the id 'a' is used 2 times"),
        ({"plan": Plan(tasks=(step("a", ("b",)),))}, "task 'a' depends on 'b', which is not a task of the plan"),
        ({"plan": Plan(tasks=(step("a", ("b",)), step("b", ("a",))))}, "wait for each other in a circle: a, b"),
        ({"plan": Plan(tasks=(step("a b"),))}, "the task id is 'a b'"),
        ({"plan": Plan(tasks=(step("a", intent=" "),))}, "say in a sentence what the agent is to do"),
        ({"plan": Plan(tasks=(step("a", agent="the desk"),))}, "names the agent 'the desk', which does not match"),
        ({"plan": Plan(tasks=(step("a", skill="craft"),))}, "an agent, or a skill that its agent must have: give one"),
        ({"plan": PLAN, "checks": {"matches": Check()}}, "the checks name matches, which the plan does not have"),
    ],
)
def test_a_plan_that_cannot_run_is_refused_where_it_is_defined(given: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Fixed(**given)

    assert "the fixed plan cannot run: " in str(refused.value)
    assert fault in str(refused.value)


@pytest.mark.parametrize(
    ("limits", "fault"),
    [
        (Limits(tasks=3), "the plan has 4 tasks; at most 3 are allowed"),
        (Limits(depth=2), "the longest chain of tasks has 3 links; at most 2 are allowed"),
    ],
)
def test_a_plan_above_the_limits_is_refused_where_its_team_is_defined(limits: Limits, fault: str) -> None:
    with pytest.raises(ValidationError, match=f"the limits do not allow the fixed plan: {fault}"):
        Team(name="month", strategy=Fixed(plan=PLAN), limits=limits)


def test_a_team_with_a_fixed_plan_needs_the_agents_of_its_plan() -> None:
    tasks = (step("a", agent="", skill="craft"), step("b"))
    checks = {"a": Check(judge="reviewer")}
    team = Team(name="t", strategy=Fixed(plan=Plan(tasks=tasks), checks=checks, synthesizer="writer"))

    assert team.required_agents() == {"reviewer": "judges", "b": "works", "writer": "synthesizes"}
    assert team.required_skills() == ("craft",)
    assert Team.model_validate_json(team.model_dump_json()) == team
