"""`pointsman eval` starts what it needs, prints how good it is, and its exit code says whether that is enough."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = Path(__file__).parents[2] / "agents/pointsman_agents/customer_service/evaluation.yaml"
AGENT = """
from pointsman import agent

@agent(name="shouter", description="Says it louder")
async def shout(text: str) -> str:
    return text.upper()
"""


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    hidden = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
    inherited = {name: value for name, value in os.environ.items() if name not in hidden}
    environment = {**inherited, "POINTSMAN_MODEL": "offline", "POINTSMAN_CUSTOMER_SERVICE_DATA": str(folder / "data")}
    command = [sys.executable, "-m", "pointsman", "eval", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=110, check=False
    )


@pytest.mark.timeout(120)
def test_the_shipped_suite_passes_on_a_system_of_its_own(tmp_path: Path) -> None:
    ran = run(str(SUITE), "--embedded", "--json", "--junit", "junit.xml", folder=tmp_path)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = json.loads(ran.stdout)
    assert (report["accuracy"], report["routing"], report["passed"]) == (1.0, 1.0, True)
    assert '<testsuite name="customer-service" tests="11" failures="0"' in (tmp_path / "junit.xml").read_text()


@pytest.mark.timeout(120)
def test_an_agent_below_the_threshold_is_exit_code_1_and_the_table_says_why(tmp_path: Path) -> None:
    (tmp_path / "shouter.py").write_text(AGENT)
    cases = [{"input": "hello", "answer": "HELLO"}, {"input": "hello", "contains": ["bye"]}]
    suite = {"agent": "shouter", "target": "shouter.py", "cases": cases}
    (tmp_path / "suite.json").write_text(json.dumps({**suite, "threshold": 0.9}))

    ran = run("suite.json", "--embedded", folder=tmp_path)

    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "1 of 2 right: accuracy 50% (at least 90%)" in ran.stdout
    assert "the answer does not contain 'bye'" in ran.stdout
    assert "below the threshold" in ran.stderr


def test_results_that_cannot_be_written_are_told_before_anything_is_started(tmp_path: Path) -> None:
    (tmp_path / "suite.json").write_text('{"agent": "shouter", "target": "nowhere.py", "cases": [{"input": "x"}]}')

    ran = run("suite.json", "--embedded", "--junit", "nowhere/junit.xml", folder=tmp_path)

    assert (ran.returncode, ran.stderr.split("; ")[0].strip()) == (
        2, "pointsman: nowhere/junit.xml cannot be written: No such file or directory",
    )  # fmt: skip


def test_a_suite_that_is_not_there_is_exit_code_2(tmp_path: Path) -> None:
    ran = run("nowhere.yaml", folder=tmp_path)

    assert (ran.returncode, "there is no file nowhere.yaml" in ran.stderr) == (2, True)
