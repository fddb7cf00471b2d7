"""The guide to strategies shows teams as they can be written today."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from pointsman.testing import run_team
from pointsman_schemas.strategies import Strategy
from pointsman_schemas.team import Team

GUIDE = (Path(__file__).parents[2] / "docs" / "strategies.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_defines_a_team_that_travels(block: str) -> None:
    defined: dict[str, Any] = {}

    exec(block, defined)

    team = defined["team"]
    assert Team.model_validate_json(team.model_dump_json()) == team


async def test_the_work_of_a_skill_is_shared_by_who_has_it() -> None:
    (block,) = [block for block in BLOCKS if "skill=" in block]
    defined: dict[str, Any] = {}
    exec(block, defined)
    agents = [defined[name] for name in ("planner", "careful", "hasty")]

    outcome = await run_team(defined["team"], agents, "one|two|three|four")

    assert outcome.status == "completed"
    by_hasty = {"page-1": "hasty: two", "page-3": "hasty: four"}
    assert outcome.answer == {"page-0": "careful: one", "page-2": "careful: three", **by_hasty}


def test_every_strategy_is_in_the_table() -> None:
    union = get_args(Strategy)[0]

    assert [f"`{kind.__name__}`" for kind in get_args(union)] == re.findall(r"^\| (`[A-Z]\w+`) \|", GUIDE, re.MULTILINE)
