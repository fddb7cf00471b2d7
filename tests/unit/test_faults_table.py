"""The table of faults names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_the_table_of_faults_names_exists() -> None:
    rows = [line for line in (ROOT / "docs" / "faults.md").read_text().splitlines() if line.startswith("| ")]
    named = [found for row in rows for found in re.findall(r"`([\w/]+\.py)::(\w+)", row)]

    missing = [
        f"{file}::{test}"
        for file, test in named
        if not (ROOT / "tests" / file).is_file() or f"def {test}(" not in (ROOT / "tests" / file).read_text()
    ]

    assert len(named) > 16
    assert missing == []


def test_every_row_shows_a_test_or_says_that_it_does_not_hold() -> None:
    rows = [line for line in (ROOT / "docs" / "faults.md").read_text().splitlines() if line.startswith("| [")]

    assert rows
    assert [row for row in rows if ".py::" not in row and "does not hold" not in row] == []
