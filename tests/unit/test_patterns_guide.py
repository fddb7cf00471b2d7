"""The guide to patterns names every system and mechanism, and only existing tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.teams import shipped_teams

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "patterns.md").read_text()
HEADS = ("System", "Mechanism")
LINES = [line.strip("|").split("|") for line in GUIDE.splitlines() if line.startswith("| ")]
ROWS = [[cell.strip() for cell in cells] for cells in LINES if cells[1].strip() not in HEADS]


@pytest.mark.parametrize(("kind", "last"), [("S", 12), ("M", 25)])
def test_every_number_has_its_row(kind: str, last: int) -> None:
    numbers = [int(row[0].removeprefix(kind)) for row in ROWS if re.fullmatch(rf"{kind}\d+", row[0])]

    assert sorted(set(numbers)) == list(range(1, last + 1))


def test_every_row_names_existing_tests() -> None:
    named = {row[1]: re.findall(r"`(tests/[\w/]+\.py)::(\w+)(?:\[[\w-]+\])?`", row[3]) for row in ROWS}

    missing = [
        f"{file}::{test}"
        for tests in named.values()
        for file, test in tests
        if not (ROOT / file).is_file() or f"def {test}(" not in (ROOT / file).read_text()
    ]

    assert missing == []
    assert [row[1] for row in ROWS if not named[row[1]] and row[3] != "not there yet"] == []


def test_every_shipped_team_has_its_command() -> None:
    commands = re.findall(r"`pointsman up ([\w.]+)`", GUIDE)

    assert sorted(commands) == sorted(module.__name__ for module in shipped_teams())
