"""Every shipped team has a suite, `evaluation.yaml` in its folder or `NAME.evaluation.yaml` beside its file, and the
offline model passes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.teams import shipped_teams

from pointsman import app
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.cli.support.topology import topology_of
from pointsman.engine.process.discovery import load_agents
from pointsman.evaluation.runner import evaluate, load_suite
from pointsman.settings import Settings
from pointsman.testing import running_team

SUITES = sorted((Path(__file__).parents[3] / "agents").rglob("*evaluation.yaml"))


def test_every_shipped_team_has_a_suite_with_its_sample_request() -> None:
    suites = {suite.target: suite for suite in map(load_suite, SUITES)}
    teams = {module.__name__: module for module in shipped_teams()}

    assert suites.keys() == teams.keys()
    for name, module in teams.items():
        assert suites[name].team == module.team.name
        assert module.SAMPLE_REQUEST in [case.input for case in suites[name].cases], name


@pytest.mark.parametrize("path", SUITES, ids=lambda path: load_suite(path).team)
async def test_the_offline_model_passes_the_suite(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POINTSMAN_MODEL", "offline")
    monkeypatch.setenv("POINTSMAN_CUSTOMER_SERVICE_DATA", str(tmp_path))
    suite = load_suite(path)
    assert suite.target is not None
    cast = topology_of(suite.target)
    agents = load_agents([target for targets in cast.workers.values() for target in targets])
    for agent in agents:
        if isinstance(agent, LLMAgent):
            vars(agent).pop("models", None)  # an earlier test may have set another model

    async with running_team(app.load_teams(suite.target), agents, settings=Settings(shutdown_grace=0.0)) as client:
        report = await evaluate(suite, client)

    assert [(each.name, each.problems) for each in report.results if each.problems] == []
    assert report.passed
