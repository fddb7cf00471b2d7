"""`pointsman eval` prints notices while it waits, and reports wrong answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pointsman.authoring.agent import agent
from pointsman.bus.memory.bus import MemoryBroker
from pointsman.cli.commands import evaluate
from pointsman.cli.render.output import Code
from pointsman.cli.support import local_system
from pointsman.client.client import Client
from pointsman.errors import BusUnavailableError, ConfigurationError, NotFoundError
from pointsman.evaluation.runner import NO_AGENT, Case, CaseResult, EvaluationReport, Suite
from pointsman.settings import Settings
from pointsman.testing import running_team
from pointsman_agents.planner import planner
from pointsman_agents.synthesizer import synthesizer
from pointsman_schemas.events import Usage
from pointsman_schemas.team import Pipeline, PlanAndExecute, Stage, Team

SUITE = Suite(team="shop", target="shop.py", cases=(Case(input="tea"),))


@pytest.mark.parametrize(
    ("suite", "who", "looks", "start"),
    [
        (SUITE, "a supervisor of team shop", "pointsman doctor shop", "pointsman supervisor shop.py"),
        (
            SUITE.model_copy(update={"team": None, "agent": "clerk", "target": None}),
            "the agent clerk",
            "pointsman agents",
            "pointsman worker module:name",
        ),
    ],
)
async def test_suite_for_a_missing_target_sends_nothing(
    suite: Suite, who: str, looks: str, start: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluate, "_WAIT_NOTICE_AFTER_S", 0.0)
    monkeypatch.setattr(evaluate, "_WAIT_TIMEOUT_S", 0.02)
    monkeypatch.setattr(evaluate, "_POLL_INTERVAL_S", 0.005)
    client = Client(MemoryBroker("pointsman").connect())
    await client.bus.set_up()

    with pytest.raises(
        NotFoundError, match=rf"{who} is not live .* no request was sent; start it with `{start}`, or use --embedded"
    ):
        await evaluate._wait_until_served(client, suite)

    assert capsys.readouterr().err == (f"pointsman: waiting for {who}; check with `{looks}`, or use --embedded\n")
    assert await client.bus.last("requests", client.subjects.requests) is None


HOUSE = """
from pointsman import Pipeline, Stage, Team, agent

@agent(name="clerk", description="Says it again")
def clerk(text: str) -> str:
    return text

shop = Team(name="shop", strategy=Pipeline(stages=(Stage(agent="clerk"),)))
"""


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"team": "shopp"}, "house.py does not define the team shopp of the suite; it defines shop"),
        ({"team": None, "agent": "shop"}, "house.py does not define the agent shop of the suite; it defines clerk"),
    ],
)
async def test_suite_for_an_undefined_target_starts_nothing(
    asked: dict[str, str | None], said: str, tmp_path: Path
) -> None:
    (tmp_path / "house.py").write_text(HOUSE)
    suite = SUITE.model_copy(update={"target": str(tmp_path / "house.py"), **asked})

    with pytest.raises(ConfigurationError, match=said):
        await evaluate._evaluate(suite, None, embedded=True, parallel=1, url=None, namespace=None)


async def test_target_that_starts_meanwhile_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    team = Team(name="shop", agents=(), strategy=PlanAndExecute())

    async with running_team(team, [planner, synthesizer]) as client:
        await asyncio.wait_for(evaluate._wait_until_served(client, SUITE), 20)

    assert capsys.readouterr().err == ""


async def test_agent_with_the_name_of_a_team_is_not_the_team(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "_WAIT_TIMEOUT_S", 0.0)

    @agent(name="shop", description="Says it again")
    async def shop(text: str) -> str:
        return text

    other = Team(name="other", strategy=Pipeline(stages=(Stage(agent="shop"),)))
    async with running_team(other, [shop]) as client:
        await evaluate._wait_until_served(client, SUITE.model_copy(update={"team": None, "agent": "shop"}))
        with pytest.raises(NotFoundError, match="a supervisor of team shop"):
            await evaluate._wait_until_served(client, SUITE)


WRONG = CaseResult(
    "where\nis it", ("the answer does not contain '04:12'", "x" * 500), None, (), "It is\nat noon. " * 40, "completed",
    "wf_1", 1.25, Usage(calls=2, input_tokens=10, output_tokens=5, cost=0.5),
)  # fmt: skip
MUTE = CaseResult("mute", ("the case had not ended after 1 s",), ("tea",), (), None, "running", "", 1.0, Usage())
AGENT = CaseResult("agent", ("no",), ("tea",), ("cake",), "", "completed", "eval_1", 1.0, Usage())
GOOD = CaseResult("n" * 120, (), ("tea",), ("tea",), "yes", "completed", "wf_2", 0.5, Usage(calls=1, input_tokens=1))
CONFUSION = {("tea", "tea"): 11, ("tea", NO_AGENT): 1, ("tea", "cake"): 2}


def told(report: EvaluationReport, kept: bool, capsys: pytest.CaptureFixture[str]) -> list[str]:
    evaluate._print_report(report, kept=kept)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_each_case_is_a_line_with_its_errors_below(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "600")

    evaluate._print_report(EvaluationReport("shop", 0.2, [WRONG, MUTE, AGENT, GOOD], 1.5), kept=True)
    out, err = capsys.readouterr()
    lines = [line.rstrip() for line in out.splitlines()]

    answer = "It is at noon. " * 40
    assert err == ""
    assert lines == [
        "✗ where is it  1.2 s",
        "    the answer does not contain '04:12'",
        f"    {'x' * 397}...",
        f"    answer: {answer[:197]}...",
        "    pointsman show wf_1",
        "✗ mute  1.0 s",
        "    the case had not ended after 1 s",
        "✗ agent  1.0 s",
        "    no",
        "    answer:",
        f"✓ {'n' * 97}...  500 ms",
        "",
        "1 of 4 right: accuracy 25% (threshold 20%), routing 33%",
        "1.5 s, 3 model calls, 16 tokens, $0.5000",
    ]


def test_table_has_expected_agents_in_rows_and_used_agents_in_columns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = told(EvaluationReport("shop", 1.0, [GOOD], 1.0, CONFUSION), True, capsys)

    assert [line.split() for line in lines[2:5]] == [
        ["expected", "↓", "used", "→"], ["cake", "tea", "(none)"], ["tea", "2", "11", "1"],
    ]  # fmt: skip
    whole = told(EvaluationReport("shop", 1.0, [GOOD], 1.0, {("tea", "tea"): 1, ("cake", "cake"): 1}), True, capsys)
    assert [line.split() for line in whole[2:6]] == [
        ["expected", "↓", "used", "→"], ["cake", "tea"], ["cake", "1", "·"], ["tea", "·", "1"],
    ]  # fmt: skip


def test_cards_from_a_stopped_broker_are_not_offered(capsys: pytest.CaptureFixture[str]) -> None:
    report = EvaluationReport("shop", 1.0, [WRONG], 1.0)

    evaluate._print_report(report, kept=False)

    out, err = capsys.readouterr()
    assert "pointsman show" not in out
    assert "routing" not in out
    assert err == "pointsman: shop: the accuracy 0% is below the threshold 100%\n"


def test_target_of_a_suite_is_a_module_in_the_folder_of_the_suite(stand: Stand) -> None:
    stand.path.write_text(SUITE_FILE.replace("house.py", "house"))

    evaluate.evaluate_suite(stand.path, **{**OPTIONS, "embedded": True})

    assert stand.asked == [("house", "other", True, True)]
    assert stand.search_path == stand.path.parent


@pytest.mark.parametrize(
    ("target", "resolved"),
    [
        ("house.py", "/suites/house.py"),
        ("sub/house.py:shop", "/suites/sub/house.py:shop"),
        ("/elsewhere/house.py:shop", "/elsewhere/house.py:shop"),
        ("pointsman_agents.customer_service", "pointsman_agents.customer_service"),
    ],
)
def test_files_of_a_suite_are_relative_to_its_folder(target: str, resolved: str) -> None:
    assert evaluate._resolve_target(target, Path("/suites")) == (resolved, None)


SUITE_FILE = '{"team": "shop", "target": "house.py", "threshold": 0.5, "cases": [{"input": "tea"}]}'
OPTIONS: dict[str, Any] = {
    "embedded": False, "target": None, "parallel": 3, "threshold": None, "junit": None, "url": "nats://x:1",
    "namespace": "other", "json": False,
}  # fmt: skip


class Stand:
    """A replacement for the calls of `eval` that records the target and returns the given report."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.asked: list[Any] = []
        self.suite, self.parallel = SUITE, 0
        self.path = folder / "suite.json"
        self.house = str(folder / "house.py")
        self.search_path: Path | None = None
        self.path.write_text(SUITE_FILE)
        (folder / "house.py").write_text(HOUSE)
        monkeypatch.setattr(evaluate, "session", self.session)
        monkeypatch.setattr(local_system, "local_system", self.embedded)
        monkeypatch.setattr(evaluate, "_wait_until_served", self.attended)
        monkeypatch.setattr(evaluate, "evaluate", self.evaluate)

    @asynccontextmanager
    async def session(self, url: str | None, namespace: str | None, *, create: bool) -> AsyncIterator[str]:
        self.asked.append((url, namespace, create))
        yield "the client"

    @asynccontextmanager
    async def embedded(
        self, target: str, settings: Settings, home: Path, *, team: bool, search_path: Path | None
    ) -> AsyncIterator[str]:
        self.search_path = search_path
        self.asked.append((target, settings.namespace, home.name.startswith("pointsman-eval-"), team))
        yield "the client"

    async def attended(self, client: str, suite: Suite) -> None:
        self.asked.append(client)

    async def evaluate(self, suite: Suite, client: str, *, parallel: int) -> EvaluationReport:
        assert client == "the client"
        self.suite, self.parallel = suite, parallel
        return EvaluationReport("shop", suite.threshold, [WRONG], 1.0)


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stand:
    return Stand(monkeypatch, tmp_path)


def test_running_target_is_used(stand: Stand, capsys: pytest.CaptureFixture[str]) -> None:
    code = evaluate.evaluate_suite(stand.path, **OPTIONS)

    assert code == Code.FAILED
    assert stand.asked == [("nats://x:1", "other", True), "the client"]
    assert (stand.suite.target, stand.suite.threshold, stand.parallel) == (stand.house, 0.5, 3)
    assert "pointsman show wf_1" in capsys.readouterr().out


@pytest.mark.parametrize("who", ["team", "agent"])
def test_own_system_is_started_for_the_target_of_the_suite(
    who: str, stand: Stand, capsys: pytest.CaptureFixture[str]
) -> None:
    if who == "agent":
        stand.path.write_text(SUITE_FILE.replace('"team": "shop"', '"agent": "clerk"'))

    evaluate.evaluate_suite(stand.path, **{**OPTIONS, "embedded": True})

    assert stand.asked == [(stand.house, "other", True, who == "team")]
    assert "pointsman show" not in capsys.readouterr().out


def test_options_override_the_suite_and_results_go_to_their_file(
    stand: Stand, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    junit = tmp_path / "junit.xml"
    options = {**OPTIONS, "threshold": 0.0, "target": "elsewhere.py", "junit": junit, "json": True}

    code = evaluate.evaluate_suite(stand.path, **options)

    assert code == Code.OK
    assert (stand.suite.target, stand.suite.threshold) == ("elsewhere.py", 0.0)
    report = EvaluationReport("shop", 0.0, [WRONG], 1.0)
    assert junit.read_bytes() == report.as_junit()
    out, err = capsys.readouterr()
    assert json.loads(out)["cases"][0]["problems"] == list(WRONG.problems)
    assert err == f"pointsman: wrote the results to {junit} as JUnit XML; cases: 1\n"


def test_existing_results_stay_until_new_results_exist(
    stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(suite: Suite, client: str, *, parallel: int) -> EvaluationReport:
        raise BusUnavailableError("away")

    monkeypatch.setattr(evaluate, "evaluate", away)
    (tmp_path / "junit.xml").write_text("<old/>")

    with pytest.raises(BusUnavailableError):
        evaluate.evaluate_suite(stand.path, **{**OPTIONS, "junit": tmp_path / "junit.xml"})
    with pytest.raises(ConfigurationError, match="cannot be written: Is a directory"):
        evaluate.evaluate_suite(stand.path, **{**OPTIONS, "junit": tmp_path})

    assert (tmp_path / "junit.xml").read_text() == "<old/>"


def test_own_system_needs_a_target_to_start(stand: Stand) -> None:
    stand.path.write_text(SUITE_FILE.replace('"target": "house.py", ', ""))

    with pytest.raises(
        ConfigurationError,
        match="--embedded has nothing to start: the suite has no `target`; add one, or give --target",
    ):
        evaluate.evaluate_suite(stand.path, **{**OPTIONS, "embedded": True})
    assert stand.asked == []
