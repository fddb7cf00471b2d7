"""An invalid plan is returned with the reasons, a bounded number of times. Limits allow or forbid another plan."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic import JsonValue
from support.core import T0, WorkflowDriver, admission, card, cards, failure, messages, plan, task

from pointsman.core.decision import Decision, DecisionContext
from pointsman.core.model.agent_health import Circuit
from pointsman.core.model.inputs import RequestReceived, RequestRefused
from pointsman.core.planning.role_tasks import available_agents
from pointsman.core.tasks.handoff_input import task_report
from pointsman_schemas.card import Role
from pointsman_schemas.events import AttemptError, DeadLetter, Request
from pointsman_schemas.log import PlanAccepted, PlanRejected, TaskFailed
from pointsman_schemas.team import Limits, PlanAndExecute, RetryPolicy, Router


def asked(story: WorkflowDriver, task_id: str) -> Any:
    """Return the input of the planner."""
    return story.handoff(task_id).input


# The first plan


def test_a_request_is_planned_by_an_agent_that_knows_the_menu() -> None:
    story = WorkflowDriver(cards=(*cards("worker", "other"), card("planner", role=Role.PLAN))).start({"topic": "tides"})

    given = asked(story, "plan-1")

    assert given["request"] == {"topic": "tides"}
    assert [item["name"] for item in given["agents"]] == ["worker", "other"]
    assert story.kinds() == ["workflow_started", "task_added", "task_dispatched", "timer_armed"]


def test_planner_and_classifier_get_descriptions_and_schemas_of_agents() -> None:
    schema: dict[str, JsonValue] = {"type": "object", "properties": {"port": {"type": "string"}}, "required": ["port"]}
    tides = card(
        "tides", skills=("water",), intents=("ask_tides",), examples=("High water at noon?",), input_schema=schema
    )

    planner = asked(WorkflowDriver(cards=(tides,)).start(), "plan-1")
    classifier = asked(WorkflowDriver(cards=(tides,), strategy=Router()).start(), "classify-1")

    (item,) = planner["agents"]
    assert item["description"] == "does what tides does"
    assert (item["skills"], item["intents"], item["examples"]) == (["water"], ["ask_tides"], ["High water at noon?"])
    assert item["input_schema"] == schema
    assert classifier["agents"] == [item]


def test_planner_gets_metadata_instructions_and_the_task_limit() -> None:
    story = WorkflowDriver(strategy=PlanAndExecute(instructions="Ask the tides first."), limits=Limits(tasks=7))

    given = asked(story.start(metadata={"customer": "C-1"}), "plan-1")

    assert given["metadata"] == {"customer": "C-1"}
    assert given["instructions"] == "Ask the tides first."
    assert given["max_tasks"] == 7


def test_planner_is_told_which_agents_keep_failing() -> None:
    circuits = {"other": Circuit(since=T0, until=T0 + timedelta(seconds=10))}

    items = asked(WorkflowDriver(circuits=circuits).start(), "plan-1")["agents"]

    assert {item["name"]: item.get("note") for item in items} == {
        "worker": None,
        "other": "The agent keeps failing, and its tasks wait: choose another agent if possible.",
    }


def test_each_role_is_played_by_the_agent_the_team_names() -> None:
    named = {role: card(f"own-{role}", role=role) for role in (Role.PLAN, Role.SYNTHESIZE, Role.REFINE, Role.JUDGE)}
    story = WorkflowDriver(
        cards=(*cards("worker", "other"), *named.values()),
        strategy=PlanAndExecute(planner="own-plan", synthesizer="own-synthesize"),
        refiner="own-refine",
        judge="own-judge",
    )

    story.planned(task("t1"), task("t2", "other"))
    story.fail_task("t1", failure(retryable=True))
    story.fail_task("t1", failure(retryable=True))
    story.complete_task(story.task("t1").refined_by, {"intent": "do it better"})
    story.complete_task("t1", {"due": "Monday"})
    story.complete_task("t2", {"due": "Friday"})
    story.complete_task(
        "judge", {"decisions": [{"description": "due", "decision": "Friday", "reason": "it was looked up"}]}
    )
    story.complete_task("synthesis", {"answer": "on Friday"})
    routed = WorkflowDriver(strategy=Router(classifier="own-classify")).start()

    played = {each.role: each.agent for each in story.state.tasks.values() if each.role is not Role.WORK}
    assert played == {role: each.name for role, each in named.items()}
    assert routed.handoff("classify-1").to_agent == "own-classify"


def test_the_menu_holds_only_the_agents_of_the_team() -> None:
    story = WorkflowDriver(agents=("other",)).start()

    assert [item["name"] for item in asked(story, "plan-1")["agents"]] == ["other"]
    story.complete_task("plan-1", plan(task("a", "worker")))
    assert "'worker', which is not one of: other" in story.entries_of(PlanRejected)[0].problems[0]


def test_the_same_request_again_changes_nothing() -> None:
    story = WorkflowDriver().start()

    assert story.decide_and_apply(RequestReceived(admission(PlanAndExecute(), Limits()), Request(input="do it"))) == ()


def test_a_request_that_cannot_be_read_gets_an_outcome_that_reports_the_reason() -> None:
    story = WorkflowDriver()

    story.decide_and_apply(
        RequestRefused(admission(PlanAndExecute(), Limits()), AttemptError(kind="undecodable", message="not JSON"))
    )

    assert story.outcome.status == "failed"
    assert story.outcome.reason == "the request could not be read: not JSON"
    assert "Correct the request" in str(story.outcome.answer)


def test_a_planner_that_finds_no_plan_ends_the_workflow_with_its_reason() -> None:
    story = WorkflowDriver().start()

    story.complete_task("plan-1", {"tasks": [], "cannot": "nobody here cooks"})

    assert (story.outcome.status, story.outcome.reason) == ("failed", "nobody here cooks")


def test_a_refused_plan_goes_back_with_every_reason() -> None:
    story = WorkflowDriver().start()

    story.complete_task("plan-1", plan(task("a", "ghost"), task("b", intent=" ")))

    assert asked(story, "plan-2")["problems"] == list(story.entries_of(PlanRejected)[0].problems)
    assert len(asked(story, "plan-2")["problems"]) == 2
    story.complete_task("plan-2", plan(task("a")))
    assert story.statuses() == {"a": "running"}


def test_faults_of_form_and_of_content_go_back_together() -> None:
    story = WorkflowDriver().start()

    story.complete_task(
        "plan-1",
        {
            "tasks": [
                {"id": "a", "agent": "worker"},
                {"id": "b", "agent": "ghost", "intent": "b", "depends_on": ["a", "nowhere"]},
                {"id": "c", "agent": "worker", "intent": "c", "dependencies": ["b"]},
                {"id": 4, "agent": [], "intent": None},
                {"id": "e", "agent": "worker", "intent": "e", "depends_on": ["f"]},
                {"id": "f", "agent": "worker", "intent": "f", "depends_on": ["e"]},
            ]
        },
    )

    problems = "\n".join(asked(story, "plan-2")["problems"])
    for part in (
        "tasks.2.dependencies has no 'dependencies'; did you mean depends_on?",
        "tasks.0.intent: Field required",
        "tasks.3.id: ",
        "tasks.3.agent: ",
        "tasks.3.intent: ",
        "names the agent 'ghost'",
        "depends on 'nowhere', which is not a task",
        "wait for each other in a circle: e, f",
    ):
        assert part in problems, part
    assert "depends on 'a'" not in problems  # an unreadable task is still in the plan


def test_a_plan_with_an_intent_of_one_word_is_accepted() -> None:
    story = WorkflowDriver().start()

    story.complete_task("plan-1", plan(task("a", intent="翻訳"), task("b", intent="Go")))

    assert story.statuses() == {"a": "running", "b": "running"}


def test_a_further_field_of_a_plan_is_no_fault() -> None:
    story = WorkflowDriver().start()

    story.complete_task("plan-1", {**plan(task("a") | {"priority": 3}), "reasoning": "because"})

    assert story.statuses() == {"a": "running"}


def test_plans_are_sent_back_a_bounded_number_of_times() -> None:
    story = WorkflowDriver(limits=Limits(plan_repairs=2)).start()

    for number in (1, 2, 3):
        story.complete_task(f"plan-{number}", "no idea")

    assert len(story.entries_of(PlanRejected)) == 3
    assert story.outcome.status == "failed"
    assert story.outcome.reason.startswith("no valid plan after 3 tries: the answer is plain text")
    assert [each.status for each in story.outcome.tasks] == ["succeeded", "succeeded", "failed"]
    (letter,) = [message.event for message in messages(story.state) if isinstance(message.event, DeadLetter)]
    assert (letter.task_id, letter.cause.kind) == ("plan-3", "invalid_plan")


def test_a_plan_cannot_exceed_the_retry_policy_of_its_team() -> None:
    asked_for = {"attempts": 20, "jitter": 0, "retry_on": ["handler_error", "timeout"]}
    team = RetryPolicy(attempts=2, retry_on=("timeout",), no_retry_on=("provider_error",))
    story = WorkflowDriver(retry=team).planned({**task("a"), "retry": asked_for}, {**task("b"), "retry": asked_for})

    for _ in range(2):
        story.fail_task("a", failure("timeout"))
        story.wait(5)
    story.fail_task("b", failure("handler_error"))

    assert [(each.task_id, each.attempts) for each in story.entries_of(TaskFailed)] == [("a", 2), ("b", 1)]
    bounded = RetryPolicy(attempts=2, jitter=0, retry_on=("timeout",), no_retry_on=("provider_error",))
    assert [each.retry for each in story.entries_of(PlanAccepted)[0].plan.tasks] == [bounded, bounded]


def test_a_plan_whose_retry_policy_makes_no_sense_goes_back_to_the_planner() -> None:
    story = WorkflowDriver().planned({**task("a"), "retry": {"retry_on": ["refused"]}})

    (problem,) = asked(story, "plan-2")["problems"]
    assert "retry_on names refused, which end a task" in problem


def test_a_planner_that_fails_for_good_ends_the_workflow() -> None:
    story = WorkflowDriver().start()

    story.fail_task("plan-1", failure("refused"))

    assert story.outcome.reason == "planner could not plan: refused was seen"


GUARDED = PlanAndExecute(fallback="other")


@pytest.mark.parametrize("answer", ["ask the other", {"tasks": [], "cannot": "nobody here cooks"}, {"tasks": "t1"}])
def test_the_fallback_gets_the_request_that_no_plan_could_be_had_for(answer: JsonValue) -> None:
    story = WorkflowDriver(strategy=GUARDED, limits=Limits(plan_repairs=0)).start({"topic": "tides"})

    story.complete_task("plan-1", answer)

    assert story.statuses() == {"other": "running"}
    assert story.handoff("other").input == {"topic": "tides"}


def test_the_fallback_gets_the_request_of_a_planner_that_fails() -> None:
    story = WorkflowDriver(strategy=GUARDED).start()

    story.fail_task("plan-1", failure("refused"))

    assert story.statuses() == {"other": "running"}


def test_a_planner_may_repair_its_plan_before_the_fallback_is_asked() -> None:
    story = WorkflowDriver(strategy=GUARDED, limits=Limits(plan_repairs=1)).start()

    story.complete_task("plan-1", "no idea")
    story.complete_task("plan-2", plan(task("a")))

    assert story.statuses() == {"a": "running"}


def test_fallback_does_not_replace_an_accepted_plan() -> None:
    story = WorkflowDriver(strategy=GUARDED, limits=Limits(replans=1)).planned(task("a"), task("b"))
    story.complete_task("b")

    story.fail_task("a")
    story.fail_task("plan-2", failure("refused"))

    assert "other" not in story.statuses()


def test_task_may_not_use_or_need_the_id_of_the_planner() -> None:
    story = WorkflowDriver().start()

    story.complete_task("plan-1", plan(task("plan-1"), task("b", needs=["plan-1"])))
    story.complete_task("plan-2", plan(task("b", needs=["plan-1"])))

    first, second = story.entries_of(PlanRejected)
    assert "the id 'plan-1' belongs to a task that has already started" in first.problems[0]
    assert second.problems == ("task 'b' depends on 'plan-1', which is not a task of the plan",)


def test_tasks_may_have_the_names_that_the_runtime_would_have_chosen() -> None:
    story = WorkflowDriver(limits=Limits(replans=1)).planned(task("synthesis"), task("plan-2"))

    story.complete_task("synthesis", replan_hint="look elsewhere")
    story.complete_task("plan-2-2", plan(task("c")))
    story.complete_task("plan-2")
    story.complete_task("c")

    assert story.statuses() == {"synthesis": "succeeded", "plan-2": "succeeded", "c": "succeeded"}
    assert story.state.tasks["synthesis-2"].role is Role.SYNTHESIZE


# Another plan


def test_without_replans_a_failure_is_a_gap() -> None:
    story = WorkflowDriver().planned(task("a"), task("b"))
    story.complete_task("b")

    story.fail_task("a")

    assert story.state.phase == "synthesizing"


def test_a_failure_asks_for_another_plan_once_the_rest_is_done() -> None:
    story = WorkflowDriver(limits=Limits(replans=1)).planned(task("a"), task("b", "other"), task("c", needs=["a"]))

    story.fail_task("a")
    assert story.state.phase == "running"
    story.complete_task("b", "found")

    given = asked(story, "plan-2")
    assert given["replan_reason"] == "worker could not do a"
    assert given["agents_used"] == ["worker", "other"]
    assert {each["task_id"]: each["status"] for each in given["results"]} == {
        "a": "failed",
        "b": "succeeded",
        "c": "skipped",
    }


def test_new_plan_may_reuse_unstarted_ids_and_needs_succeeded_tasks() -> None:
    story = WorkflowDriver(limits=Limits(replans=1)).planned(task("a"), task("b"), task("c", needs=["a", "b"]))
    story.fail_task("a")
    story.complete_task("b", "found")

    story.complete_task("plan-2", plan(task("a2", "other"), task("c", needs=["a2", "b"])))
    story.complete_task("a2", "found too")

    assert story.statuses() == {"a": "failed", "b": "succeeded", "a2": "succeeded", "c": "running"}
    assert [each.output for each in story.handoff("c").context] == ["found too", "found"]


def test_a_hint_changes_the_plan_while_other_tasks_run_on() -> None:
    story = WorkflowDriver(limits=Limits(replans=1)).planned(task("a"), task("b", "other"), task("c", needs=["a"]))

    story.complete_task("a", replan_hint="it is the configuration")

    assert asked(story, "plan-2")["replan_reason"] == "worker suggests a new plan: it is the configuration"
    assert story.statuses() == {"a": "succeeded", "b": "running", "c": "waiting"}
    story.complete_task("plan-2", plan(task("d", "other", needs=["b"])))
    assert story.statuses() == {"a": "succeeded", "b": "running", "d": "waiting"}
    story.complete_task("b")
    assert story.statuses()["d"] == "running"


def test_hint_during_planning_starts_no_second_plan() -> None:
    story = WorkflowDriver(limits=Limits(replans=2)).planned(task("a"), task("b", "other"))
    story.complete_task("a", replan_hint="it is the configuration")

    story.complete_task("b", replan_hint="it is the cable")

    assert "plan-3" not in story.state.tasks
    story.complete_task("plan-2", plan(task("c", "other")))
    assert story.statuses() == {"a": "succeeded", "b": "succeeded", "c": "running"}


def test_result_during_planning_counts() -> None:
    story = WorkflowDriver(limits=Limits(replans=1)).planned(task("a"), task("b"))
    story.complete_task("a", replan_hint="look again")
    story.fail_task("b")

    story.complete_task("plan-2", plan(task("c", needs=["a"]), task("d", needs=["b"])))

    assert story.entries_of(PlanRejected)[0].problems == ("task 'd' depends on 'b', which is not a task of the plan",)


def test_result_and_plan_that_drops_its_dependent_may_arrive_together() -> None:
    story = WorkflowDriver(limits=Limits(replans=1)).planned(task("a"), task("b"), task("c", needs=["b"]))
    story.complete_task("a", replan_hint="look again")

    story.decide_and_apply(story.result("b"), story.result("plan-2", plan(task("d"))))

    assert story.statuses() == {"a": "succeeded", "b": "succeeded", "d": "running"}


def test_successful_run_is_not_replanned() -> None:
    story = WorkflowDriver(limits=Limits(replans=1)).planned(task("a"))

    story.complete_task("a")

    assert list(story.state.tasks) == ["plan-1", "a", "synthesis"]


def test_replans_are_bounded() -> None:
    story = WorkflowDriver(limits=Limits(replans=1)).planned(task("a"), task("keep"))
    story.complete_task("keep")
    story.fail_task("a")
    story.complete_task("plan-2", plan(task("b", "other")))

    story.fail_task("b")

    assert story.state.phase == "synthesizing"
    assert "plan-3" not in story.state.tasks


def test_a_returned_plan_is_not_a_replan() -> None:
    story = WorkflowDriver(limits=Limits(replans=1)).start()
    story.complete_task("plan-1", "no idea")
    story.complete_task("plan-2", plan(task("a")))

    story.fail_task("a")

    assert asked(story, "plan-3")["replan_reason"] == "worker could not do a"


def test_the_same_plan_again_is_refused() -> None:
    story = WorkflowDriver(limits=Limits(replans=1)).planned(task("a", intent="try it"), task("keep"))
    story.complete_task("keep")
    story.fail_task("a")

    story.complete_task("plan-2", plan(task("a-again", intent="try it")))

    assert "repeats tasks that have failed permanently" in asked(story, "plan-3")["problems"][0]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda story: story.fail_task("plan-2"),
        lambda story: story.complete_task("plan-2", {"tasks": [], "cannot": "no better way"}),
        lambda story: [story.complete_task(f"plan-{number}", "no idea") for number in (2, 3, 4)],
    ],
    ids=["planner fails", "planner cannot", "plans refused"],
)
def test_the_plan_is_kept_when_no_better_one_can_be_had(spoil: Any) -> None:
    story = WorkflowDriver(limits=Limits(replans=1)).planned(
        task("a"),
        task("bad"),
        task("b", needs=["a"], optional=["bad"]),
        task("c", needs=["b"]),
        task("d", needs=["bad"]),
    )
    story.fail_task("bad")
    story.complete_task("a", replan_hint="maybe another way")

    spoil(story)

    assert story.statuses() == {"a": "succeeded", "bad": "failed", "b": "running", "c": "waiting", "d": "skipped"}
    story.complete_task("b")
    story.complete_task("c")
    story.complete_task("synthesis", {"answer": "as planned"})
    assert (story.outcome.status, story.outcome.answer) == ("partial", "as planned")
    assert {gap.task_id for gap in story.outcome.gaps} == {"bad", "d"}


def test_each_accepted_plan_has_its_revision() -> None:
    story = WorkflowDriver(limits=Limits(replans=1)).start()
    story.complete_task("plan-1", "no idea")
    story.complete_task("plan-2", plan(task("a")))
    story.complete_task("a", replan_hint="more")
    story.complete_task("plan-3", plan(task("b")))

    assert [entry.revision for entry in story.entries_of(PlanAccepted)] == [2, 3]


def test_repaired_plan_sees_the_results_and_the_log_holds_them_once() -> None:
    story = WorkflowDriver(limits=Limits(replans=1)).planned(task("a"), task("b"))
    story.complete_task("a", "a large result")

    story.complete_task("b", "b's", replan_hint="there is a better way")

    given: Any = story.handoff("plan-2").input
    assert [each["output"] for each in given["results"]] == ["a large result", "b's"]
    assert sum("a large result" in entry.model_dump_json() for entry in story.log) == 1


def test_ignored_fields_of_a_request_are_in_its_log_and_outcome() -> None:
    story = WorkflowDriver()
    request = RequestReceived(admission(PlanAndExecute(), Limits()), Request(input="do it"), ("deadlin",))

    story.decide_and_apply(request)
    story.complete_task("plan-1", {"tasks": [], "cannot": "no"})

    assert story.outcome.ignored_fields == ("deadlin",)


def test_models_that_are_made_without_validation_have_every_field() -> None:
    story = WorkflowDriver().planned(task("a"))
    story.complete_task("a")
    decision = Decision(story.state, DecisionContext(story.now, cards("a", "b")))

    made = [task_report(story.state.tasks["a"]), *available_agents(decision)]

    assert len(made) == 3
    assert [each.model_fields_set ^ type(each).model_fields.keys() for each in made] == [set()] * 3
