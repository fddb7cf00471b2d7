"""Every log in this folder still folds, and this release still makes the outcome of it that was recorded.

`record.py` writes the logs. A bug that was found in a run leaves its log here and stays.
"""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pointsman.cli import app
from pointsman.core.evolve import apply, fold
from pointsman.core.outcome import outcome_of
from pointsman.core.state import State, from_snapshot, to_snapshot
from pointsman.core.transitions import Phase
from pointsman.errors import InvariantError
from pointsman_schemas.log import Commit, WorkflowEnded
from pointsman_schemas.strict_json import compact, parse_json

FOLDER = Path(__file__).parent
LOGS = sorted(FOLDER.glob("*.jsonl"))
RECORDER: dict[str, Any] = runpy.run_path(str(FOLDER / "record.py"))


def recorded(path: Path) -> list[Commit]:
    commits: list[Commit] = RECORDER["read"](path)
    return commits


def refold(commits: list[Commit], state: State | None = None) -> State:
    for commit in commits:
        state = apply(state, commit)
    assert state is not None
    return state


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_recorded_log_leads_to_its_recorded_outcome(path: Path) -> None:
    commits = recorded(path)
    entries = [entry for commit in commits for entry in commit.entries]
    ended = entries[-1]
    assert isinstance(ended, WorkflowEnded)
    before = fold(entries[:-1])
    assert before is not None

    made = outcome_of(
        before, Phase(ended.outcome.status), ended.at, answer=ended.outcome.answer, reason=ended.outcome.reason
    )

    assert made == ended.outcome
    assert refold(commits).outcome == ended.outcome


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_recorded_log_can_be_gone_on_with_from_any_snapshot(path: Path) -> None:
    commits = recorded(path)
    whole = refold(commits)

    for number in range(1, len(commits)):
        snapshot = parse_json(compact(to_snapshot(refold(commits[:number]))))
        assert refold(commits[number:], from_snapshot(snapshot)) == whole


@pytest.mark.parametrize("name", RECORDER["SCENARIOS"])
def test_the_core_still_decides_what_was_recorded(name: str) -> None:
    """A difference here is a change of behaviour: mean it, then remove the log and record it anew."""
    played = [commit.entries for commit in RECORDER["SCENARIOS"][name]().commits]

    assert played == [commit.entries for commit in recorded(FOLDER / f"{name}.jsonl")]


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_workflow_of_a_release_without_refiners_and_judges_gets_none(path: Path) -> None:
    begun = refold(recorded(path)[:1])
    snapshot = to_snapshot(begun)
    assert isinstance(snapshot, dict)
    older = {name: value for name, value in snapshot.items() if name not in ("refiner", "judge")}

    assert (begun.refiner, begun.judge) == (None, None)
    assert from_snapshot(older) == begun


CHANGED = {
    "the-request-stands-in-every-role-task": [2, 6, 9, 14],
    "a-refused-synthesizer-left-a-partial-answer": [15, 27],  # 15: as in the next one
    "a-plan-is-repaired-and-made-again": [15],  # a planner was not told how many tasks are left
    "nothing-was-set-aside-of-a-budget": [3, 7, 9],
}
"""Entries of logs by older releases that the present code would write otherwise, each on purpose."""


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_the_command_says_where_the_present_code_decides_otherwise(path: Path) -> None:
    ran = CliRunner().invoke(app, ["replay", str(path), "--json"])

    *differences, summary = [json.loads(line) for line in ran.stdout.splitlines()]
    expected = CHANGED.get(path.stem, [])
    assert [difference["entry"] for difference in differences] == expected
    assert summary["differences"] == len(expected)
    assert ran.exit_code == (1 if expected else 0)


def test_a_person_is_told_what_was_expected_and_what_came() -> None:
    ran = CliRunner().invoke(app, ["replay", str(FOLDER / "the-request-stands-in-every-role-task.jsonl")])

    said = " ".join(ran.stdout.split())
    assert "entry 2, in commit 1: task_added input: expected {'request':" in said
    assert "the present code decides 4 of them otherwise" in said


def test_a_log_with_a_commit_missing_does_not_fold() -> None:
    commits = recorded(LOGS[0])

    with pytest.raises(InvariantError, match="commit 3 follows commit 1; expected 2"):
        refold([commits[0], *commits[2:]])
