"""Tasks start after their dependencies have succeeded. A result id counts once. Failures cascade with their cause."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from support.core import SECRET, WORKFLOW, WorkflowDriver, failure, messages, plan, task

from pointsman.core.completion.caller_messages import NOT_SERVED_MESSAGE, generic_failure
from pointsman_schemas.events import DeadLetter, Handoff, Usage
from pointsman_schemas.ids import attempt_token
from pointsman_schemas.log import ResultIgnored, TaskDispatched, TaskSkipped
from pointsman_schemas.team import Limits, Pipeline, RetryPolicy, Stage

DIAMOND = (
    task("T1"),
    task("T2", "other"),
    task("T3", needs=["T1"]),
    task("T4", "other", needs=["T2"]),
    task("T5", needs=["T3", "T4"]),
)


def test_tasks_without_dependencies_start_together() -> None:
    story = WorkflowDriver().planned(*DIAMOND)

    assert story.statuses() == {
        "T1": "running",
        "T2": "running",
        "T3": "waiting",
        "T4": "waiting",
        "T5": "waiting",
    }


def test_task_starts_once_its_dependencies_have_succeeded() -> None:
    story = WorkflowDriver().planned(*DIAMOND)

    story.complete_task("T2")
    assert (story.statuses()["T3"], story.statuses()["T4"]) == ("waiting", "running")
    story.complete_task("T4")
    assert story.statuses()["T5"] == "waiting"
    story.complete_task("T1")
    story.complete_task("T3")
    assert story.statuses()["T5"] == "running"


def test_task_gets_the_results_of_its_dependencies_only() -> None:
    story = WorkflowDriver().planned(*DIAMOND)
    story.complete_task("T2", {"found": 2})
    story.complete_task("T1", {"found": 1})

    context = story.handoff("T3").context

    assert [(each.task_id, each.output) for each in context] == [("T1", {"found": 1})]


def test_the_synthesizer_is_given_every_result_in_the_order_of_the_plan() -> None:
    story = WorkflowDriver().planned(task("a"), task("b"))
    story.complete_task("b", "done")
    story.complete_task("a", "done")

    handoff = story.handoff("synthesis")

    assert [each.task_id for each in handoff.context] == ["a", "b"]
    assert handoff.input == {"request": "do it", "goal": "serve the request", "final_instruction": "be brief"}


def test_the_answer_of_the_synthesizer_is_the_outcome() -> None:
    story = WorkflowDriver().planned(task("a"))
    story.complete_task("a")
    story.complete_task("synthesis", {"answer": "done"})

    assert (story.outcome.status, story.outcome.answer, story.outcome.gaps) == ("completed", "done", ())
    assert story.outcome.usage.calls == 3
    assert story.outcome.sequential == pytest.approx(6.0)


def test_outcome_has_the_elapsed_and_the_sequential_time() -> None:
    story = WorkflowDriver().planned(task("a"), task("b")).wait(3)
    story.complete_task("a")
    story.complete_task("b")
    story.complete_task("synthesis", {"answer": "done"})

    assert story.outcome.elapsed == 3.0
    assert story.outcome.sequential == pytest.approx(8.0)


def test_failed_attempt_counts_in_time_and_cost() -> None:
    story = WorkflowDriver().planned(task("a"))
    story.fail_task("a", failure(retryable=True))
    story.wait(10).complete_task("a")
    story.complete_task("synthesis", {"answer": "done"})

    (of_a,) = (each for each in story.outcome.tasks if each.task_id == "a")
    assert story.outcome.sequential == pytest.approx(8.0)
    assert story.outcome.usage == Usage(calls=4, input_tokens=400, output_tokens=40, cost=1.0)
    assert of_a.usage == Usage(calls=2, input_tokens=200, output_tokens=20, cost=0.5)


def test_failure_skips_its_dependents_with_the_cause() -> None:
    story = WorkflowDriver().planned(*DIAMOND)

    story.fail_task("T1", failure("handler_error"))
    story.complete_task("T2")
    story.complete_task("T4")
    story.complete_task("synthesis", {"answer": "half of it"})

    assert story.statuses() == {
        "T1": "failed",
        "T2": "succeeded",
        "T3": "skipped",
        "T4": "succeeded",
        "T5": "skipped",
    }
    assert [(skip.task_id, skip.unmet_dependency) for skip in story.entries_of(TaskSkipped)] == [
        ("T3", "T1"),
        ("T5", "T3"),
    ]
    assert (story.outcome.status, story.outcome.answer) == ("partial", "half of it")
    assert {gap.task_id for gap in story.outcome.gaps} == {"T1", "T3", "T5"}
    assert all("handler_error was seen" in gap.reason for gap in story.outcome.gaps)


def test_a_failure_skips_the_whole_chain_behind_it_at_once() -> None:
    story = WorkflowDriver().planned(task("a"), task("b", needs=["a"]), task("c", needs=["b"]), task("d"))

    story.fail_task("a", failure("handler_error"))

    assert story.statuses() == {"a": "failed", "b": "skipped", "c": "skipped", "d": "running"}


def test_synthesizer_gets_the_gaps() -> None:
    story = WorkflowDriver().planned(task("a"), task("b"), task("c", needs=["a"]))
    story.fail_task("a")
    story.complete_task("b")

    given: Any = story.handoff("synthesis").input

    assert [gap["task_id"] for gap in given["gaps"]] == ["a", "c"]


def test_task_runs_without_its_optional_dependency_and_sees_its_status() -> None:
    story = WorkflowDriver().planned(task("a"), task("b"), task("c", needs=["b"], optional=["a"]))
    story.complete_task("b")
    assert story.statuses()["c"] == "waiting"

    story.fail_task("a", failure("refused"))

    assert story.statuses()["c"] == "running"
    told = {each.task_id: each for each in story.handoff("c").context}
    assert (told["a"].status, told["a"].output) == ("failed", None)
    assert told["a"].error == failure("refused")


def test_an_optional_dependency_that_was_skipped_holds_nothing_back() -> None:
    story = WorkflowDriver().planned(task("a"), task("b", needs=["a"]), task("c", optional=["b"]))

    story.fail_task("a")

    assert story.statuses() == {"a": "failed", "b": "skipped", "c": "running"}


def test_a_dependency_that_is_named_twice_is_mandatory() -> None:
    story = WorkflowDriver().planned(task("a"), task("b", needs=["a"], optional=["a"]))

    story.fail_task("a")

    assert story.statuses()["b"] == "skipped"


@pytest.mark.parametrize(
    ("kinds", "answer"),
    [
        (
            ("refused", "refused"),
            "Could not help, because refused was seen. Say what is missing, or ask for something else.",
        ),
        (
            ("invalid_input", "limit"),
            "Could not help, because invalid_input was seen; limit was seen. Correct the request and publish it again "
            "under a new id. Ask for less, or raise the limit.",
        ),
        (
            ("no_worker", "no_worker"),
            "Could not help, because no_worker was seen. Ask again when the agent is live; `pointsman agents` lists "
            "the live agents.",
        ),
        (("refused", "invalid_output"), generic_failure(WORKFLOW)),
    ],
)
def test_caller_gets_the_error_if_it_is_the_callers(kinds: tuple[str, str], answer: str) -> None:
    story = WorkflowDriver().planned(task("a"), task("b"), task("c", needs=["a"]))

    for name, kind in zip("ab", kinds, strict=True):
        story.fail_task(name, failure(kind))

    assert (story.outcome.status, story.outcome.answer) == ("failed", answer)


def test_total_failure_is_explained_to_the_caller_and_the_operator() -> None:
    story = WorkflowDriver().planned(task("a"), task("b", needs=["a"]))

    story.fail_task("a", failure("invalid_output"))

    assert story.outcome.status == "failed"
    assert story.outcome.answer == generic_failure(WORKFLOW)
    assert f"`pointsman show {WORKFLOW}`" in generic_failure(WORKFLOW)
    assert story.outcome.reason == "a: invalid_output was seen"


def test_caller_is_told_to_retry_only_if_that_may_help() -> None:
    passing = WorkflowDriver(retry=RetryPolicy(attempts=1)).planned(task("a"), task("b"))
    passing.fail_task("a", failure("provider_error", retryable=True))
    passing.fail_task("b", failure("invalid_output"))
    lasting = WorkflowDriver(retry=RetryPolicy(attempts=1)).planned(task("a"))
    lasting.fail_task("a", failure("provider_error"))

    assert passing.outcome.answer == NOT_SERVED_MESSAGE
    assert "try again later" in NOT_SERVED_MESSAGE
    assert "trying again is unlikely to help" in str(lasting.outcome.answer)


def test_caller_gets_the_exhausted_limit() -> None:
    story = WorkflowDriver(limits=Limits(deadline=20, task_timeout=100)).planned(task("a"))

    story.wait(20).fire_timer()

    assert story.outcome.answer == (
        "Could not help, because the deadline of 20 s was reached. Ask for less, or raise the limit."
    )


def test_task_at_the_deadline_reports_that_no_agent_is_live() -> None:
    stages = Pipeline(stages=(Stage(agent="ghost"),))
    story = WorkflowDriver(strategy=stages, limits=Limits(deadline=20)).start()

    story.wait(20).fire_timer()

    [gap] = story.outcome.gaps
    said = (
        "the deadline of 20 s was reached; no result came, and no agent named ghost is alive: no worker took "
        "the handoff, or the worker has stopped"
    )
    assert (gap.agent, gap.reason) == ("ghost", said)
    assert "no agent named ghost is alive" in story.outcome.reason
    assert "no agent named ghost is alive" in str(story.outcome.answer)
    assert str(story.outcome.answer).endswith(
        "Ask again when the agent is live; `pointsman agents` lists the live agents."
    )


def test_a_synthesizer_that_fails_leaves_the_bare_results_as_a_partial_answer() -> None:
    story = WorkflowDriver().planned(task("a"), task("b"))
    story.complete_task("a", 1)
    story.complete_task("b", 2)

    story.fail_task("synthesis", failure("handler_error"))

    assert (story.outcome.status, story.outcome.answer) == ("partial", {"a": 1, "b": 2})
    assert "could not write the answer" in story.outcome.reason


@pytest.mark.parametrize("kind", ["refused", "provider_error"])
def test_permanently_failed_synthesizer_fails_the_workflow_with_readable_results(
    kind: str,
) -> None:
    story = WorkflowDriver().planned(task("a"), task("b"))
    story.complete_task("a", 1)
    story.complete_task("b", 2)

    story.fail_task("synthesis", failure(kind), status="refused" if kind == "refused" else "failed")

    assert (story.outcome.status, story.outcome.answer) == ("failed", {"a": 1, "b": 2})
    assert f"{kind} was seen" in story.outcome.reason


# Results that do not count


def test_a_redelivered_result_changes_nothing() -> None:
    story = WorkflowDriver().planned(task("a"), task("b"))
    result = story.result("a", "first")
    story.decide_and_apply(result)

    assert story.decide_and_apply(result) == ()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"attempt": 2}, "attempt 1 of the task is running"),
        ({"agent": "other"}, "the task was handed to worker"),
        ({"task_id": "nowhere"}, "no such task"),
        ({"workflow_id": "wf_2"}, "belongs to the workflow wf_2"),
    ],
)
def test_a_foreign_result_is_recorded_once_and_changes_nothing(changes: dict[str, Any], reason: str) -> None:
    story = WorkflowDriver().planned(task("a"), task("b"))
    before = story.state.tasks
    foreign = story.result("a", "stolen", event_id="foreign", **changes)

    (entry,) = story.decide_and_apply(foreign)

    assert isinstance(entry, ResultIgnored)
    assert reason in entry.reason
    assert story.state.tasks == before
    assert story.decide_and_apply(foreign) == ()


def test_second_result_of_an_attempt_is_recorded_and_the_first_stays() -> None:
    story = WorkflowDriver().planned(task("a"), task("b"))
    story.complete_task("a", "first")

    (entry,) = story.complete_task("a", "second", event_id="another")

    assert entry.kind == "result_ignored"
    assert story.state.usage.calls == 2
    result = story.task("a").result
    assert result is not None
    assert result.output == "first"


def test_the_result_of_an_attempt_that_was_given_up_is_late() -> None:
    story = WorkflowDriver().planned(task("a"), task("b"))
    late = story.result("a", "late", event_id="late")
    story.fail_task("a", failure(retryable=True))

    (entry,) = story.decide_and_apply(late)

    assert isinstance(entry, ResultIgnored)
    assert entry.reason == "attempt 2 of the task is backing_off"
    assert story.statuses()["a"] == "backing_off"


def test_nothing_is_recorded_after_the_end() -> None:
    story = WorkflowDriver().planned(task("a"))
    late = story.result("a", "late", event_id="late")
    story.fail_task("a")
    assert story.state.ended

    assert story.decide_and_apply(late) == ()


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
def test_results_that_arrive_together_or_apart_lead_to_the_same_answer(order: tuple[str, ...]) -> None:
    tasks = (task("a"), task("b"), task("c"), task("d", needs=["a", "b"]))
    together, apart = WorkflowDriver().planned(*tasks), WorkflowDriver().planned(*tasks)

    together.decide_and_apply(*(together.result(name, name) for name in order))
    for name in order:
        apart.decide_and_apply(apart.result(name, name))
    for story in (together, apart):
        story.complete_task("d", "d")
        story.complete_task("synthesis", {"answer": "the same"})

    assert together.outcome.answer == apart.outcome.answer == "the same"
    assert together.statuses() == apart.statuses()
    assert together.state.usage == apart.state.usage


def test_a_task_without_an_input_of_its_own_gets_the_request() -> None:
    story = WorkflowDriver().start("translate this")
    story.complete_task("plan-1", plan(task("a"), {**task("b"), "input": {"own": True}}))

    assert story.handoff("a").input == {"request": "translate this"}
    assert story.handoff("b").input == {"own": True}


def test_a_task_is_dispatched_once() -> None:
    story = WorkflowDriver().planned(*DIAMOND)
    for name in ("T1", "T2", "T3", "T4", "T5"):
        story.complete_task(name)

    dispatched = [entry.task_id for entry in story.entries_of(TaskDispatched)]

    assert sorted(dispatched) == ["T1", "T2", "T3", "T4", "T5", "plan-1", "synthesis"]


def test_task_abandoned_at_the_deadline_is_a_dead_letter_with_that_cause() -> None:
    story = WorkflowDriver(limits=Limits(deadline=20, task_timeout=100)).planned(task("a"), task("b", needs=["a"]))

    story.wait(20).fire_timer()

    letters = [message.event for message in messages(story.state) if isinstance(message.event, DeadLetter)]
    assert [(letter.task_id, letter.cause.kind, letter.cause.message) for letter in letters] == [
        ("a", "limit", "the deadline of 20 s was reached")
    ]


def test_cancelled_task_is_no_dead_letter() -> None:
    story = WorkflowDriver().planned(task("a"))

    story.control("cancel")

    assert not [message for message in messages(story.state) if isinstance(message.event, DeadLetter)]


def test_synthesis_cancelled_at_a_limit_is_no_dead_letter() -> None:
    story = WorkflowDriver(limits=Limits(deadline=20, task_timeout=100)).planned(task("a"), task("b"))
    story.complete_task("a")
    story.wait(20).fire_timer()

    story.control("cancel")

    letters = [message.event for message in messages(story.state) if isinstance(message.event, DeadLetter)]
    assert story.state.tasks["synthesis"].status == "abandoned"
    assert [letter.task_id for letter in letters] == ["b"]


@pytest.mark.parametrize("forged", ["", "0" * 32, attempt_token("other", "a", 1), attempt_token(SECRET, "a", 2)])
def test_result_with_another_token_changes_nothing(forged: str) -> None:
    story = WorkflowDriver().planned(task("a"))

    assert story.complete_task("a", "forged", token=forged) == ()
    assert story.statuses() == {"a": "running"}
    assert story.complete_task("a", "true") != ()
    assert story.statuses() == {"a": "succeeded"}


def test_token_of_each_attempt_is_in_its_handoff_alone() -> None:
    story = WorkflowDriver().planned(task("a"), task("b"))
    story.fail_task("a", failure(retryable=True))

    tokens = {message.event.return_to.rpartition(".")[2] for message in messages(story.state)
              if isinstance(message.event, Handoff)}  # fmt: skip

    assert tokens == {attempt_token(SECRET, "a", 2), attempt_token(SECRET, "b", 1)}
