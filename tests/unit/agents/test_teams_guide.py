"""The guide to the shipped teams has every one of them, as it is."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pointsman_agents
from pointsman_schemas.strategies import Pipeline
from pointsman_schemas.team import Team

GUIDE = (Path(__file__).parents[3] / "docs" / "teams.md").read_text()


def shipped() -> Iterator[ModuleType]:
    """Each module that `pointsman up` takes: it has a team and a sample request. A package stands for its modules."""
    found: list[str] = []
    for info in pkgutil.walk_packages(pointsman_agents.__path__, "pointsman_agents."):
        if any(info.name.startswith(f"{name}.") for name in found):
            continue
        module = importlib.import_module(info.name)
        if isinstance(getattr(module, "team", None), Team) and hasattr(module, "SAMPLE_REQUEST"):
            found.append(info.name)
            yield module


def shown(module: ModuleType) -> tuple[str, ...]:
    team: Team = module.team
    strategy = team.strategy
    agents = [stage.agent for stage in strategy.stages] if isinstance(strategy, Pipeline) else team.agents
    command = f"`pointsman up {module.__name__}`"
    return team.name, ", ".join(agents), f"`{type(strategy).__name__}`", module.SAMPLE_REQUEST, command


def test_the_table_has_each_shipped_team_as_it_is_and_says_what_it_shows() -> None:
    rows = [line.strip("| ").split(" | ") for line in GUIDE.splitlines() if "`pointsman up pointsman_agents." in line]

    assert sorted((name, *rest) for name, _, *rest in rows) == sorted(map(shown, shipped()))
    assert all(shows for _, shows, *_ in rows)
