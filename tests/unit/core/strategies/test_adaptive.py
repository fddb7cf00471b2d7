"""An adaptive planner gets every result and plans the next step. It is stopped if it repeats a step."""

from __future__ import annotations

from typing import Any

from support.core import WorkflowDriver, cards, failure, plan, task

from pointsman_schemas.log import LimitReached, PlanAccepted, PlanRejected
from pointsman_schemas.team import Adaptive, Limits

CREW = cards("code", "ops", "comms")
DONE = plan(done=True)


def begun(*first: dict[str, Any], strategy: Adaptive | None = None, **given: Any) -> WorkflowDriver:
    story = WorkflowDriver(strategy=strategy or Adaptive(), cards=CREW, **given).start("find the bug")
    story.complete_task("plan-1", plan(*first))
    return story


def test_the_first_plan_is_asked_for_step_by_step() -> None:
    story = WorkflowDriver(strategy=Adaptive(max_plans=5), cards=CREW).start()

    assert (story.handoff_input("plan-1")["adaptive"], story.handoff_input("plan-1")["remaining_plans"]) == (True, 4)


def test_planner_gets_the_task_the_agents_used_the_results_and_the_rest() -> None:
    story = begun(task("t1", "code", intent="find the bug"), strategy=Adaptive(max_plans=5))
    story.wait(10)

    story.complete_task("t1", "there is no bug", replan_hint="it looks like configuration")

    given = story.handoff_input("plan-2")
    assert given["request"] == "find the bug"
    assert given["agents_used"] == ["code"]
    assert [(each["task_id"], each["output"]) for each in given["results"]] == [("t1", "there is no bug")]
    assert {item["name"] for item in given["agents"]} - set(given["agents_used"]) == {"ops", "comms"}
    assert given["replan_reason"] == "code suggests a new plan: it looks like configuration"
    assert (given["remaining_plans"], given["remaining_limits"]["seconds"]) == (3, 590)


def test_plan_changes_with_results_until_the_planner_is_done() -> None:
    story = begun(task("t1", "code"))
    story.complete_task("t1", "no bug")
    story.complete_task("plan-2", plan(task("t2", "ops", needs=["t1"])))
    story.complete_task("t2", "the limit was too low")

    story.complete_task("plan-3", DONE)

    assert [report.task_id for report in story.handoff("synthesis").context] == ["t1", "t2"]
    story.complete_task("synthesis", {"answer": "it was the limit"})
    assert (story.outcome.status, story.outcome.answer) == ("completed", "it was the limit")
    assert [len(entry.plan.tasks) for entry in story.entries_of(PlanAccepted)] == [1, 1, 0]


def test_failing_planner_keeps_open_approvals() -> None:
    story = begun(task("t1", "code"), task("t2", "ops"))
    story.decide_and_apply(
        story.result(
            "t1", error=failure("needs_answer"), questions=[{"tool": "restart", "arguments": {"host": "web-1"}}]
        )
    )
    story.complete_task("t2", "the limit was too low")

    story.fail_task("plan-2")
    assert (bool(story.state.reached_limit), story.statuses()["t1"]) == (True, "awaiting_answer")
    story.control("approve", question="wf_1-q1")

    assert story.statuses()["t1"] == "running"


def test_a_failure_is_a_result_too() -> None:
    story = begun(task("t1", "code"))

    story.fail_task("t1")

    assert story.handoff_input("plan-2")["results"][0]["error"]["kind"] == "provider_error"


def test_tasks_that_have_not_started_give_way_to_the_new_plan() -> None:
    story = begun(task("t1", "code"), task("t2", "comms", needs=["t1"]))
    story.complete_task("t1", "no bug")

    assert story.statuses() == {"t1": "succeeded", "t2": "waiting"}
    story.complete_task("plan-2", plan(task("t3", "ops")))
    assert story.statuses() == {"t1": "succeeded", "t3": "running"}


def test_without_a_better_plan_the_rest_of_the_last_one_is_done() -> None:
    story = begun(
        task("t1", "code"), task("t2", "comms", needs=["t1"]), strategy=Adaptive(max_plans=1, synthesizer=None)
    )

    story.complete_task("t1", "one")
    assert story.statuses() == {"t1": "succeeded", "t2": "running"}
    story.complete_task("t2", "two")

    assert story.outcome.reason.startswith("the limit of 1 plans was reached")


def test_event_during_planning_is_in_the_next_prompt() -> None:
    story = begun(task("t1", "code"), task("t2", "comms"))
    story.complete_task("t1", "one")

    story.complete_task("t2", "two")
    story.complete_task("plan-2", plan(task("t3", "ops")))

    assert [each["task_id"] for each in story.handoff_input("plan-3")["results"]] == ["t1", "t2"]


def test_running_task_may_finish_after_the_planner_is_done() -> None:
    story = begun(task("t1", "code"), task("t2", "comms"), strategy=Adaptive(synthesizer=None))
    story.complete_task("t1", "one")

    story.complete_task("plan-2", DONE)
    assert story.statuses() == {"t1": "succeeded", "t2": "running"}
    story.complete_task("t2", "two")

    assert (story.outcome.status, story.outcome.answer) == ("completed", {"t1": "one", "t2": "two"})


def test_planner_that_is_done_at_once_is_told_that_nothing_was_done() -> None:
    story = WorkflowDriver(strategy=Adaptive(), cards=CREW).start()

    story.complete_task("plan-1", DONE)

    assert "the plan has no tasks" in story.handoff_input("plan-2")["problems"][0]


def test_repeated_plan_is_refused_and_a_circling_planner_ends_the_work() -> None:
    story = begun(task("t1", "code", intent="find the bug"), limits=Limits(plan_repairs=1))
    story.complete_task("t1", "no bug")

    story.complete_task("plan-2", plan(task("t2", "code", intent="find the bug")))
    assert "repeats tasks that were tried before" in story.handoff_input("plan-3")["problems"][0]
    story.complete_task("plan-3", plan(task("t3", "code", intent="find the bug")))

    assert len(story.entries_of(PlanRejected)) == 2
    assert story.handoff_input("synthesis")["limit"].startswith("no valid plan after 2 tries")
    story.complete_task("synthesis", {"answer": "no bug was found"})
    assert story.outcome.status == "partial"


def test_plans_are_counted_and_the_outcome_names_the_limit() -> None:
    story = begun(task("t1", "code"), strategy=Adaptive(max_plans=2, synthesizer=None))
    story.complete_task("t1", "one")
    story.complete_task("plan-2", plan(task("t2", "ops")))

    story.complete_task("t2", "two")

    assert story.entries_of(LimitReached)[0].limit == "plans"
    assert story.outcome.status == "partial"
    assert story.outcome.reason == "the limit of 2 plans was reached before the planner had finished"
    assert story.outcome.answer == {"t1": "one", "t2": "two"}


def test_planner_gets_its_remaining_plans_without_counting_repairs() -> None:
    story, left = WorkflowDriver(strategy=Adaptive(max_plans=3), cards=CREW).start(), []

    left.append(story.handoff_input("plan-1")["remaining_plans"])
    story.complete_task("plan-1", plan(task("t1", "code")))
    story.complete_task("t1", "one")
    left.append(story.handoff_input("plan-2")["remaining_plans"])
    story.complete_task("plan-2", "no idea")
    left.append(story.handoff_input("plan-3")["remaining_plans"])
    story.complete_task("plan-3", plan(task("t2", "ops")))
    story.complete_task("t2", "two")
    left.append(story.handoff_input("plan-4")["remaining_plans"])
    story.complete_task("plan-4", plan(task("t3", "comms")))
    story.complete_task("t3", "three")

    assert left == [2, 1, 1, 0]
    assert story.entries_of(LimitReached)[0].limit == "plans"


def test_running_task_may_finish_after_the_planner_fails() -> None:
    story = begun(task("t1", "code"), task("t2", "comms"), strategy=Adaptive(synthesizer=None))
    story.complete_task("t1", "one")

    story.fail_task("plan-2", failure())
    story.complete_task("t2", "two")

    assert (story.outcome.status, story.outcome.answer) == ("partial", {"t1": "one", "t2": "two"})
    assert "plan-3" not in story.state.tasks


def test_planner_out_of_tasks_is_done_while_others_run() -> None:
    story = begun(task("t1", "code"), task("t2", "comms"), strategy=Adaptive(synthesizer=None))
    story.complete_task("t1", "one")

    story.complete_task("plan-2", plan(cannot="nobody here could do more"))
    story.complete_task("t2", "two")

    assert (story.outcome.status, story.outcome.answer) == ("completed", {"t1": "one", "t2": "two"})


def test_replan_hint_is_passed_once() -> None:
    story = begun(task("t1", "code"))
    story.complete_task("t1", "no bug", replan_hint="it looks like configuration")
    story.complete_task("plan-2", plan(task("t2", "ops")))

    story.complete_task("t2", "done", replan_hint="tell the others")

    assert story.handoff_input("plan-3")["replan_reason"] == "ops suggests a new plan: tell the others"


def test_planner_that_fails_later_leaves_a_partial_outcome() -> None:
    story = begun(task("t1", "code"), strategy=Adaptive(synthesizer=None))
    story.complete_task("t1", "one")

    story.fail_task("plan-2", failure())

    assert story.outcome.status == "partial"
    assert story.outcome.reason == "planner could not plan: provider_error was seen"


def test_planner_without_a_task_left_is_not_asked_again() -> None:
    story = begun(task("t1", "code"), task("t2", "ops"), limits=Limits(tasks=2))
    story.complete_task("t1")
    story.complete_task("t2")

    assert [each for each in story.state.tasks if each.startswith("plan")] == ["plan-1"]
    story.complete_task("synthesis", {"answer": "half of it"})
    assert (story.outcome.status, story.outcome.reason) == (
        "partial",
        "the limit of 2 tasks was reached before the planner had finished",
    )
