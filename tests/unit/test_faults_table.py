"""The page of faults names existing tests, and each report has a test."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "faults.md").read_text()


def test_every_test_that_the_page_of_faults_names_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", PAGE)

    missing = [
        f"{file}::{test}"
        for file, test in named
        if not file.startswith("tests/")
        and (not (ROOT / "tests" / file).is_file() or f"def {test}" not in (ROOT / "tests" / file).read_text())
    ]

    assert len(named) > 100
    assert missing == []


def test_every_report_and_every_kind_names_a_test() -> None:
    reports = re.findall(r"^### \[.*?(?=^###? )", PAGE, re.MULTILINE | re.DOTALL)
    kinds = re.findall(r"^\| .*\|$", PAGE.partition("## Kinds of faults")[2].partition("## Hostile")[0], re.MULTILINE)[
        1:
    ]

    assert len(reports) > 25
    assert len(kinds) > 30
    assert [each for each in (*reports, *kinds) if ".py::" not in each] == []
