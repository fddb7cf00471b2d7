"""The offline model passes every shipped suite: each `evaluation.yaml` under `agents/` is tried."""

from __future__ import annotations

from pathlib import Path

import pytest

from pointsman import app
from pointsman.cli.cast import cast_of
from pointsman.engine.loading import load_agents
from pointsman.evaluation import evaluate, load_suite
from pointsman.llm_agent import LLMAgent
from pointsman.settings import Settings
from pointsman.testing import running_team

SUITES = sorted((Path(__file__).parents[3] / "agents").rglob("evaluation.yaml"))


def test_there_are_suites() -> None:
    assert "customer_service" in {suite.parent.name for suite in SUITES}


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.parent.name)
async def test_the_offline_model_passes_the_suite(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POINTSMAN_MODEL", "offline")
    monkeypatch.setenv("POINTSMAN_CUSTOMER_SERVICE_DATA", str(tmp_path))
    suite = load_suite(path)
    assert suite.target is not None
    cast = cast_of(suite.target)
    agents = load_agents([target for targets in cast.workers.values() for target in targets])
    for agent in agents:
        if isinstance(agent, LLMAgent):
            agent.__dict__.pop("models", None)  # an earlier test may have given it another model

    async with running_team(app.load_teams(suite.target), agents, settings=Settings(grace=0.0)) as client:
        report = await evaluate(suite, client)

    assert [(each.name, each.problems) for each in report.scored if each.problems] == []
    assert report.passed
