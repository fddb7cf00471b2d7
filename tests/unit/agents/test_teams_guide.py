"""The guide to the shipped teams lists each team with its current members."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from support.teams import shipped_teams

from pointsman_schemas.strategies import Pipeline
from pointsman_schemas.team import Team

GUIDE = (Path(__file__).parents[3] / "docs" / "teams.md").read_text()


def shown(module: ModuleType) -> tuple[str, ...]:
    team: Team = module.team
    strategy = team.strategy
    stages = strategy.stages if isinstance(strategy, Pipeline) else ()
    agents = [stage.agent or stage.skill for stage in stages] or team.agents
    command = f"`pointsman up {module.__name__}`"
    return team.name, ", ".join(agents), f"`{type(strategy).__name__}`", module.SAMPLE_REQUEST, command


def test_table_lists_each_shipped_team_with_its_content() -> None:
    rows = [line.strip("| ").split(" | ") for line in GUIDE.splitlines() if "`pointsman up pointsman_agents." in line]

    assert sorted((name, *rest) for name, _, *rest in rows) == sorted(map(shown, shipped_teams()))
    assert all(shows for _, shows, *_ in rows)
