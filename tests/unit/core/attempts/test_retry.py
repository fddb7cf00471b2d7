"""After a failed attempt the task is retried, goes to the fallback agent, or fails. Attempts are bounded."""

from __future__ import annotations

from datetime import timedelta

import pytest
from support.core import WorkflowDriver, card, cards, failure, messages, task

from pointsman.core.replay.replayer import replay_log
from pointsman_schemas.events import ErrorKind
from pointsman_schemas.log import AttemptFailed, RetryScheduled, TaskFailed
from pointsman_schemas.team import Limits, Pipeline, RetryPolicy, Stage

TRANSIENT = failure("provider_error", retryable=True)
WITH_FALLBACK = (card("worker", fallback="other"), card("other"))


def pauses(story: WorkflowDriver) -> list[float]:
    return [(entry.not_before - entry.at).total_seconds() for entry in story.entries_of(RetryScheduled)]


def test_transient_failures_back_off_from_a_second_with_doubling_and_jitter() -> None:
    story = WorkflowDriver(retry=RetryPolicy(attempts=4)).planned(task("a"))

    for _ in range(3):
        story.fail_task("a", TRANSIENT)
        story.wait(10)

    assert pauses(story) == [pytest.approx(1, rel=0.2), pytest.approx(2, rel=0.2), pytest.approx(4, rel=0.2)]


def test_jitter_spreads_retries_and_is_reproducible() -> None:
    tasks = [task(f"t{number}") for number in range(20)]
    first, second = WorkflowDriver().planned(*tasks), WorkflowDriver().planned(*tasks)
    for story in (first, second):
        story.decide_and_apply(*(story.result(each["id"], error=TRANSIENT) for each in tasks))

    assert len(set(pauses(first))) == 20
    assert pauses(first) == pauses(second)
    assert max(pauses(first)) - min(pauses(first)) > 0.2


def test_the_backoff_has_a_limit_of_five_minutes_plus_jitter() -> None:
    story = WorkflowDriver(
        limits=Limits(deadline=100_000, task_timeout=10), retry=RetryPolicy(attempts=20, backoff=100)
    ).planned(task("a"))

    for _ in range(10):
        story.fail_task("a", TRANSIENT)
        story.wait(400)

    assert max(pauses(story)) <= 360


@pytest.mark.parametrize("asked", [0.0, 17.0])
def test_retry_after_of_the_provider_overrides_the_backoff(asked: float) -> None:
    story = WorkflowDriver().planned(task("a"))

    story.fail_task("a", failure(retryable=True, retry_after=asked))

    assert pauses(story) == [asked]


def test_the_next_attempt_waits_in_a_schedule_of_the_broker() -> None:
    story = WorkflowDriver().planned(task("a"))
    first = story.handoff("a")

    story.fail_task("a", TRANSIENT)

    (message,) = [each for each in messages(story.state) if each.event == story.handoff("a")]
    assert message.schedule is not None
    assert message.due == story.task("a").not_before
    assert story.handoff("a").attempt == 2
    assert story.handoff("a").idempotency_key == first.idempotency_key


def test_a_retry_that_succeeds_leaves_no_gap() -> None:
    story = WorkflowDriver().planned(task("a"))
    story.fail_task("a", TRANSIENT)
    story.wait(2)

    story.complete_task("a")
    story.complete_task("synthesis", {"answer": "done"})

    assert story.outcome.status == "completed"
    assert [(each.task_id, each.attempts) for each in story.outcome.tasks] == [
        ("plan-1", 1),
        ("a", 2),
        ("synthesis", 1),
    ]


def test_a_terminal_error_is_not_retried() -> None:
    story = WorkflowDriver().planned(task("a"))

    story.fail_task("a", failure("handler_error", retryable=False))

    assert story.entries_of(RetryScheduled) == []
    assert story.entries_of(TaskFailed)[0].attempts == 1


def test_a_refusal_without_a_reason_is_terminal() -> None:
    story = WorkflowDriver().planned(task("a"))

    story.decide_and_apply(story.result("a", status="refused"))

    assert story.entries_of(TaskFailed)[0].error.kind == ErrorKind.REFUSED


def test_failure_without_a_reason_is_a_handler_error_and_goes_to_the_fallback() -> None:
    story = WorkflowDriver(cards=WITH_FALLBACK).planned(task("a"))

    story.decide_and_apply(story.result("a", status="failed"))

    assert story.task("a").agent == "other"
    assert story.entries_of(AttemptFailed)[0].error.kind == ErrorKind.HANDLER


def test_attempts_are_capped() -> None:
    story = WorkflowDriver(retry=RetryPolicy(attempts=3)).planned(task("a"))

    for _ in range(3):
        story.fail_task("a", TRANSIENT)
        story.wait(10)

    assert story.entries_of(TaskFailed)[0].attempts == 3
    assert story.outcome.status == "failed"


def test_a_pause_beyond_the_deadline_ends_the_task_now() -> None:
    story = WorkflowDriver(limits=Limits(deadline=60)).planned(task("a"))

    story.fail_task("a", failure(retryable=True, retry_after=60))

    assert story.statuses() == {"a": "failed"}


# The retry policy


def test_the_delays_follow_the_policy() -> None:
    policy = RetryPolicy(attempts=5, backoff=3, factor=4, max_backoff=20, jitter=0)
    story = WorkflowDriver(retry=policy).planned(task("a"))

    for _ in range(4):
        story.fail_task("a", TRANSIENT)
        story.wait(30)

    assert pauses(story) == [3, 12, 20, 20]


def test_without_a_backoff_the_next_attempt_is_made_at_once() -> None:
    story = WorkflowDriver(retry=RetryPolicy(backoff=0)).planned(task("a"))

    story.fail_task("a", TRANSIENT)

    assert pauses(story) == [0]


def test_a_kind_in_retry_on_is_retried_although_its_error_is_not_marked() -> None:
    story = WorkflowDriver(retry=RetryPolicy(retry_on=("handler_error",))).planned(task("a"))

    story.fail_task("a", failure("handler_error"))
    story.wait(5)
    story.fail_task("a", failure("no_worker"))

    assert story.entries_of(RetryScheduled)[0].reason == "attempt 1 failed: handler_error"
    assert story.entries_of(TaskFailed)[0].attempts == 2


def test_a_kind_in_no_retry_on_is_not_retried_although_its_error_is_marked() -> None:
    story = WorkflowDriver(retry=RetryPolicy(no_retry_on=("provider_error",))).planned(task("a"))

    story.fail_task("a", TRANSIENT)

    assert story.entries_of(RetryScheduled) == []
    assert story.entries_of(TaskFailed)[0].attempts == 1


def test_the_policy_of_a_task_replaces_that_of_its_team() -> None:
    stages = (Stage(agent="worker", retry=RetryPolicy(attempts=4, jitter=0, factor=1)), Stage(agent="other"))
    team = RetryPolicy(attempts=2, backoff=7, jitter=0)
    story = WorkflowDriver(strategy=Pipeline(stages=stages), retry=team).start()

    for _ in range(3):
        story.fail_task("worker", TRANSIENT)
        story.wait(5)
    story.complete_task("worker")
    for _ in range(2):
        story.fail_task("other", TRANSIENT)
        story.wait(10)

    assert pauses(story) == [1, 1, 1, 7]
    assert story.statuses() == {"worker": "succeeded", "other": "failed"}
    assert list(replay_log(story.commits)) == []


def test_the_roles_have_the_policy_of_the_team() -> None:
    story = WorkflowDriver(retry=RetryPolicy(attempts=1)).start()

    story.fail_task("plan-1", TRANSIENT)

    assert story.outcome.status == "failed"
    assert story.entries_of(RetryScheduled) == []


# The fallback agent


def test_the_fallback_gets_one_attempt_when_the_agent_is_exhausted() -> None:
    story = WorkflowDriver(cards=WITH_FALLBACK, retry=RetryPolicy(attempts=2)).planned(task("a"))
    for _ in range(2):
        story.fail_task("a", TRANSIENT)
        story.wait(10)

    assert (story.task("a").agent, story.task("a").attempt) == ("other", 3)
    assert story.entries_of(RetryScheduled)[-1].not_before == story.entries_of(RetryScheduled)[-1].at
    story.fail_task("a", TRANSIENT)
    assert story.entries_of(TaskFailed)[0].attempts == 3


def test_fallback_gets_the_task_at_once_after_a_terminal_error() -> None:
    story = WorkflowDriver(cards=WITH_FALLBACK).planned(task("a"))

    story.fail_task("a", failure("handler_error"))
    late = story.complete_task("a", "late", agent="worker", attempt=1, event_id="late")
    story.complete_task("a", "from the fallback")

    assert [entry.kind for entry in late] == ["result_ignored"]
    assert story.handoff("synthesis").context[0].agent == "other"


def test_the_fallback_gets_the_task_of_an_agent_that_is_gone() -> None:
    story = WorkflowDriver(cards=WITH_FALLBACK, limits=Limits(task_timeout=20)).planned(task("a"))
    story.cards = (card("other"),)

    story.fire_timer()

    assert (story.task("a").agent, story.task("a").attempt) == ("other", 2)
    assert not story.entries_of(TaskFailed)


def test_a_refusal_does_not_go_to_the_fallback() -> None:
    story = WorkflowDriver(cards=WITH_FALLBACK).planned(task("a"))

    story.fail_task("a", failure("refused"), status="refused")

    assert story.statuses() == {"a": "failed"}


def test_fallback_does_not_repeat_work_with_an_unknown_outcome() -> None:
    story = WorkflowDriver(cards=WITH_FALLBACK).planned(task("a"))

    story.fail_task("a", failure("outcome_unknown"))

    assert story.statuses() == {"a": "failed"}


def test_a_fallback_that_is_not_alive_gets_nothing() -> None:
    story = WorkflowDriver(cards=WITH_FALLBACK).planned(task("a"))
    story.cards = cards("worker")

    story.fail_task("a", failure("handler_error"))

    assert story.statuses() == {"a": "failed"}


def test_an_agent_is_not_its_own_fallback() -> None:
    story = WorkflowDriver(cards=(card("worker", fallback="worker"),)).planned(task("a"))

    story.fail_task("a", failure("handler_error"))

    assert story.statuses() == {"a": "failed"}


def test_mutual_fallbacks_do_not_repeat_a_task() -> None:
    story = WorkflowDriver(cards=(card("worker", fallback="other"), card("other", fallback="worker"))).planned(
        task("a")
    )

    story.fail_task("a", failure("handler_error"))
    story.fail_task("a", failure("handler_error"))

    assert story.entries_of(TaskFailed)[0].attempts == 2


# Overdue


def test_silent_agent_times_out_after_the_grace_and_is_retried() -> None:
    story = WorkflowDriver(limits=Limits(task_timeout=20)).planned(task("a"))
    assert story.handoff("a").deadline == story.now + timedelta(seconds=20)

    story.fire_timer()

    assert story.now == story.commits[0].entries[0].at + timedelta(seconds=21)
    assert story.task("a").error is not None
    assert story.entries_of(RetryScheduled)[0].reason == "attempt 1 failed: timeout"
    assert story.statuses() == {"a": "backing_off"}


def test_missing_agent_is_named_and_the_task_not_retried() -> None:
    story = WorkflowDriver(limits=Limits(task_timeout=20)).planned(task("a"))
    story.cards = ()

    story.fire_timer()

    error = story.entries_of(TaskFailed)[0].error
    assert (error.kind, error.message) == (
        "no_worker",
        "no result came, and no agent named worker is alive: no worker took the handoff, or the worker has stopped; "
        "the task waited 21 s",
    )


def test_the_card_s_own_timeout_bounds_an_attempt() -> None:
    story = WorkflowDriver(cards=(card("worker", timeout=5),)).planned(task("a"))

    assert story.handoff("a").deadline == story.now + timedelta(seconds=5)


def test_an_attempt_s_time_begins_after_its_backoff() -> None:
    story = WorkflowDriver(limits=Limits(task_timeout=20)).planned(task("a"))

    story.fail_task("a", failure(retryable=True, retry_after=30))

    assert story.handoff("a").deadline == story.now + timedelta(seconds=50)
