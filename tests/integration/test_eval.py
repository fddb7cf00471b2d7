"""`pointsman eval` starts its target, prints the scores and compares them with the threshold for its exit code."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support import ready
from support.ready import Finished

SUITE = Path(__file__).parents[2] / "agents/pointsman_agents/customer_service/evaluation.yaml"
AGENT = """
from pointsman import agent

@agent(name="shouter", description="Says it louder")
async def shout(text: str) -> str:
    return text.upper()
"""


async def run(*arguments: str, folder: Path) -> Finished:
    hidden = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
    inherited = {name: value for name, value in os.environ.items() if name not in hidden}
    environment = {**inherited, "POINTSMAN_MODEL": "offline", "POINTSMAN_CUSTOMER_SERVICE_DATA": str(folder / "data")}
    words = ["-m", "pointsman", "eval", *arguments]
    return await ready.run(words, environment=environment, folder=folder, seconds=110)


@pytest.mark.timeout(120)
async def test_the_shipped_suite_passes_on_a_system_of_its_own(tmp_path: Path) -> None:
    ran = await run(str(SUITE), "--embedded", "--json", "--junit", "junit.xml", folder=tmp_path)

    assert ran.code == 0, ran.output + ran.errors
    report = json.loads(ran.output)
    assert (report["accuracy"], report["routing"], report["passed"]) == (1.0, 1.0, True)
    assert '<testsuite name="customer-service" tests="11" failures="0"' in (tmp_path / "junit.xml").read_text()


@pytest.mark.timeout(120)
async def test_agent_below_the_threshold_exits_with_code_1_and_the_reason(tmp_path: Path) -> None:
    (tmp_path / "shouter.py").write_text(AGENT)
    cases = [{"input": "hello", "answer": "HELLO"}, {"input": "hello", "contains": ["bye"]}]
    suite = {"agent": "shouter", "target": "shouter.py", "cases": cases}
    (tmp_path / "suite.json").write_text(json.dumps({**suite, "threshold": 0.9}))

    ran = await run("suite.json", "--embedded", folder=tmp_path)

    assert ran.code == 1, ran.output + ran.errors
    assert "1 of 2 right: accuracy 50% (threshold 90%)" in ran.output
    assert "the answer does not contain 'bye'" in ran.output
    assert "below the threshold" in ran.errors


async def test_unwritable_results_file_is_reported_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "suite.json").write_text('{"agent": "shouter", "target": "nowhere.py", "cases": [{"input": "x"}]}')

    ran = await run("suite.json", "--embedded", "--junit", "nowhere/junit.xml", folder=tmp_path)

    assert (ran.code, ran.errors.split("; ")[0].strip()) == (
        2, "pointsman: nowhere/junit.xml cannot be written: No such file or directory",
    )  # fmt: skip


async def test_a_suite_that_is_not_there_is_exit_code_2(tmp_path: Path) -> None:
    ran = await run("nowhere.yaml", folder=tmp_path)

    assert (ran.code, "there is no file nowhere.yaml" in ran.errors) == (2, True)
