"""Live items that arrive before the entry of their attempt are used after this entry."""

from __future__ import annotations

from support.history import WORKFLOW

from pointsman.gateway.early_items import _MAX_KEPT, EarlyItems
from pointsman_schemas.events import Delta


def piece(text: str, *, task: str = "t1", attempt: int = 1) -> Delta:
    return Delta(workflow_id=WORKFLOW, task_id=task, attempt=attempt, agent="fitter", text=text)


def test_items_are_kept_until_their_attempt_starts() -> None:
    early = EarlyItems()
    first, other, later = piece("a"), piece("b", task="t2"), piece("c", attempt=2)

    kept = [early.keep(each) for each in (first, other, later)]
    before = early.take()
    early.start("t1", 1)
    taken = early.take()

    assert (kept, before, taken) == ([True] * 3, [], [first])
    assert early.take() == []
    assert [early.keep(piece("d")), early.keep(piece("e", task="t2"))] == [False, True]
    early.start("t1", 2)
    assert early.take() == [later]


def test_the_number_of_kept_items_is_bounded() -> None:
    early = EarlyItems()
    for number in range(_MAX_KEPT + 10):
        assert early.keep(piece(str(number)))
    early.start("t1", 1)

    assert len(early.take()) == _MAX_KEPT
