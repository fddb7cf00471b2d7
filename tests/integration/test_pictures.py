"""The script that takes the pictures of the documentation runs with the current dashboard."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).parents[2]


def test_the_pictures_can_be_taken_anew(tmp_path: Path, chromium: str) -> None:
    done = subprocess.run(
        [sys.executable, "docs/images/make.py", "--to", str(tmp_path), "--chromium", chromium],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=90,
    )

    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in (ROOT / "docs/images").glob("*.png")}
