"""The short form of `make chaos`. Kills and faults lose no work and repeat no work."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos.forms import FORMS, Amount
from support.sizes import SIZE, sized

pytestmark = pytest.mark.timeout(max(180, SIZE.patience))

SHORT = {
    "broker": Amount(blows=3, running=60, pause=0.8),
    "recovery": Amount(blows=3, running=40, pause=0.4),
    "processes": Amount(blows=5, running=40, pause=0.8, supervisors=2, workers=2),
    "cluster": Amount(blows=3, running=20, pause=0.5),
    "network": Amount(blows=5, running=30, pause=0.3, supervisors=1, workers=2),
}


@pytest.mark.parametrize("form", SHORT)
async def test_nothing_is_lost_and_nothing_happens_twice(form: str, tmp_path: Path) -> None:
    amount = SHORT[form]

    report = await FORMS[form](tmp_path / form, amount)

    print("\n".join(report.lines()))  # noqa: T201 - what a failing run is judged by
    assert report.problems == []
    assert report.statuses == {"completed": report.workflows}
    assert report.workflows >= amount.running
    assert report.kills == amount.blows


@sized
async def test_a_wide_plan_over_a_slow_broker_is_done_once(tmp_path: Path) -> None:
    report = await FORMS["slow"](tmp_path / "slow", Amount(blows=0, running=SIZE.tasks))

    assert report.problems == []
    assert report.statuses == {"completed": 1}
