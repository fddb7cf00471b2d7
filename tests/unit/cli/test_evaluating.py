"""What `eval` says while it waits for somebody, and of an answer that was not right."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pointsman.bus.memory import MemoryBroker
from pointsman.cli import evaluating
from pointsman.client import Client
from pointsman.errors import ConfigurationError, NotFound
from pointsman.evaluation import Case, Report, Scored, Suite
from pointsman.testing import running_team
from pointsman_agents.planner import planner
from pointsman_agents.synthesizer import synthesizer
from pointsman_schemas.events import Usage
from pointsman_schemas.team import Supervisor, Team

SUITE = Suite(team="shop", target="shop.py", cases=(Case(input="tea"),))


@pytest.mark.parametrize(
    ("suite", "who"),
    [
        (SUITE, "is a supervisor of 'shop' running?"),
        (SUITE.model_copy(update={"team": None, "agent": "clerk"}), "is the agent 'clerk' running?"),
    ],
)
async def test_a_suite_for_somebody_who_is_not_there_is_told_so_and_nothing_is_sent(
    suite: Suite, who: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluating, "_PATIENCE", 0.0)
    monkeypatch.setattr(evaluating, "_LONGEST", 0.0)
    client = Client(MemoryBroker("pointsman").connect())
    await client.bus.set_up()

    with pytest.raises(NotFound, match=r"nothing was sent; start .* --embedded"):
        await evaluating._attended(client, suite)

    told = capsys.readouterr().err
    assert who in told
    assert "or use --embedded" in told
    assert await client.bus.last("work", client.subjects.requests) is None


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
        ({"team": "shopp"}, "house.py defines no team 'shopp'; it has shop"),
        ({"team": None, "agent": "shop"}, "house.py defines no agent 'shop'; it has clerk"),
    ],
)
async def test_a_suite_for_somebody_whom_its_target_does_not_define_starts_nothing(
    asked: dict[str, str | None], said: str, tmp_path: Path
) -> None:
    (tmp_path / "house.py").write_text(HOUSE)
    suite = SUITE.model_copy(update={"target": str(tmp_path / "house.py"), **asked})

    with pytest.raises(ConfigurationError, match=said):
        await evaluating._evaluated(suite, embedded=True, parallel=1, url=None, namespace=None)


async def test_who_comes_up_meanwhile_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    team = Team(name="shop", agents=(), strategy=Supervisor())

    async with running_team(team, [planner, synthesizer]) as client:
        await asyncio.wait_for(evaluating._attended(client, SUITE), 20)

    assert capsys.readouterr().err == ""


def judged(kept: bool, capsys: pytest.CaptureFixture[str]) -> list[str]:
    problem = "the answer does not contain '04:12'"
    scored = Scored("where", (problem,), None, (), "It is\nat noon. " * 40, "completed", "wf_1", 1.0, Usage())
    evaluating._tell(Report("shop", 1.0, [scored], 1.0), kept=kept)
    return capsys.readouterr().out.splitlines()


def test_an_answer_that_is_not_right_is_shown_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = judged(True, capsys)

    assert lines[1] == "    the answer does not contain '04:12'"
    assert lines[2].startswith("    answer: It is at noon. It is at noon.")
    assert lines[2].endswith("...")
    assert lines[3] == "    pointsman show wf_1"


def test_what_a_broker_that_is_gone_kept_is_not_offered(capsys: pytest.CaptureFixture[str]) -> None:
    assert "pointsman show" not in "\n".join(judged(False, capsys))
