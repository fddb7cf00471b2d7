"""The tables of moves are complete, the fold obeys them, and the diagram in the docs is generated from them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from support.core import T0, WorkflowDriver, failure, task

from pointsman.core.evolve import apply_commit, evolve, fold_entries
from pointsman.core.model.diagram import render_page
from pointsman.core.model.lifecycle import PHASE_MOVES, RESUMABLE, SETTLED, TASK_MOVES, TERMINAL, Phase, TaskStatus
from pointsman.core.model.state import State
from pointsman.errors import InvariantError
from pointsman_schemas.card import Role
from pointsman_schemas.log import (
    Commit,
    Entry,
    PlanAccepted,
    ResultIgnored,
    TaskAbandoned,
    TaskAdded,
    TaskDispatched,
    TaskFailed,
    TaskReopened,
    TaskSkipped,
    TimerArmed,
)
from pointsman_schemas.plan import Plan, PlannedTask

PAGE = Path(__file__).parents[4] / "docs" / "state-machine.md"


def test_the_page_in_the_docs_is_drawn_from_the_tables() -> None:
    assert PAGE.read_text() == render_page(), "out of date: run `make schemas`"


def test_every_phase_and_status_has_its_row() -> None:
    assert set(PHASE_MOVES) == set(Phase)
    assert set(TASK_MOVES) == set(TaskStatus)


def test_only_a_resume_follows_a_terminal_phase_and_all_others_can_end() -> None:
    assert {phase for phase in TERMINAL if PHASE_MOVES[phase]} == RESUMABLE
    assert all(PHASE_MOVES[phase] == {Phase.PLANNING, Phase.RUNNING} for phase in RESUMABLE)
    assert all(PHASE_MOVES[phase] >= TERMINAL for phase in set(Phase) - TERMINAL)


def test_an_open_task_can_always_be_settled() -> None:
    assert all(TaskStatus.ABANDONED in TASK_MOVES[status] for status in set(TaskStatus) - SETTLED)


def running() -> State:
    return WorkflowDriver().planned(task("a")).state


def entry_to(status: TaskStatus) -> Entry:
    """Return an entry that moves task `a` to `status`."""
    error = failure()
    match status:
        case TaskStatus.RUNNING:
            return TaskDispatched(at=T0, task_id="a", attempt=2, agent="worker", deadline=T0, span_id="")
        case TaskStatus.SKIPPED:
            return TaskSkipped(at=T0, task_id="a", unmet_dependency="b", reason="b failed")
        case TaskStatus.ABANDONED:
            return TaskAbandoned(at=T0, task_id="a", cause="ended", reason="over")
        case _:
            return TaskFailed(at=T0, task_id="a", error=error, attempts=1)


@pytest.mark.parametrize(
    ("source", "target"),
    list(
        product(TaskStatus, [TaskStatus.RUNNING, TaskStatus.SKIPPED, TaskStatus.ABANDONED, TaskStatus.FAILED]),
    ),
)
def test_a_task_makes_the_moves_of_the_table_and_no_others(source: TaskStatus, target: TaskStatus) -> None:
    state = running()
    state = replace(state, tasks={**state.tasks, "a": replace(state.tasks["a"], status=source)})

    if target in TASK_MOVES[source]:
        assert evolve(state, entry_to(target)).tasks["a"].status is target
    else:
        with pytest.raises(InvariantError, match=f"cannot go from {source} to {target}"):
            evolve(state, entry_to(target))


def test_nothing_is_folded_after_the_end() -> None:
    story = WorkflowDriver().planned(task("a"))
    story.control("cancel")

    with pytest.raises(InvariantError, match="timer_armed comes after wf_1 ended as cancelled"):
        evolve(story.state, TimerArmed(at=T0, name="wake-9", due=T0))


def test_a_log_begins_with_its_workflow_and_only_once() -> None:
    started = WorkflowDriver().start().log[0]

    with pytest.raises(InvariantError, match="timer_armed comes before workflow_started"):
        fold_entries([TimerArmed(at=T0, name="wake-1", due=T0)])
    with pytest.raises(InvariantError, match="wf_1 started twice"):
        fold_entries([started, started])


@pytest.mark.parametrize(
    "entry",
    [
        TaskDispatched(at=T0, task_id="ghost", attempt=1, agent="worker", deadline=T0, span_id=""),
        TaskSkipped(at=T0, task_id="ghost", unmet_dependency="a", reason="a failed"),
        TaskReopened(at=T0, task_id="ghost", event_id="replay"),
    ],
)
def test_an_entry_about_a_task_there_is_not_is_refused(entry: Entry) -> None:
    with pytest.raises(InvariantError, match="wf_1 has no task ghost"):
        evolve(running(), entry)


def test_only_a_failed_task_reopens() -> None:
    with pytest.raises(InvariantError, match="is running; only a failed one reopens"):
        evolve(running(), TaskReopened(at=T0, task_id="a", event_id="replay"))


def test_a_task_is_added_once() -> None:
    again = TaskAdded(at=T0, task_id="plan-1", role=Role.PLAN, agent="planner", intent="plan")
    clash = Plan(tasks=(PlannedTask(id="a", agent="worker", intent="again"),))

    with pytest.raises(InvariantError, match="plan-1 of wf_1 was added twice"):
        evolve(WorkflowDriver().start().state, again)
    with pytest.raises(InvariantError, match=r"names tasks that exist: \['a'\]"):
        evolve(running(), PlanAccepted(at=T0, revision=2, plan=clash))


def test_commits_are_gapless_and_the_first_is_not_empty() -> None:
    story = WorkflowDriver().start()
    ignored = ResultIgnored(
        at=T0, event_id="e", task_id="a", attempt=1, agent="worker", cause="stale_attempt", reason="late"
    )

    with pytest.raises(InvariantError, match="commit 3 follows commit 1; expected 2"):
        apply_commit(story.state, Commit(number=3, entries=(ignored,)))
    with pytest.raises(InvariantError, match="commit 1 holds no entries"):
        apply_commit(None, Commit(number=1, entries=()))
