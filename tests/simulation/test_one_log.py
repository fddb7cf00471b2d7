"""The audit of one log accepts a log of the core, and reports a missing entry."""

from __future__ import annotations

from collections.abc import Sequence

from support.core import T0, WORKFLOW, WorkflowDriver, cards, failure, plan, task

from pointsman.ports.bus import StoredMessage
from pointsman_schemas.events import QuestionRequest
from pointsman_schemas.log import Commit, ItemsGathered, QuestionAsked, TaskSucceeded
from pointsman_schemas.plan import ForEach, Plan, PlannedTask
from pointsman_schemas.strategies import Fixed
from pointsman_schemas.team import Limits
from simulation.one_log import problems_of

FOR_EACH = Fixed(
    plan=Plan(
        tasks=(
            PlannedTask(id="read", agent="worker", intent="read"),
            PlannedTask(
                id="pay", agent="worker", intent="pay", depends_on=("read",), for_each=ForEach(items="read.bills")
            ),
            PlannedTask(id="report", agent="worker", intent="report", depends_on=("pay",)),
        )
    )
)


def problems(commits: Sequence[Commit]) -> list[str]:
    stored = [StoredMessage(f"log.{each.number}", b"", {}, each.number, T0) for each in commits]
    return list(problems_of(list(zip(stored, commits, strict=True)), {}))


def without(commits: Sequence[Commit], kind: type[ItemsGathered | TaskSucceeded], task_id: str) -> list[Commit]:
    """Return the commits without one kind of entries of one task."""
    return [
        each.model_copy(
            update={
                "decision_context": None,
                "entries": tuple(
                    entry for entry in each.entries if not (isinstance(entry, kind) and entry.task_id == task_id)
                ),
            }
        )
        for each in commits
    ]


def paid(*bills: int) -> WorkflowDriver:
    story = WorkflowDriver(strategy=FOR_EACH, cards=cards("worker")).start()
    story.complete_task("read", {"bills": list(bills)})
    for number in range(1, len(bills) + 1):
        story.complete_task(f"pay-{number}")
    return story


def test_task_after_the_items_of_a_list_starts_once_they_are_gathered() -> None:
    for bills in ((), (1, 2)):
        story = paid(*bills)

        assert story.task("report").status == "running"
        assert problems(story.commits) == []
        assert f"report was dispatched before {['pay']}" in problems(without(story.commits, ItemsGathered, "pay"))


def test_items_that_are_not_done_cannot_be_gathered() -> None:
    commits = without(paid(1, 2).commits, TaskSucceeded, "pay-1")

    assert f"pay was gathered before {['pay-1']}" in problems(commits)


def test_question_of_an_abandoned_task_does_not_hold_back_its_next_round() -> None:
    story = WorkflowDriver(cards=cards("worker", "payer"), limits=Limits(calls=4)).start()
    story.complete_task("plan-1", plan(task("pay", "payer"), task("look")))
    asked = QuestionRequest(about="information", key="k1", text="Which account?")
    story.fail_task("pay", failure("needs_answer"), questions=(asked,))
    story.fail_task("look", failure(retryable=True))  # not retried: the remaining calls are reserved for the answer
    assert story.state.ended

    story.control("resume")

    assert [each.question for each in story.entries_of(QuestionAsked)] == [f"{WORKFLOW}-q1"]
    assert (story.task("pay").status, story.task("pay").attempt) == ("running", 2)
    assert problems(story.commits) == []
