"""The guide to strategies shows teams as they can be written today."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest

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


def test_every_strategy_is_in_the_table() -> None:
    union = get_args(Strategy)[0]

    assert [f"`{kind.__name__}`" for kind in get_args(union)] == re.findall(r"^\| (`[A-Z]\w+`) \|", GUIDE, re.MULTILINE)
