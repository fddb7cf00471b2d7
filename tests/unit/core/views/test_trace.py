"""The trace that is drawn from a log has the same tree as the exported spans."""

from __future__ import annotations

import json

import pytest
from support.history import at, completed, dispatched, failing, started, succeeded, tool

from pointsman.core.views.trace import TraceNode, build_trace
from pointsman.core.views.trace_status import at_time
from pointsman_schemas.events import ATTEMPT_STARTED, AttemptError
from pointsman_schemas.ids import span_id_for
from pointsman_schemas.log import (
    BudgetAwaited,
    Entry,
    PlanRejected,
    QuestionAnswered,
    QuestionAsked,
    RefinementRequested,
    TaskAbandoned,
    TaskFailed,
    TaskHeld,
    TaskReopened,
    WorkflowEnded,
)
from pointsman_schemas.plan import Plan


def names(node: TraceNode) -> list[object]:
    return [node.name, *(names(child) for child in node.children)]


def find(node: TraceNode, name: str) -> TraceNode:
    if node.name == name:
        return node
    for child in node.children:
        try:
            return find(child, name)
        except LookupError:
            continue
    raise LookupError(name)


def test_the_tree_is_request_workflow_tasks_attempts_in_order_of_their_start() -> None:
    root = build_trace(completed())

    assert names(root) == [
        "publish request.crew.ada",
        [
            "invoke_workflow crew",
            ["plan planner", ["attempt 1"]],
            ["invoke_agent fitter", ["attempt 1"]],
            ["invoke_agent tester", ["attempt 1"]],
            ["synthesize synthesizer", ["attempt 1"]],
        ],
    ]


def test_task_lasts_from_dispatch_to_result_and_its_attempt_as_reported() -> None:
    task = find(build_trace(completed()), "invoke_agent fitter")

    assert (task.started_at, task.ended_at, task.seconds) == (at(1), at(4), 3.0)
    assert (task.children[0].started_at, task.children[0].ended_at) == (at(1.5), at(4))


def test_ids_are_those_the_spans_have() -> None:
    root = build_trace(completed())

    assert (root.trace_id, root.span_id) == ("a" * 32, "c" * 16)
    assert root.children[0].span_id == "b" * 16
    assert find(root, "invoke_agent fitter").span_id == "span-t1"


def test_plan_and_workflow_show_their_result_status_and_usage() -> None:
    workflow = build_trace(completed()).children[0]

    assert find(workflow, "plan planner").detail == "plan 1, 2 tasks"
    assert (workflow.status, workflow.usage.tokens, workflow.seconds) == ("completed", 360, 6.0)


def test_every_attempt_is_a_node_with_its_own_agent_and_error() -> None:
    task = find(build_trace(failing()), "invoke_agent helper")

    assert [(each.name, each.agent, each.status, each.detail) for each in task.children] == [
        ("attempt 1", "fitter", "failed", "handler error: out of bolts"),
        ("attempt 2", "helper", "failed", "handler error: out of bolts"),
    ]
    assert (task.status, task.attempt) == ("failed", 2)


def test_skipped_task_names_the_cause() -> None:
    task = find(build_trace(failing()), "invoke_agent tester")

    assert (task.status, task.detail, task.seconds) == ("skipped", "t1 failed", 0.0)


@pytest.mark.parametrize("length", range(1, 13))
def test_any_beginning_of_a_log_can_be_drawn_and_is_running(length: int) -> None:
    root = build_trace(completed()[:length])

    assert root.children[0].status == ("running" if length < len(completed()) else "completed")


def test_a_planned_task_waits_until_it_is_dispatched() -> None:
    task = find(build_trace(completed()[:5]), "invoke_agent fitter")

    assert (task.status, task.started_at, task.children) == ("waiting", None, ())


def test_approval_answer_is_shown_at_its_own_task() -> None:
    def asked(approval: str, task: str) -> QuestionAsked:
        return QuestionAsked(at=at(1), question=approval, about="task", task_id=task, expires_at=at(60))

    answer = QuestionAnswered(at=at(2), event_id="e", question="1", verdict="approved", by="ann")

    root = build_trace([*completed()[:5], asked("1", "t1"), asked("11", "t2"), answer])

    assert find(root, "invoke_agent fitter").detail == "approved by ann"
    assert find(root, "invoke_agent tester").detail == "waits for an answer to 11"


@pytest.mark.parametrize(("by", "said"), [("ann", "rejected by ann"), ("", "rejected")])
def test_rejecting_person_is_shown_beside_the_failure(by: str, said: str) -> None:
    asked = QuestionAsked(at=at(1), question="1", about="task", task_id="t1", expires_at=at(60))
    answer = QuestionAnswered(at=at(2), event_id="e", question="1", verdict="rejected", by=by)
    error = AttemptError(kind="rejected", message="it was not allowed")

    root = build_trace([*completed()[:5], asked, answer, TaskFailed(at=at(2), task_id="t1", error=error, attempts=0)])

    assert find(root, "invoke_agent fitter").detail == f"{said}; rejected: it was not allowed"


@pytest.mark.parametrize(("begun", "name"), [(4, "plan planner"), (1, "invoke_workflow crew")], ids=["asked", "fixed"])
def test_rejecting_person_of_a_plan_is_shown_at_its_planner_or_workflow(begun: int, name: str) -> None:
    asked = QuestionAsked(at=at(1), question="1", about="plan", plan=Plan(tasks=()), expires_at=at(60))
    answer = QuestionAnswered(at=at(2), event_id="e", question="1", verdict="rejected", by="ann")
    refused = PlanRejected(at=at(2), revision=1, problems=("the plan was not allowed",))

    root = build_trace([*completed()[:begun], asked, answer, *([refused] if begun > 1 else [])])

    assert find(root, name).detail.startswith("rejected by ann")


def test_tools_and_model_calls_hang_below_their_attempt_and_below_each_other() -> None:
    reports = [
        tool("offline", 1.6, 2, kind="chat", span="s1"),
        tool("find_bolts", 2, 3, span="s2", error="none left"),
        tool("look_into_drawer", 2.2, 2.4, span="s3", parent="s2"),
        tool("said something", 2.2, 2.2, kind="progress", span="s4"),
    ]

    attempt = find(build_trace(completed(), reports), "invoke_agent fitter").children[0]

    assert names(attempt) == [
        "attempt 1",
        ["chat offline"],
        ["execute_tool find_bolts", ["execute_tool look_into_drawer"]],
    ]
    assert attempt.span_id == span_id_for(started().workflow_id, str(attempt.task_id), 1)
    assert (attempt.children[1].status, attempt.children[1].detail) == ("failed", "none left")


def test_reports_of_unknown_tasks_and_attempts_change_nothing() -> None:
    strangers = [tool("x", 1, 2, task="nowhere"), tool("x", 1, 2, attempt=7)]

    assert build_trace(completed(), strangers) == build_trace(completed())


def test_spans_that_name_each_other_as_parents_do_not_hang_the_drawing() -> None:
    circle = [tool("a", 1, 2, span="s1", parent="s2"), tool("b", 1, 2, span="s2", parent="s1")]

    attempt = find(build_trace(completed(), circle), "invoke_agent fitter").children[0]

    assert names(attempt) == ["attempt 1", ["execute_tool a", ["execute_tool b"]]]


def test_a_reopened_task_waits_again() -> None:
    root = build_trace([*failing(), TaskReopened(at=at(6), task_id="t1", event_id="e9", by="somebody")])

    assert find(root, "invoke_agent helper").status == "waiting"


def test_the_tree_is_json_and_back() -> None:
    root = build_trace(failing(), [tool("find_bolts", 1.5, 2)])

    assert TraceNode.model_validate(json.loads(root.model_dump_json())) == root


def test_a_log_without_its_first_commit_is_refused() -> None:
    with pytest.raises(ValueError, match="workflow_started"):
        build_trace(completed()[1:])

    assert build_trace([started()]).children[0].children == ()


def test_task_is_handed_over_until_its_worker_has_begun() -> None:
    log = [*completed()[:5], dispatched("t1", "fitter", 1)]
    begun = tool(ATTEMPT_STARTED, 8, 8, kind="progress")

    queued, working = (find(build_trace(log, reports), "invoke_agent fitter") for reports in ([], [begun]))

    assert (queued.status, queued.started_at, queued.children[0].status) == ("handed over", at(1), "handed over")
    assert queued.children[0].started_at is None
    assert (working.status, working.children[0].status) == ("running", "running")
    assert working.children[0].started_at == at(8)
    assert working.children[0].detail == "started 7.0 s after the handoff"


def test_restarted_attempt_shows_its_wait_before_there_is_a_result() -> None:
    signs = [tool(ATTEMPT_STARTED, 1.5, 1.5, kind="progress"), tool(ATTEMPT_STARTED, 35, 35, kind="progress")]

    attempt = find(
        build_trace([*completed()[:5], dispatched("t1", "fitter", 1)], signs), "invoke_agent fitter"
    ).children[0]

    assert attempt.detail == "its worker stopped; started again after 33.5 s"
    assert attempt.started_at == at(1.5)


def test_a_task_is_handed_over_again_while_its_next_attempt_waits() -> None:
    log = [entry for entry in failing() if not isinstance(entry, WorkflowEnded) and entry.at < at(4)]

    task = find(build_trace(log, [tool("drill", 1.6, 1.8)]), "invoke_agent helper")

    assert [each.status for each in (task, *task.children)] == ["handed over", "failed", "handed over"]


BACKING_OFF = [*completed()[:5], dispatched("t1", "fitter", 1), *failing()[6:8]]
"""`t1` has failed and is retried at 3 s."""


@pytest.mark.parametrize(
    ("now", "alive", "status", "detail"),
    [
        (2.5, ("helper",), "waiting for a retry", "waiting for attempt 2, at 12:00:03 UTC"),
        (2.5, (), "waiting for an agent", "waiting for an agent named helper: none is alive"),
        (3, ("helper",), "handed over", "fit"),
    ],
)
@pytest.mark.parametrize("team", [False, True])
def test_a_retry_waits_for_its_time_and_for_an_agent(
    now: float, alive: tuple[str, ...], status: str, detail: str, team: bool
) -> None:
    log = [*BACKING_OFF[:-1], BACKING_OFF[-1].model_copy(update={"team": team})]

    task = find(at_time(build_trace(log), at(now), alive), "invoke_agent helper")

    status = "running" if team and status == "handed over" else status
    assert [each.status for each in (task, *task.children)] == [status, "failed", status]
    assert task.detail == detail
    assert (task.children[1].started_at or at(0)) <= at(now), "the attempt starts in the future"


def test_retry_that_has_begun_waits_for_nothing() -> None:
    # In the future, because the clocks of two machines differ.
    begun = tool(ATTEMPT_STARTED, 2.9, 2.9, attempt=2, kind="progress")

    task = find(at_time(build_trace(BACKING_OFF, [begun]), at(2.5), ("helper",)), "invoke_agent helper")

    assert [each.status for each in (task, *task.children)] == ["running", "failed", "running"]


@pytest.mark.parametrize(
    ("entry", "status", "detail"),
    [
        (RefinementRequested(at=at(2), task_id="t1", refiner_task="refine-1"), "being refined", "fit"),
        (TaskHeld(at=at(2), task_id="t1", until=at(9), reason="it keeps failing"), "held", "it keeps failing"),
        (
            BudgetAwaited(at=at(2), task_id="t1", agent="fitter", limit="tokens"),
            "waiting",
            "all tokens are reserved for other tasks",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_failed_task_is_not_running_during_its_backoff(entry: Entry, status: str, detail: str) -> None:
    log = [*BACKING_OFF[:-1], entry]

    waits, after = (
        find(at_time(build_trace(log), at(2.5), ("fitter",)), "invoke_agent fitter")
        for log in (log, [*log, dispatched("t1", "fitter", 2.2, 2)])
    )

    assert (waits.status, waits.detail) == (status, detail)
    assert (after.status, after.detail) == ("handed over", "fit"), "after the wait, its reason must not be shown"


def test_held_task_that_asks_for_approval_shows_the_approval() -> None:
    held = TaskHeld(at=at(2), task_id="t1", until=at(9), reason="it keeps failing")
    asked = QuestionAsked(at=at(3), question="1", about="task", task_id="t1", expires_at=at(60))
    answer = QuestionAnswered(at=at(4), event_id="e", question="1", verdict="approved", by="ann")

    waits, goes_on = (
        find(build_trace([*completed()[:5], held, *more]), "invoke_agent fitter") for more in ([asked], [asked, answer])
    )

    assert (waits.status, waits.detail) == ("waiting for an answer", "waits for an answer to 1")
    assert goes_on.detail == "approved by ann"


def test_a_workflow_waits_for_approval_until_every_question_is_answered() -> None:
    asked = QuestionAsked(at=at(1), question="1", about="task", task_id="t1", expires_at=at(60))
    answer = QuestionAnswered(at=at(2), event_id="e", question="1", verdict="approved", by="ann")

    waits, goes_on = (build_trace([*completed()[:5], *more]).children[0] for more in ([asked], [asked, answer]))

    assert (waits.status, goes_on.status) == ("waiting for an answer", "running")


def test_attempt_without_a_result_counts_reported_work_only() -> None:
    log = [
        *completed()[:5],
        dispatched("t1", "fitter", 1),
        TaskAbandoned(at=at(9), task_id="t1", cause="limit", reason="too late"),
    ]

    never, lost = (
        find(build_trace(log, reports), "invoke_agent fitter").children[0] for reports in ([], [tool("drill", 3, 4)])
    )

    assert (never.status, never.started_at, never.ended_at) == ("abandoned", None, at(9))
    assert (lost.status, lost.started_at, lost.ended_at) == ("abandoned", at(3), at(9))


def test_a_team_has_its_task_from_the_handoff_on() -> None:
    handed = dispatched("t1", "fitter", 1).model_copy(update={"team": True})

    task = find(build_trace([*completed()[:5], handed], []), "invoke_agent fitter")

    assert (task.status, task.children[0].started_at) == ("running", at(1))


def test_attempt_taken_by_another_worker_shows_its_wait() -> None:
    log = [*completed()[:5], dispatched("t1", "fitter", 1), succeeded("t1", "fitter", 31.5, 33)]

    lost = find(build_trace(log, [tool("drill", 1.2, 1.5), tool("drill", 32, 32.5)]), "invoke_agent fitter").children[0]
    queued = find(build_trace(log, [tool("drill", 32, 32.5)]), "invoke_agent fitter").children[0]

    assert lost.detail == "its worker stopped; started again after 30.0 s"
    assert queued.detail == "started 30.5 s after the handoff"
