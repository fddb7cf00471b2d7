"""A person resumes an ended workflow. Open tasks run again. A second resume of the same round has no effect."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.core import T0, WORKFLOW, WorkflowDriver, card, cards, failure, messages, plan, selection, task

from pointsman.core.decide import make_decision
from pointsman.core.decision import DecisionContext
from pointsman.core.model.inputs import ControlReceived
from pointsman.core.replay.replayer import replay_log
from pointsman.core.resume import resume_refusal
from pointsman.core.views.timeline import Timeline
from pointsman.core.views.trace import build_trace
from pointsman.engine.supervisor.committer import refuse_late
from pointsman.engine.supervisor.inbound import InboundInput
from pointsman.ports.bus import Delivery
from pointsman_schemas.events import Control, EmittedEvent, Gap, Handoff, Outcome, Usage
from pointsman_schemas.log import ControlIgnored, Parent, WorkflowEnded, WorkflowResumed
from pointsman_schemas.team import (
    Adaptive,
    Choreography,
    FanOut,
    Limits,
    Pipeline,
    PlanAndExecute,
    RetryPolicy,
    Router,
    Stage,
    Strategy,
)

ONCE = RetryPolicy(attempts=1)


def partial(**given: Any) -> WorkflowDriver:
    """Return a workflow that ended as partial. `a` succeeded, `b` failed, and `c` was skipped because it needs `b`."""
    story = WorkflowDriver(retry=ONCE, limits=Limits(replans=0, **given)).planned(
        task("a"), task("b"), task("c", needs=["b"])
    )
    story.complete_task("a")
    story.fail_task("b")
    story.complete_task("synthesis", {"answer": "half of it"})
    assert status(story) == "partial"
    return story


def resume(story: WorkflowDriver, number: int = 1, round: int | None = None) -> WorkflowResumed | None:
    before = len(story.entries_of(WorkflowResumed))
    story.control("resume", event_id=f"resume-{number}", round=round, actor="ops", reason="it works again")
    return story.entries_of(WorkflowResumed)[-1] if len(story.entries_of(WorkflowResumed)) > before else None


def decided_again(story: WorkflowDriver) -> list[object]:
    return list(replay_log(story.commits))


def test_resumed_workflow_does_only_its_open_tasks_again() -> None:
    story = partial().wait(3600)

    resumed = resume(story)

    assert resumed is not None
    assert (resumed.round, resumed.tasks) == (2, ("b", "c"))
    assert story.statuses() == {"a": "succeeded", "b": "running", "c": "waiting"}
    assert (story.handoff("b").attempt, story.state.phase, story.state.outcome) == (2, "running", None)
    assert story.state.deadline == story.now + timedelta(seconds=story.limits.deadline)
    story.complete_task("b")
    story.complete_task("c")
    story.complete_task("synthesis-2", {"answer": "all of it"})
    assert (story.outcome.status, story.outcome.round, story.outcome.answer) == ("completed", 2, "all of it")
    assert [ended.outcome.round for ended in story.entries_of(WorkflowEnded)] == [1, 2]
    assert decided_again(story) == []


def test_a_redelivered_result_beside_a_resume_does_not_change_the_order_of_entries() -> None:
    """A redelivered result leaves no entry, so a replay of the log does not get the result."""
    story = WorkflowDriver(retry=ONCE, limits=Limits(replans=0)).planned(task("a"), task("b"))
    story.complete_task("a")
    failed = story.result("b", error=failure())
    story.decide_and_apply(failed)
    story.complete_task("synthesis", {"answer": "half of it"})

    story.decide_and_apply(
        ControlReceived("resume-1", Control(action="resume", round=1), "ops"),
        failed,
        ControlReceived("tell-1", Control(action="tell", text="hurry"), "ops"),
    )

    assert story.statuses()["b"] == "running"
    assert decided_again(story) == []


def test_outcome_of_each_round_has_an_id_of_its_own() -> None:
    story = partial()
    first = next(message.id for message in messages(story.state) if isinstance(message.event, Outcome))

    resume(story)
    story.fail_task("b")
    story.complete_task("synthesis-2", {"answer": "half of it again"})

    second = next(message.id for message in messages(story.state) if isinstance(message.event, Outcome))
    assert (first, second) == (f"{WORKFLOW}-outcome", f"{WORKFLOW}-outcome-2")
    assert story.outcome.usage == Usage(calls=6, input_tokens=600, output_tokens=60, cost=1.5)
    assert resume(story, 2) is not None


def test_redelivered_resume_changes_nothing_in_any_later_phase() -> None:
    story = partial()
    resume(story)
    assert story.control("resume", event_id="resume-1") == ()
    story.fail_task("b")
    story.complete_task("synthesis-2", {"answer": "half of it again"})

    assert story.control("resume", event_id="resume-1") == ()
    assert story.state.ended


def test_second_resume_of_one_round_begins_no_further_round() -> None:
    story = partial()
    both = [ControlReceived(f"resume-{number}", Control(action="resume", round=1), "ada") for number in range(2)]

    story.decide_and_apply(*both)

    assert story.state.round == 2
    assert [entry.reason for entry in story.entries_of(ControlIgnored)] == [
        "the workflow has not ended: it is in round 2"
    ]
    story.fail_task("b")
    story.complete_task("synthesis-2", {"answer": "half of it again"})
    assert resume(story, 3, round=1) is None
    assert decided_again(story) == []


def test_resume_that_comes_with_the_end_does_not_hide_the_outcome() -> None:
    story = WorkflowDriver(retry=ONCE).planned(task("a"))
    last = story.result("a", error=failure())

    story.decide_and_apply(last, ControlReceived("resume-1", Control(action="resume"), "ada"))

    assert story.entries_of(ControlIgnored)
    assert story.entries_of(WorkflowResumed) == []


def completed() -> WorkflowDriver:
    story = WorkflowDriver().planned(task("a"))
    story.complete_task("a")
    story.complete_task("synthesis", {"answer": "all"})
    return story


def cancelled() -> WorkflowDriver:
    story = WorkflowDriver().planned(task("a"))
    story.control("cancel")
    return story


@pytest.mark.parametrize(("begin", "why"), [(completed, "completed"), (cancelled, "cancelled")])
def test_completed_and_cancelled_workflows_stay_ended(begin: Callable[[], WorkflowDriver], why: str) -> None:
    story = begin()

    assert resume(story) is None
    assert story.state.ended
    assert f"ended as {why}" in refusal(story)


def test_workflow_of_a_parent_is_resumed_through_its_parent() -> None:
    story = partial()
    parent = Parent(team="above", workflow_id="wf_above", task_id="t", attempt=1, return_to="pointsman.x", deadline=T0)
    story.current = story.state.__class__(**{**story.state.__dict__, "parent": parent})

    assert "resume that workflow" in refusal(story)


def test_workflow_whose_log_is_about_to_be_deleted_is_not_resumed() -> None:
    story = partial().wait(86_400 * 30 - 3_000)

    assert "will be deleted soon" in refusal(story, kept=timedelta(days=30))
    assert refusal(story, kept=timedelta(days=31)) == ""


def status(story: WorkflowDriver) -> str:
    return story.outcome.status


def refusal(story: WorkflowDriver, kept: timedelta | None = None) -> str:
    received = ControlReceived("resume", Control(action="resume"), "ada")
    context = DecisionContext(story.now, story.cards, retention=kept)
    decision = make_decision(story.state, [received], context)
    return "" if decision.entries else resume_refusal(decision, received)


def test_round_has_the_whole_limits_again() -> None:
    story = WorkflowDriver(retry=ONCE, limits=Limits(calls=4, replans=0)).planned(task("a"), task("b", needs=["a"]))
    story.complete_task("a", usage=Usage(calls=9))
    assert status(story) == "partial"
    assert "calls" in story.outcome.reason

    resume(story)

    assert story.state.reached_limit == ""
    story.complete_task("b")
    story.complete_task("synthesis-2", {"answer": "all"})
    assert (story.outcome.status, story.outcome.usage.calls) == ("completed", 1 + 9 + 1 + 1)
    assert decided_again(story) == []


def test_work_that_the_deadline_stopped_continues() -> None:
    story = WorkflowDriver(limits=Limits(deadline=20.0)).planned(task("a"), task("b", needs=["a"]))
    while not story.state.ended:
        story.fire_timer()
    assert status(story) == "failed"

    resume(story.wait(600))

    assert story.statuses() == {"a": "running", "b": "waiting"}
    assert story.state.timer.endswith("-round-2")
    story.complete_task("a")
    story.complete_task("b")
    story.complete_task("synthesis", {"answer": "all"})
    assert (status(story), story.outcome.gaps) == ("completed", ())


def test_late_result_of_the_round_before_is_ignored() -> None:
    story = WorkflowDriver(limits=Limits(deadline=20.0)).planned(task("a"))
    late = story.result("a", {"late": True}, event_id="late")
    while not story.state.ended:
        story.fire_timer()
    resume(story)

    story.decide_and_apply(late)

    assert story.statuses() == {"a": "running"}
    assert story.kinds()[-1] == "result_ignored"


def test_workflow_without_a_plan_is_planned_again() -> None:
    story = WorkflowDriver(retry=ONCE).start()
    story.fail_task("plan-1")
    assert status(story) == "failed"

    resume(story)

    assert story.state.phase == "planning"
    planner = next(each for each in story.state.tasks.values() if each.active)
    story.complete_task(planner.id, plan(task("a")))
    story.complete_task("a")
    story.complete_task("synthesis", {"answer": "all"})
    assert status(story) == "completed"
    assert decided_again(story) == []


def test_workflow_without_an_agent_waits_for_one_again() -> None:
    story = WorkflowDriver(cards=(), limits=Limits(deadline=30.0)).start()
    while not story.state.ended:
        story.fire_timer()
    assert status(story) == "failed"

    resume(story.wait(60))
    assert (story.state.has_begun, story.state.ended) == (False, False)
    story.cards = cards("worker")
    story.fire_timer()

    assert story.handoff("plan-1").to_agent == "planner"
    assert decided_again(story) == []


def test_workflow_whose_answer_failed_is_only_answered_again() -> None:
    story = WorkflowDriver(retry=ONCE).planned(task("a"))
    story.complete_task("a")
    story.fail_task("synthesis", failure("timeout", retryable=True))
    assert status(story) == "partial"

    resumed = resume(story)

    assert resumed is not None
    assert resumed.tasks == ()
    assert [each.event.task_id for each in messages(story.state) if isinstance(each.event, Handoff)] == ["synthesis-2"]
    story.complete_task("synthesis-2", {"answer": "all"})
    assert status(story) == "completed"


def test_team_whose_result_has_gaps_is_asked_again() -> None:
    story = WorkflowDriver(cards=(card("worker"), card("below", team=True)), agents=("worker", "below")).planned(
        task("a", "below"), task("b")
    )
    story.complete_task("b")
    story.complete_task("a", gaps=(Gap(task_id="t", agent="deep", reason="it broke"),))
    story.complete_task("synthesis", {"answer": "half"})
    assert status(story) == "partial"

    resumed = resume(story)

    assert resumed is not None
    assert resumed.tasks == ("a",)
    assert story.handoff("a").attempt == 2


def test_task_that_waits_again_starts_beside_a_new_plan() -> None:
    """Settle the dependencies of `c` while a planner writes a new plan. A task with attempts is not replaced."""
    story = WorkflowDriver(retry=ONCE, limits=Limits(replans=1)).planned(
        task("b"), task("x"), task("c", optional=["b", "x"])
    )
    for name in ("b", "x", "c"):
        story.fail_task(name)
    story.fail_task("plan-2")
    assert status(story) == "failed"
    resume(story)

    story.complete_task("b", replan_hint="there is a better way")
    story.complete_task("x")
    assert (story.state.phase, story.statuses()["c"]) == ("planning", "waiting")
    replanner = next(each.id for each in story.state.tasks.values() if each.active)
    story.complete_task(replanner, plan(task("d", "other")))

    assert story.statuses() == {"b": "succeeded", "x": "succeeded", "c": "running", "d": "running"}
    assert decided_again(story) == []


@pytest.mark.parametrize(
    "strategy",
    [
        Pipeline(stages=(Stage(agent="worker", name="one"), Stage(agent="other", name="two"))),
        FanOut(min_success_ratio=0.5),
        FanOut(min_success_ratio=1.0),
        PlanAndExecute(),
        Router(),
        Adaptive(max_plans=4),
    ],
    ids=lambda strategy: strategy.kind,
)
def test_each_strategy_finishes_in_the_second_round(strategy: Strategy) -> None:
    """Fail each task in the first round, and complete each task in the second round."""
    story = WorkflowDriver(strategy=strategy, retry=ONCE, limits=Limits(replans=0)).start()
    settle(story, fails=True)
    assert story.outcome.status in ("partial", "failed")

    resume(story)
    settle(story, fails=False)

    assert (story.outcome.status, story.outcome.round) == ("completed", 2)
    assert decided_again(story) == []


def settle(story: WorkflowDriver, *, fails: bool) -> None:
    """Answer each handoff until the workflow has ended."""
    plans = 0
    while not story.state.ended:
        now = next(each for each in story.state.tasks.values() if each.active)
        match now.role:
            case "plan" if plans and isinstance(story.strategy, Adaptive):
                story.complete_task(now.id, {"goal": "done", "tasks": [], "done": True})
            case "plan":
                plans += 1
                story.complete_task(now.id, plan(task(f"t{story.state.revision}"), task(f"u{story.state.revision}")))
            case "classify":
                story.complete_task(now.id, selection(("worker", 0.9)))
            case "work" if fails:
                story.fail_task(now.id)
            case _:
                story.complete_task(now.id, {"answer": "done"})


def test_events_that_a_limit_left_without_a_reaction_are_reacted_to() -> None:
    agents = (card("worker", reacts_to=("request",)), card("other", reacts_to=("made",)))
    story = WorkflowDriver(
        strategy=Choreography(start_event="request"), limits=Limits(tasks=1), cards=agents, retry=ONCE
    ).start()
    story.complete_task("worker-request", events=(EmittedEvent(name="made"),))
    story.complete_task("synthesis", {"answer": "half"})
    assert (story.outcome.status, story.statuses()) == ("partial", {"worker-request": "succeeded"})

    resume(story)

    assert story.state.reached_limit, "the limit of tasks must still be reached"
    story.complete_task("synthesis-2", {"answer": "half"})
    assert status(story) == "partial"


def test_views_show_the_round() -> None:
    story = partial().wait(60)
    resume(story)
    lines = Timeline()

    shown = [lines.render(entry) for entry in story.log]
    root = build_trace(story.log)

    assert any("resumed the workflow" in line.text and line.detail.startswith("b, c") for line in shown)
    (workflow,) = root.children
    assert (workflow.status, workflow.ended_at) == ("running", None)
    again = next(each for each in workflow.children if each.task_id == "b")
    assert (again.status, len(again.children)) == ("handed over", 2)


@pytest.mark.parametrize(("delivered", "uncertain"), [(1, False), (2, False), (1, True)])
def test_refused_resume_waits_where_an_earlier_commit_may_be_on_its_way(delivered: int, uncertain: bool) -> None:
    """The command must stay queued, because only it would continue a round that is stored after this refusal."""
    story = partial().wait(86_400 * 30 - 600)
    received = ControlReceived("resume", Control(action="resume"), "ops")
    decision = make_decision(
        story.state, [received], DecisionContext(story.now, story.cards, retention=timedelta(days=30))
    )
    inbound = InboundInput(received, cast(Delivery, SimpleNamespace(delivered=delivered)), "resume")

    refuse_late(decision, [inbound], uncertain=uncertain)

    postponed = delivered > 1 or uncertain
    assert (inbound.postponed, inbound.refusal is None) == (postponed, postponed)
