"""The cost of a decision does not grow with the plan. Executed lines are counted, not time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from support.core import WorkflowDriver, task

from pointsman.core.decide import make_decision
from pointsman.core.decision import DecisionContext
from pointsman.core.evolve import apply_commit
from pointsman.core.model.lifecycle import Phase
from pointsman.core.model.state import State, copy_with
from pointsman_schemas.log import WorkflowStarted

_COMMITS = 8
"""Deliver the results of a wide plan in batches, which are folded together."""


def test_deciding_a_result_costs_the_same_in_plans_of_200_and_1000_tasks() -> None:
    assert lines_for_each_of(1000) < 1.1 * lines_for_each_of(200)


def test_folding_asks_of_no_entry_which_of_the_classes_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fold must look at an entry's kind, because testing twenty classes in turn would cost more than the fold."""
    story = WorkflowDriver().planned(task("t1"), task("join", needs=["t1"]))
    story.complete_task("t1")
    story.complete_task("join")
    state: State | None = None
    asked: list[str] = []

    def ask(model: type, value: object) -> bool:
        asked.append(model.__name__)
        return type.__instancecheck__(model, value)

    monkeypatch.setattr(type(WorkflowStarted), "__instancecheck__", ask)
    assert not isinstance(task, WorkflowStarted)
    for commit in story.commits:
        state = apply_commit(state, commit)

    assert asked == ["WorkflowStarted"]
    assert state == story.state


def lines_for_each_of(width: int) -> float:
    """Return the executed lines of the core for a plan of parallel tasks with one common dependent."""
    names = [f"t{number}" for number in range(width - 1)]
    story = WorkflowDriver().planned(*map(task, names), task("join", needs=names))
    state, context = story.state, DecisionContext(story.now, story.cards)
    with lines_of_core() as lines:
        for together in _parts(names, _COMMITS):
            decision = make_decision(state, [story.result(name, "done") for name in together], context)
            state = copy_with(decision.state, commits=state.commits + 1)
    assert state.phase is Phase.RUNNING
    assert state.tasks["join"].active
    return len(lines) / width


def _parts(names: Sequence[str], count: int) -> Iterator[Sequence[str]]:
    size = -(-len(names) // count)
    return (names[start : start + size] for start in range(0, len(names), size))


@contextmanager
def lines_of_core() -> Iterator[list[int]]:
    """Yield the executed lines of `pointsman.core` inside the block."""
    lines: list[int] = []

    def line(frame: FrameType, event: str, given: Any) -> Callable[..., Any]:
        if event == "line":
            lines.append(frame.f_lineno)
        return line

    def call(frame: FrameType, event: str, given: Any) -> Callable[..., Any] | None:
        return line if frame.f_globals.get("__name__", "").startswith("pointsman.core.") else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        yield lines
    finally:
        sys.settrace(before)
