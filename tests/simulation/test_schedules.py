"""In random worlds of schedules, each fire starts one workflow, despite killed processes and clock jumps."""

from __future__ import annotations

import pytest

from simulation.schedules import ScheduleWorld

pytestmark = pytest.mark.timeout(180)

_SEEDS = range(1, 9)
_CHUNK = 4  # seeds in one test; more could exceed its time limit on a slow machine


@pytest.mark.parametrize("first", _SEEDS[::_CHUNK])
def test_each_fire_is_one_workflow_over_kills_and_clock_jumps(first: int) -> None:
    for seed in range(first, first + _CHUNK):
        seen = ScheduleWorld(seed).run()

        assert not seen.problems, f"seed {seed}: {'; '.join(seen.problems)}"
        assert any(each.started for each in seen.schedules)
