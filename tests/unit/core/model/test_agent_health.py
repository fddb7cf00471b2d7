"""An agent that keeps failing gets only one probe. Other tasks go to a fallback or wait."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from support.core import T0, WORKFLOW, WorkflowDriver, card, failure, task

from pointsman.core.decide import make_decision
from pointsman.core.decision import DecisionContext
from pointsman.core.model.agent_health import (
    Circuit,
    Circuits,
    close_circuit,
    is_agent_fault,
    open_circuit,
    probe_id,
    release_probe,
    start_probe,
)
from pointsman.core.model.inputs import TimerFired
from pointsman_schemas.events import AttemptError, ErrorKind, Usage
from pointsman_schemas.log import RetryScheduled, TaskDispatched, TaskFailed, TaskHeld
from pointsman_schemas.team import FanOut, Limits, Pipeline, PlanAndExecute, Stage


def open_until(seconds: float, probe: str = "") -> Circuit:
    return Circuit(since=T0, until=T0 + timedelta(seconds=seconds), probe=probe)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


# The state of circuits


def test_circuit_opens_twice_as_long_each_time_up_to_five_minutes() -> None:
    circuits, pauses = Circuits(), []
    for number in range(7):
        circuits = open_circuit(circuits, "worker", at(number), 10)
        pauses.append((circuits.agents["worker"].until - at(number)).total_seconds())

    assert pauses == [10, 20, 40, 80, 160, 300, 300]
    assert circuits.agents["worker"].since == T0
    assert open_circuit(Circuits(), "worker", T0, 600).agents["worker"].until == at(600), (
        "a longer configured pause must be used"
    )
    assert open_circuit(close_circuit(circuits, "worker"), "worker", T0, 10).agents["worker"].open_count == 1


def test_one_probe_is_allowed_until_it_is_released() -> None:
    circuits = open_circuit(Circuits(), "worker", T0, 10)

    assert start_probe(circuits, "worker", at(9), "wf/t1/1", at(60)) is None
    first = start_probe(circuits, "worker", at(10), "wf/t1/1", at(60))
    assert first is not None
    assert start_probe(first, "worker", at(11), "wf/t1/1", at(60)) == first, (
        "a probe that is decided again must not change"
    )
    assert start_probe(first, "worker", at(11), "wf/t2/1", at(60)) is None
    assert start_probe(first, "worker", at(60), "wf/t2/1", at(90)) is not None
    free = release_probe(first, "worker", at(12))
    assert free.agents["worker"].probe == "", "the released probe is still shown as running"
    assert start_probe(free, "worker", at(12), "wf/t2/1", at(60)) is not None


def test_a_healthy_agent_has_no_entry() -> None:
    circuits = open_circuit(Circuits(), "worker", T0, 10)

    assert start_probe(circuits, "other", T0, "wf/t1/1", at(60)) == circuits
    assert release_probe(circuits, "other", T0) == circuits
    assert close_circuit(circuits, "worker") == Circuits()
    assert close_circuit(open_circuit(circuits, "other", T0, 10), "other") == circuits


@pytest.mark.parametrize(
    ("error", "blamed"),
    [
        (failure("provider_error", retryable=True), True),
        (AttemptError(kind=ErrorKind.HANDLER, message="", retryable=True), True),
        (AttemptError(kind=ErrorKind.TIMEOUT, message=""), True),
        (AttemptError(kind=ErrorKind.CRASHED, message=""), True),
        (AttemptError(kind=ErrorKind.INSUFFICIENT, message="", retryable=True), False),
        (AttemptError(kind=ErrorKind.INVALID_INPUT, message=""), False),
        (AttemptError(kind=ErrorKind.REFUSED, message=""), False),
        (AttemptError(kind=ErrorKind.CANCELLED, message=""), False),
    ],
)
def test_transient_errors_are_the_agents_fault(error: AttemptError, blamed: bool) -> None:
    assert is_agent_fault(error) is blamed


# Effects on workflows


def test_task_for_a_failing_agent_is_held_without_an_attempt() -> None:
    story = WorkflowDriver(circuits={"worker": open_until(8)})
    story.planned(task("t1"))

    assert story.statuses() == {"t1": "held"}
    assert story.task("t1").attempt == 0
    assert story.state.timer_due == at(8)

    story.circuits = {}
    story.fire_timer()
    assert story.statuses() == {"t1": "running"}
    story.complete_task("t1")
    story.complete_task("synthesis", {"answer": "done"})
    assert story.outcome.status == "completed"


def test_due_probe_takes_one_task_and_the_others_wait() -> None:
    story = WorkflowDriver(circuits={"worker": open_until(8)})
    story.planned(task("t1"), task("t2"))

    story.fire_timer()

    assert story.statuses() == {"t1": "running", "t2": "held"}
    assert story.task("t2").not_before == at(8 + 10)


def test_probe_is_recorded_with_its_expiry() -> None:
    story = WorkflowDriver(circuits={"worker": open_until(8)}, limits=Limits(task_timeout=30))
    story.planned(task("t1"), task("t2"))
    story.wait(8)

    decision = make_decision(
        story.state, [TimerFired(story.state.timer)], DecisionContext(story.now, story.cards, story.circuits)
    )

    probe = decision.probes["worker"]
    assert (probe.name, probe.until) == (probe_id(WORKFLOW, "t1", 1), at(8 + 30 + 1))


def test_a_task_is_held_during_another_workflows_probe() -> None:
    story = WorkflowDriver(circuits={"worker": open_until(60, probe="wf_2/t9/1")})
    story.planned(task("t1"))

    assert story.statuses() == {"t1": "held"}
    assert story.task("t1").not_before == at(10), "the task must check again after ten seconds"


def test_claimed_probe_goes_to_its_task_when_decided_again() -> None:
    story = WorkflowDriver(circuits={"worker": open_until(60, probe=probe_id(WORKFLOW, "t1", 1))})
    story.planned(task("t1"), task("t2"))

    assert story.statuses() == {"t1": "running", "t2": "held"}


def test_fallback_replaces_a_failing_agent() -> None:
    story = WorkflowDriver(cards=(card("worker", fallback="other"), card("other")), circuits={"worker": open_until(60)})
    story.planned(task("t1"))

    (sent,) = [entry for entry in story.entries_of(TaskDispatched) if entry.task_id == "t1"]
    assert (sent.agent, sent.fallback_for, sent.fallback) == ("other", "worker", None)
    assert story.handoff("t1").to_agent == "other"


def test_dead_fallback_replaces_no_agent() -> None:
    story = WorkflowDriver(cards=(card("worker", fallback="gone"),), circuits={"worker": open_until(60)}).planned(
        task("t1")
    )

    assert story.statuses() == {"t1": "held"}


def test_a_fallback_that_a_person_must_allow_is_asked_for_first() -> None:
    cards = (card("worker", fallback="other"), card("other", approval="required"))
    story = WorkflowDriver(cards=cards, circuits={"worker": open_until(60)})
    story.planned(task("t1"))

    assert story.statuses() == {"t1": "awaiting_answer"}
    story.control("approve", question=next(iter(story.state.questions)))
    assert story.handoff("t1").to_agent == "other"


def test_approved_work_is_not_moved_to_the_fallback() -> None:
    story = WorkflowDriver(cards=(card("worker", fallback="other"), card("other"))).planned(task("t1"))
    story.fail_task("t1", error=None, questions=[{"tool": "pay", "arguments": {"amount": 9}}])
    story.circuits = {"worker": open_until(60)}
    story.control("approve", question=next(iter(story.state.questions)))

    assert story.statuses() == {"t1": "held"}


def test_task_with_a_failing_fallback_waits_for_the_earlier_circuit() -> None:
    cards = (card("worker", fallback="other"), card("other", fallback="worker"))
    story = WorkflowDriver(cards=cards, circuits={"worker": open_until(9), "other": open_until(4)})
    story.planned(task("t1"))

    assert story.task("t1").not_before == at(4)
    story.fire_timer()
    assert story.handoff("t1").to_agent == "other"


def test_mutual_fallbacks_end_a_task_after_one_attempt_of_each() -> None:
    cards = (card("worker", fallback="other"), card("other", fallback="worker"))
    story = WorkflowDriver(cards=cards, circuits={"worker": open_until(60)}, refiner=None)
    story.planned(task("t1"))

    story.fail_task("t1")

    assert [entry.agent for entry in story.entries_of(TaskDispatched) if entry.task_id == "t1"] == ["other"]
    assert story.entries_of(RetryScheduled) == []
    assert story.statuses() == {"t1": "failed"}


def test_fallbacks_in_a_circle_end_a_task_after_one_of_each() -> None:
    story = WorkflowDriver(cards=(card("worker", fallback="other"), card("other", fallback="worker")))
    story.planned(task("t1"))

    story.fail_task("t1")
    story.fail_task("t1")

    assert [entry.agent for entry in story.entries_of(RetryScheduled)] == ["other"]
    assert story.statuses() == {"t1": "failed"}


def test_exhausted_agent_with_a_failing_fallback_fails_with_that_reason() -> None:
    story = WorkflowDriver(cards=(card("worker", fallback="other"), card("other")), circuits={"other": open_until(60)})
    story.planned(task("t1"))

    story.fail_task("t1", failure("context_overflow"))

    (failed,) = story.entries_of(TaskFailed)
    assert failed.error.kind == "context_overflow"
    assert failed.error.message == (
        "context_overflow was seen; the fallback other keeps failing, too, so no work is sent to it"
    )


def test_retry_of_a_failing_agent_is_held_without_an_attempt() -> None:
    story = WorkflowDriver(refiner=None)
    story.planned(task("t1"))
    story.circuits = {"worker": open_until(9)}
    story.fail_task("t1", failure(retryable=True))

    assert story.statuses() == {"t1": "held"}
    story.fire_timer()
    assert (story.statuses(), story.task("t1").attempt) == ({"t1": "running"}, 2)


def test_retry_that_waited_for_budget_is_held_if_its_circuit_opened() -> None:
    story = WorkflowDriver(limits=Limits(calls=3), strategy=PlanAndExecute(synthesizer=None), refiner=None)
    story.planned(task("a"), task("b", "other"))
    story.fail_task("a", failure(retryable=True, retry_after=5))
    assert story.statuses()["a"] == "awaiting_budget"

    story.circuits = {"worker": open_until(9)}
    story.complete_task("b", usage=Usage())

    assert story.statuses()["a"] == "held"


def test_guarded_fallback_needs_approval_after_waiting_for_budget() -> None:
    cards = (card("worker", fallback="standby"), card("standby", approval="required"), card("other"))
    for wait in (None, 30):  # the retry time has passed at 9 s, or has not
        story = WorkflowDriver(
            limits=Limits(calls=3), strategy=PlanAndExecute(synthesizer=None), refiner=None, cards=cards
        )
        story.planned(task("a"), task("b", "other"))
        story.fail_task("a", failure(retryable=True, retry_after=wait))
        story.circuits = {"worker": open_until(60)}
        story.wait(9).complete_task("b", usage=Usage())

        assert story.statuses()["a"] == "awaiting_answer", wait


def test_retry_goes_to_the_fallback_while_the_circuit_is_open() -> None:
    story = WorkflowDriver(cards=(card("worker", fallback="other"), card("other", fallback="worker")), refiner=None)
    story.planned(task("t1"))
    story.circuits = {"worker": open_until(60)}

    story.fail_task("t1", failure(retryable=True))
    (retry,) = story.entries_of(RetryScheduled)
    assert retry.agent == "other"
    assert "worker keeps failing; other is its fallback" in retry.reason

    story.circuits = {"other": open_until(8)}
    story.fail_task("t1", failure(retryable=True))
    assert story.statuses() == {"t1": "held"}, "worker had its attempt, so the task must wait for other"
    story.fire_timer()
    assert story.handoff("t1").to_agent == "other"
    story.fail_task("t1", failure(retryable=True))
    assert story.statuses() == {"t1": "failed"}, "no agent is left, because the fallback of other is the first agent"


def test_held_task_at_the_deadline_is_a_gap_with_the_reason() -> None:
    story = WorkflowDriver(limits=Limits(deadline=25), strategy=PlanAndExecute(synthesizer=None))
    story.circuits = {"worker": open_until(3600)}
    story.planned(task("t1"), task("t2", "other"))
    story.complete_task("t2")

    while not story.state.ended:
        story.fire_timer()

    (gap,) = story.outcome.gaps
    assert story.outcome.status == "partial"
    assert "the deadline of 25 s was reached; worker kept failing and was sent no work" in gap.reason
    held = [each.until for each in story.entries_of(TaskHeld)]
    assert sorted(held) == [at(10), at(20), at(25)], (
        "the task must be checked every ten seconds, and last at the deadline"
    )


def test_a_synthesizer_that_keeps_failing_leaves_the_results_after_the_deadline() -> None:
    story = WorkflowDriver(limits=Limits(deadline=25), circuits={"synthesizer": open_until(3600)})
    story.planned(task("t1"))
    story.complete_task("t1")

    assert story.task("synthesis").held
    while not story.state.ended:
        story.fire_timer()

    assert story.outcome.status == "partial"
    assert "synthesizer keeps failing" in story.outcome.reason


def test_stages_and_members_that_keep_failing_are_waited_for() -> None:
    for strategy in (Pipeline(stages=(Stage(agent="worker"),)), FanOut(synthesizer=None)):
        story = WorkflowDriver(strategy=strategy, agents=("worker",), circuits={"worker": open_until(8)}).start()
        assert list(story.statuses().values()) == ["held"]
        story.fire_timer()
        assert list(story.statuses().values()) == ["running"]


def test_held_task_is_dropped_by_a_new_plan() -> None:
    story = WorkflowDriver(limits=Limits(replans=1), circuits={"worker": open_until(8)})
    story.planned(task("t1"), task("t2", "other"))
    story.complete_task("t2", replan_hint="it is configuration")

    story.wait(20)
    story.complete_task("plan-2", {"goal": "g", "tasks": [task("t3", "other")]})

    assert story.statuses() == {"t2": "succeeded", "t3": "running"}
