"""References to files of requests and results are passed to tasks and to the outcome, within the team's limits."""

from __future__ import annotations

from typing import Any

import pytest
from support.core import WorkflowDriver, cards, failure, task

from pointsman.core.decide import make_decision
from pointsman.core.decision import DecisionContext
from pointsman.core.model.inputs import ControlReceived
from pointsman.core.replay.replayer import replay_log
from pointsman.core.resume import resume_refusal
from pointsman.core.tasks.child_workflow import child_request
from pointsman_schemas.events import Control, Request
from pointsman_schemas.files import File
from pointsman_schemas.log import AttemptFailed
from pointsman_schemas.plan import Plan, PlannedTask
from pointsman_schemas.retry import RetryPolicy
from pointsman_schemas.strategies import Fixed
from pointsman_schemas.team import Limits, Team


def file(name: str = "invoice.pdf", size: int = 10, media_type: str = "application/pdf") -> File:
    return File(name=name, media_type=media_type, size=size, sha256=f"{size:064x}", owner="wf_1")


def step(id: str, needs: tuple[str, ...] = ()) -> PlannedTask:
    return PlannedTask(id=id, agent=id, intent=f"do the work of {id}", depends_on=needs)


CHAIN = Fixed(plan=Plan(tasks=(step("scan"), step("book", ("scan",)))))


def test_every_task_receives_the_files_of_the_request_and_of_its_dependencies() -> None:
    story = WorkflowDriver(strategy=CHAIN, cards=cards("scan", "book")).start(files=[file()])
    assert story.handoff("scan").files == (file(),)

    story.complete_task("scan", "page", files=[file("page.png", 20, "image/png")])

    handoff = story.handoff("book")
    assert handoff.files == (file(),)
    assert [report.files for report in handoff.context] == [(file("page.png", 20, "image/png"),)]


def test_the_outcome_lists_the_files_of_succeeded_tasks_once() -> None:
    page = file("page.png", 20, "image/png")
    story = WorkflowDriver(strategy=CHAIN, cards=cards("scan", "book")).start(files=[file()])

    story.complete_task("scan", files=[page])
    story.complete_task("book", files=[page, file("book.csv", 30)])

    assert story.outcome.files == (page, file("book.csv", 30))
    assert list(replay_log(story.commits)) == []
    assert story.outcome.status == "completed"


@pytest.mark.parametrize(
    ("files", "limits", "fault"),
    [
        ([file(str(n)) for n in range(3)], {"files": 2}, "3 files were given; at most 2 are allowed"),
        ([file(size=11)], {"file_bytes": 10}, "the file 'invoice.pdf' has 11 bytes; at most 10 are allowed"),
        ([file()], {"file_types": ("image/*",)}, "the file 'invoice.pdf' is application/pdf; expected one of image/*"),
        ([file(), file(size=3)], {}, "two files are called 'invoice.pdf'; give one of them another name"),
    ],
)
def test_files_beyond_the_limits_of_the_team_are_refused(files: Any, limits: Any, fault: str) -> None:
    story = WorkflowDriver(strategy=CHAIN, limits=Limits(**limits), retry=RetryPolicy(attempts=1))
    story.start(files=files)

    assert (story.outcome.status, story.outcome.reason, story.statuses()) == ("failed", fault, {})
    resume = ControlReceived("resume", Control(action="resume"), "ada")
    decision = make_decision(story.state, [resume], DecisionContext(story.now, story.cards))
    assert (list(decision.entries), resume_refusal(decision, resume)) == (
        [],
        f"{fault}; correct the files and publish the request again under a new id",
    )
    assert list(replay_log(story.commits)) == []

    returned = WorkflowDriver(strategy=CHAIN, limits=Limits(**limits), cards=cards("scan", "book")).start()
    returned.complete_task("scan", files=files)
    assert [entry.error.message for entry in returned.entries_of(AttemptFailed)] == [fault]
    assert returned.statuses() == {"scan": "failed", "book": "skipped"}


def test_a_failed_attempt_returns_no_files() -> None:
    story = WorkflowDriver(strategy=CHAIN, cards=cards("scan", "book"), retry=RetryPolicy(attempts=1)).start()

    story.fail_task("scan", failure(), files=[file()])

    assert story.outcome.files == ()


def test_a_child_workflow_receives_the_files_of_its_handoff() -> None:
    story = WorkflowDriver(strategy=CHAIN, cards=cards("scan", "book")).start(files=[file()])
    story.complete_task("scan", files=[file("page.png", 20), file("invoice.pdf", 99)])

    request = child_request(story.handoff("book"), Team(name="book"), story.now)

    assert isinstance(request, Request)
    assert request.files == (file(), file("page.png", 20))


def test_a_message_without_files_does_not_name_them() -> None:
    story = WorkflowDriver().planned(task("a"))

    assert "files" not in story.handoff("a").model_dump()
    assert "files" not in Request(input="x").model_dump()
