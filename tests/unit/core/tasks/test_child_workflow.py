"""A team works as an agent. Its handoff is a request, its outcome is a result, and the end of its parent cancels it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from support.core import SUBJECTS, T0, WORKFLOW, WorkflowDriver, admission, card, cards, failure, messages, plan, task

from pointsman.core.decide import decide
from pointsman.core.decision import DecisionContext
from pointsman.core.evolve import fold_entries
from pointsman.core.model.inputs import RequestReceived, RequestRefused
from pointsman.core.model.state import State
from pointsman.core.outbox import outbox
from pointsman.core.tasks.child_workflow import child_request
from pointsman_schemas.events import AttemptError, Budget, Control, Gap, Handoff, Outcome, PlanUsage, Request, Result
from pointsman_schemas.ids import child_id_for
from pointsman_schemas.log import Parent
from pointsman_schemas.team import Limits, Pipeline, PlanAndExecute, Stage, Team

REFUNDS = card("refunds", team=True, timeout=300)
PARENT = Parent(
    team="desk",
    workflow_id="wf_parent",
    task_id="t1",
    attempt=2,
    return_to=SUBJECTS.result("desk", "team", "wf_parent", "t1", 2, "token"),
    deadline=T0 + timedelta(seconds=60),
)


def handoff(**changes: Any) -> Handoff:
    story = WorkflowDriver(cards=(REFUNDS,), agents=("refunds",)).planned(
        task("t1", "refunds", intent="refund charge 7")
    )
    return story.handoff("t1").model_copy(update=changes)


def child(strategy: PlanAndExecute | Pipeline | None = None, limits: Limits | None = None) -> WorkflowDriver:
    """Return a workflow that was started for a parent's task."""
    story = WorkflowDriver(strategy=strategy or PlanAndExecute(), limits=limits or Limits(), cards=cards("worker"))
    given = replace(admission(story.strategy, story.limits), parent=PARENT, depth=1)
    story.decide_and_apply(RequestReceived(given, Request(input="refund charge 7", deadline=50)))
    return story


def result_of(story: WorkflowDriver) -> Result:
    """Return the result for the parent."""
    sent = {message.subject: message.event for message in messages(story.state)}
    told = sent[PARENT.return_to]
    assert isinstance(told, Result)
    return told


def test_a_team_is_only_on_menus_that_name_it() -> None:
    everybody = WorkflowDriver(cards=(card("worker"), REFUNDS)).start()
    named = WorkflowDriver(cards=(card("worker"), REFUNDS), agents=("refunds",)).start()

    assert [item["name"] for item in everybody.handoff_input("plan-1")["agents"]] == ["worker"]
    assert [item["name"] for item in named.handoff_input("plan-1")["agents"]] == ["refunds"]


def test_menu_has_no_team_where_nesting_ends() -> None:
    story = WorkflowDriver(
        cards=(card("worker"), REFUNDS), agents=("refunds", "worker"), limits=Limits(nesting=0)
    ).start()

    assert [item["name"] for item in story.handoff_input("plan-1")["agents"]] == ["worker"]


def test_handoff_becomes_a_request_with_its_intent_and_the_rest_of_time_and_budget() -> None:
    given = handoff(input={"charge": 7}, budget=Budget(calls=3), deadline=T0 + timedelta(seconds=100))

    request = child_request(given, Team(name="refunds"), T0)

    assert isinstance(request, Request)
    assert request.input == {"intent": "refund charge 7", "charge": 7}
    assert (request.deadline, request.budget) == (90, Budget(calls=3))


def test_results_of_other_tasks_are_passed_to_the_child() -> None:
    story = WorkflowDriver(cards=(REFUNDS, card("worker")), agents=("refunds", "worker"))
    story.planned(task("t1"), task("t2", "refunds", needs=["t1"]))
    story.complete_task("t1", {"found": 1})

    request = child_request(story.handoff("t2"), Team(name="refunds"), T0)

    assert isinstance(request, Request)
    assert isinstance(request.input, dict)
    assert request.input["results"] == {"t1": {"found": 1}}


@pytest.mark.parametrize(
    ("changes", "kind", "said"),
    [
        ({"depth": 3}, "limit", "refunds has 4 teams above it; at most 3 are allowed"),
        ({"deadline": T0}, "timeout", "the deadline of the handoff had passed before the team received the handoff"),
    ],
)
def test_impossible_child_is_refused_with_the_reason(changes: Any, kind: str, said: str) -> None:
    refused = child_request(handoff(**changes), Team(name="refunds", limits=Limits(nesting=3)), T0)

    assert refused == AttemptError(kind=kind, message=said)


def test_a_refusal_ends_the_child_and_fails_the_parents_task() -> None:
    given = replace(admission(PlanAndExecute(), Limits()), parent=PARENT, depth=4)
    refusal = AttemptError(kind="limit", message="there are 4 teams above it")
    state = fold_entries(decide(None, [RequestRefused(given, refusal)], DecisionContext(T0)))
    assert state is not None

    sent = [message.event for message in outbox(state, SUBJECTS)]

    assert [type(event).__name__ for event in sent] == ["Result", "Outcome"]
    assert isinstance(sent[0], Result)
    assert sent[0].error == AttemptError(
        kind="team_failed", message="team failed: the task was refused: there are 4 teams above it"
    )


def test_the_childs_outcome_first_becomes_the_parents_result() -> None:
    story = child(Pipeline(stages=(Stage(agent="worker"),)))
    story.complete_task("worker", "refunded")

    told = result_of(story)

    assert (told.workflow_id, told.task_id, told.attempt, told.agent) == ("wf_parent", "t1", 2, "team")
    assert (told.status, told.output, told.usage.calls) == ("succeeded", "refunded", 1)
    assert isinstance(messages(story.state)[-1].event, Outcome)


def test_a_partial_answer_travels_up_with_its_gaps() -> None:
    story = child(Pipeline(stages=(Stage(agent="worker"), Stage(agent="other"))))
    story.complete_task("worker", "half")
    story.fail_task("other", failure("refused"))

    told = result_of(story)

    assert (told.status, told.output) == ("succeeded", "half")
    assert told.gaps == (Gap(task_id="other", agent="other", reason="refused was seen"),)


def test_parent_of_a_partial_team_is_partial_and_names_the_gaps() -> None:
    story = WorkflowDriver(strategy=PlanAndExecute(synthesizer=None), cards=(REFUNDS,), agents=("refunds",))
    story.planned(task("t1", "refunds"))

    story.complete_task("t1", "half", gaps=[{"task_id": "s2", "agent": "writer", "reason": "it was ill"}])

    assert story.outcome.status == "partial"
    assert story.outcome.gaps == (Gap(task_id="t1", agent="writer", reason="s2 of refunds: it was ill"),)


def test_a_child_that_failed_fails_its_task_with_the_reason() -> None:
    story = child()
    story.fail_task("plan-1", failure("refused"))

    assert result_of(story).error == AttemptError(
        kind="team_failed", message="team failed: planner could not plan: refused was seen"
    )


def test_child_reports_its_plan_usage() -> None:
    story = child(PlanAndExecute(synthesizer=None), Limits(replans=1))
    story.complete_task("plan-1", plan(task("a"), task("b")))
    story.complete_task("a", replan_hint="another way")
    story.complete_task("b")
    story.complete_task("plan-2", plan(task("c")))

    story.complete_task("c")

    assert result_of(story).plan_usage == PlanUsage(tasks=3, replans=1)


def test_a_child_plans_again_only_as_often_as_it_was_given() -> None:
    story = WorkflowDriver(strategy=PlanAndExecute(synthesizer=None), limits=Limits(replans=5))
    story.start(budget=Budget(replans=0))
    story.complete_task("plan-1", plan(task("a"), task("b")))

    story.complete_task("a", replan_hint="another way")

    assert "plan-2" not in story.state.tasks


def test_team_that_plans_beyond_its_quota_ends_the_work_with_the_limit() -> None:
    story = WorkflowDriver(
        strategy=PlanAndExecute(synthesizer=None), cards=(REFUNDS, card("worker")), limits=Limits(tasks=4)
    )
    story.agents = ("refunds", "worker")
    story.planned(task("t1", "refunds"), task("t2", "worker"))

    story.complete_task("t1", "done", plan_usage=PlanUsage(tasks=9))

    assert (story.outcome.status, story.outcome.reason) == (
        "partial",
        "the limit of 4 tasks was passed: 11 planned",
    )


def test_cancelled_child_says_so_and_no_fallback_runs() -> None:
    below = child()
    below.control("cancel", actor="ops", reason="a mistake")
    told = result_of(below).error
    story = WorkflowDriver(
        cards=(card("refunds", team=True, fallback="worker"), card("worker")), agents=("refunds", "worker")
    )
    story.planned(task("t1", "refunds"))

    story.fail_task("t1", told)

    assert told == AttemptError(kind="cancelled", message="team cancelled: cancelled by ops: a mistake")
    assert story.statuses() == {"t1": "failed"}


def test_approval_in_a_child_expires_with_the_task_of_the_parent() -> None:
    story = child()
    story.cards = (card("worker", approval="required"),)

    story.complete_task("plan-1", plan(task("a")))

    assert [pending.expires_at for pending in story.state.questions.values()] == [PARENT.deadline]


def test_a_child_s_own_limit_for_answers_of_people_may_come_first() -> None:
    story = child(limits=Limits(answer_timeout=1))
    story.cards = (card("worker", approval="required"),)

    story.complete_task("plan-1", plan(task("a")))

    assert [each.expires_at - each.asked_at for each in story.state.questions.values()] == [timedelta(seconds=1)]


def test_a_parent_that_is_cancelled_cancels_the_children_it_has() -> None:
    story = WorkflowDriver(cards=(REFUNDS, card("worker")), agents=("refunds", "worker"))
    story.planned(task("t1", "refunds"), task("t2", "worker"), task("t3", "refunds", needs=["t1"]))

    story.control("cancel", actor="ops", reason="a mistake")

    started = child_id_for("refunds", WORKFLOW, "t1", 1)
    told = [(message.subject, message.event) for message in messages(story.state) if isinstance(message.event, Control)]
    assert told == [
        (
            SUBJECTS.control("refunds", started, "cancel", "team", "parent"),
            Control(action="cancel", reason="wf_1: cancelled by ops: a mistake"),
        )
    ]


def test_child_ends_in_time_for_its_parent() -> None:
    story = child(limits=Limits(task_timeout=1000))
    story.complete_task("plan-1", {"tasks": [task("a"), task("b", "worker")]})
    story.complete_task("a")

    story.fire_timer()

    assert story.now == T0 + timedelta(seconds=50)
    assert story.task("synthesis").deadline == PARENT.deadline


def test_child_context_survives_a_snapshot() -> None:
    assert isinstance(child().state, State)  # each step of the driver checks that a snapshot restores the state
    assert child().state.depth == 1
    assert child().handoff("plan-1").depth == 1
