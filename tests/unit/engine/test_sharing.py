"""Each workflow has one supervisor that has it in hand, and all of them name the same one."""

from __future__ import annotations

from collections import Counter

from pointsman.engine.sharing import holder

WORKFLOWS = [f"wf_{number}" for number in range(3000)]


def test_supervisors_name_the_same_holder_and_share_evenly() -> None:
    names = [f"s{number}" for number in range(3)]

    holders = {workflow: holder(workflow, names) for workflow in WORKFLOWS}
    turned = {workflow: holder(workflow, names[::-1]) for workflow in WORKFLOWS}
    shares = Counter(holders.values())

    assert holders == turned
    assert all(900 < shares[name] < 1100 for name in names)


def test_only_the_share_of_who_goes_moves() -> None:
    moved = [workflow for workflow in WORKFLOWS if holder(workflow, ["a", "b", "c"]) != holder(workflow, ["a", "b"])]

    assert {holder(workflow, ["a", "b", "c"]) for workflow in moved} == {"c"}
