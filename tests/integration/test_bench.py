"""The benchmark runs to its end, and a workflow needs exactly the messages of the protocol."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(180)
def test_one_w1_stores_exactly_the_messages_of_the_protocol(tmp_path: Path) -> None:
    found = tmp_path / "numbers.json"
    command = "-m benchmarks --smoke --rounds 3 --single 1 --many 8 --concurrency 8 --no-shapes --no-tracing --json"

    run = subprocess.run(
        [sys.executable, *command.split(), str(found)], cwd=ROOT, capture_output=True, text=True, timeout=170
    )

    assert run.returncode == 0, run.stderr
    numbers = json.loads(found.read_text())
    commits = numbers["kinds"].pop("log")
    assert numbers["kinds"] == {"request": 1, "handoff": 6, "result": 6, "schedule": 1, "outcome": 1}
    assert 5 <= commits <= 7  # the request, the plan, three results in one to three commits, the join, the answer
    assert {row["system"] for row in numbers["rows"]} == {"pointsman", "floor"}
    assert {row["messages"] for row in numbers["rows"] if row["system"] == "floor"} == {14}
