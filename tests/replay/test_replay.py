"""Every log in this folder still folds, and this release derives the recorded outcome from it.

`record.py` writes the logs. If a run shows a bug, its log is added here and stays.
"""

from __future__ import annotations

import json
import runpy
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pointsman.cli.app import app
from pointsman.core.completion.outcome import build_outcome
from pointsman.core.evolve import apply_commit, fold_entries
from pointsman.core.model.lifecycle import Phase
from pointsman.core.model.state import State, from_snapshot, to_snapshot
from pointsman.errors import InvariantError
from pointsman_schemas.log import Commit, WorkflowEnded
from pointsman_schemas.strict_json import compact_json, dump, parse_json

FOLDER = Path(__file__).parent
LOGS = sorted(FOLDER.glob("*.jsonl"))
RECORDER: dict[str, Any] = runpy.run_path(str(FOLDER / "record.py"))


def recorded(path: Path) -> list[Commit]:
    commits: list[Commit] = RECORDER["read"](path)
    return commits


def refold(commits: list[Commit], state: State | None = None) -> State:
    for commit in commits:
        state = apply_commit(state, commit)
    assert state is not None
    return state


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_recorded_log_leads_to_its_recorded_outcome(path: Path) -> None:
    commits = recorded(path)
    entries = [entry for commit in commits for entry in commit.entries]
    ended = entries[-1]
    assert isinstance(ended, WorkflowEnded)
    before = fold_entries(entries[:-1])
    assert before is not None

    made = build_outcome(
        before, Phase(ended.outcome.status), ended.at, answer=ended.outcome.answer, reason=ended.outcome.reason
    )

    assert made == ended.outcome
    assert refold(commits).outcome == ended.outcome


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_recorded_log_can_be_gone_on_with_from_any_snapshot(path: Path) -> None:
    commits = recorded(path)
    whole = refold(commits)

    for number in range(1, len(commits)):
        snapshot = parse_json(compact_json(to_snapshot(refold(commits[:number]))))
        assert refold(commits[number:], from_snapshot(snapshot)) == whole


@pytest.mark.parametrize("name", RECORDER["SCENARIOS"])
def test_recorded_decisions_are_decided_again(name: str) -> None:
    """A difference is a change of behaviour. If the change is intended, remove the log and record it again."""
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


@pytest.mark.parametrize("name", RECORDER["SCENARIOS"])
def test_the_command_says_where_the_present_code_decides_otherwise(name: str, tmp_path: Path) -> None:
    commits = RECORDER["SCENARIOS"][name]().commits
    last = commits[-1]
    other = last.entries[-1].model_copy(update={"at": last.entries[-1].at + timedelta(seconds=1)})
    changed = last.model_copy(update={"entries": (*last.entries[:-1], other)})
    (tmp_path / "same").write_bytes(lines(commits))
    (tmp_path / "other").write_bytes(lines([*commits[:-1], changed]))

    same, otherwise = (
        CliRunner().invoke(app, ["replay", str(tmp_path / file), "--json"]) for file in ("same", "other")
    )

    entries = sum(len(commit.entries) for commit in commits)
    assert [json.loads(line)["differences"] for line in same.stdout.splitlines()] == [0]
    assert [json.loads(line).get("entry") for line in otherwise.stdout.splitlines()] == [entries, None]
    assert (same.exit_code, otherwise.exit_code) == (0, 1)


def test_difference_report_has_the_expected_and_the_actual_entry(tmp_path: Path) -> None:
    first, *rest = RECORDER["SCENARIOS"]["everything-succeeds"]().commits
    asked = first.entries[1].model_copy(update={"intent": "Plan it well"})
    started = first.model_copy(update={"entries": (first.entries[0], asked, *first.entries[2:])})
    (tmp_path / "log").write_bytes(
        lines([started, *(each.model_copy(update={"decision_context": None}) for each in rest)])
    )

    ran = CliRunner().invoke(app, ["replay", str(tmp_path / "log")])

    said = " ".join(ran.stdout.split())
    assert "entry 2, in commit 1: task_added intent: expected Plan it well got Plan the request" in said
    assert f"{len(rest)} commits without inputs were skipped" in said
    assert "1 difference with the installed code" in said


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_commit_without_a_decision_context_is_not_judged_equal(path: Path) -> None:
    ran = CliRunner().invoke(app, ["replay", str(path)])

    assert (ran.exit_code, ran.stdout) == (2, "")
    assert "was written by an earlier version" in " ".join(ran.stderr.split())


def lines(commits: Sequence[Commit]) -> bytes:
    return b"".join(dump(commit) + b"\n" for commit in commits)


def test_a_log_with_a_commit_missing_does_not_fold() -> None:
    commits = recorded(LOGS[0])

    with pytest.raises(InvariantError, match="commit 3 follows commit 1; expected 2"):
        refold([commits[0], *commits[2:]])
