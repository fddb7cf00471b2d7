"""A fan-out sends every member the same request, needs answers from a part of them, and merges the answers."""

from __future__ import annotations

from typing import Any

import pytest
from support.core import WorkflowDriver, card, cards, failure

from pointsman.core.completion.conflicts import find_conflicts
from pointsman.core.completion.synthesis import find_result_conflicts
from pointsman.core.model.lifecycle import TaskStatus
from pointsman.core.model.state import copy_with
from pointsman.core.replay.replayer import replay_log
from pointsman_schemas.card import Role
from pointsman_schemas.team import Check, FanOut

THREE = cards("legal", "risk", "sales")


def asked(strategy: FanOut | None = None, **given: Any) -> WorkflowDriver:
    return WorkflowDriver(strategy=strategy or FanOut(), cards=THREE, **given).start("may we?")


def test_every_live_member_gets_the_request_at_once() -> None:
    story = WorkflowDriver(strategy=FanOut(), cards=(*THREE, card("planner", role=Role.PLAN))).start("may we?")

    assert story.statuses() == {"legal": "running", "risk": "running", "sales": "running"}
    assert {story.handoff_input(name)["request"] for name in story.statuses()} == {"may we?"}


def test_a_named_member_gets_the_request_even_if_it_is_not_live() -> None:
    assert asked(agents=("legal", "ghost")).statuses() == {"legal": "running", "ghost": "running"}


def test_merge_gets_the_conflicts() -> None:
    story = asked()
    story.complete_task("legal", {"verdict": "yes", "because": "x" * 80})
    story.complete_task("risk", {"verdict": "No", "because": "y" * 80})
    story.complete_task("sales", {"verdict": "yes"})

    given: Any = story.handoff("synthesis").input
    assert given["final_instruction"].endswith("Where they disagree, say who says what.")
    assert given["conflicts"] == ["verdict: legal says yes; risk says No; sales says yes"]
    story.complete_task("synthesis", {"answer": "two of three say yes"})
    assert (story.outcome.status, story.outcome.answer) == ("completed", "two of three say yes")


def test_enough_members_are_an_answer_with_gaps() -> None:
    story = asked()
    story.fail_task("legal")
    story.complete_task("risk")
    story.complete_task("sales")

    story.complete_task("synthesis", {"answer": "both"})

    assert story.outcome.status == "partial"
    assert [gap.agent for gap in story.outcome.gaps] == ["legal"]


def test_member_counts_once_its_check_and_its_judge_pass() -> None:
    checked = FanOut(check=Check(fields=("verdict",), judge="reviewer"), min_success_ratio=0.5)
    story = WorkflowDriver(
        strategy=checked, cards=(*THREE, card("reviewer", role=Role.JUDGE)), agents=("legal", "risk")
    ).start()
    story.complete_task("legal", {"because": "I say so"})
    before = story.task("legal").attempt
    story.complete_task("legal", {"verdict": "yes"})
    story.complete_task("risk", {"verdict": "no"})

    story.complete_task("judge-legal", {"verdict": "pass", "reason": "it is said"})
    story.complete_task("judge-risk", {"verdict": "stop", "reason": "it is invented"})

    assert (before, story.statuses()) == (2, {"legal": "succeeded", "risk": "failed"})
    story.complete_task("synthesis", {"answer": "yes"})
    assert [(gap.agent, "invented" in gap.reason) for gap in story.outcome.gaps] == [("risk", True)]
    assert not list(replay_log(story.commits))


def test_too_few_members_are_no_answer() -> None:
    story = asked()
    story.fail_task("legal")
    story.fail_task("risk")
    story.complete_task("sales")

    assert story.outcome.status == "failed"
    assert story.outcome.reason.startswith("1 of 3 members succeeded; at least 2 are required: legal: provider_error")


def test_refusals_of_all_members_reach_the_caller() -> None:
    story = asked()
    for name in ("legal", "risk", "sales"):
        story.fail_task(name, failure("refused"))

    assert (story.outcome.status, "because refused was seen" in str(story.outcome.answer)) == ("failed", True)


@pytest.mark.parametrize(("minimum", "status"), [(1.0, "failed"), (0.6, "partial")])
def test_the_share_is_the_teams_to_choose(minimum: float, status: str) -> None:
    story = asked(FanOut(min_success_ratio=minimum, synthesizer=None))
    story.fail_task("legal")
    story.complete_task("risk")
    story.complete_task("sales")

    assert story.outcome.status == status


def test_the_needed_number_of_members_is_exact() -> None:
    members = [f"m{number}" for number in range(25)]
    story = WorkflowDriver(strategy=FanOut(min_success_ratio=0.56, synthesizer=None), cards=cards(*members)).start()

    for number, name in enumerate(members):
        story.complete_task(name) if number < 14 else story.fail_task(name)

    assert story.outcome.status == "partial"


def test_conflict_of_members_is_decided_by_a_live_judge() -> None:
    story = WorkflowDriver(
        strategy=FanOut(), cards=(*THREE, card("judge", role=Role.JUDGE)), agents=("legal", "risk")
    ).start()
    story.complete_task("legal", {"verdict": "yes"})
    story.complete_task("risk", {"verdict": "no"})

    story.complete_task(
        "judge", {"decisions": [{"description": "verdict", "decision": "no", "reason": "risk has looked"}]}
    )

    given: Any = story.handoff("synthesis").input
    assert [each["decision"] for each in given["decisions"]] == ["no"]


def test_members_get_the_intent_of_the_team() -> None:
    story = asked(FanOut(intent="Name one risk"))

    assert {story.handoff(name).intent for name in story.statuses()} == {"Name one risk"}


def test_a_skill_that_is_asked_for_twice_has_one_member() -> None:
    story = WorkflowDriver(strategy=FanOut(skills=("law", "law")), cards=(card("legal", skills=("law",)),)).start()

    assert [(task.id, task.agent) for task in story.state.plan_tasks()] == [("law", "legal")]


def test_without_a_synthesizer_the_answer_is_each_members_own() -> None:
    story = asked(FanOut(synthesizer=None))
    for name in story.statuses():
        story.complete_task(name, f"{name} agrees")

    assert story.outcome.answer == {name: f"{name} agrees" for name in ("legal", "risk", "sales")}


def test_the_outcome_has_the_time_of_every_member() -> None:
    story = asked(FanOut(synthesizer=None))
    story.wait(2).complete_task("legal")
    story.wait(3).complete_task("risk")
    story.wait(1).complete_task("sales")

    assert {each.agent: each.elapsed for each in story.outcome.tasks} == {"legal": 2, "risk": 5, "sales": 6}


def test_fan_out_without_eligible_members_fails_at_once() -> None:
    story = WorkflowDriver(strategy=FanOut(), agents=()).start()

    assert story.outcome.reason == "no agent is alive that could take the request"


@pytest.mark.parametrize(
    ("outputs", "found"),
    [
        ([{"ok": True}, {"ok": False}], ("ok: t1 says yes; t2 says no",)),
        ([{"price": 1.0}, {"price": 1}], ()),
        ([{"verdict": "Yes"}, {"verdict": "yes "}], ()),
        ([{"why": "a" * 61}, {"why": "b" * 61}], ()),
        ([{"a": 1}, {"b": 2}], ()),
        (["yes", "no"], ()),
        ([{"list": [1]}, {"list": [2]}], ()),
        ([{"confidence": 0.9, "summary": "It pays."}, {"confidence": 0.5, "summary": "It costs 3 weeks."}], ()),
    ],
)
def test_fields_with_different_short_values_are_a_disagreement(outputs: list[Any], found: tuple[str, ...]) -> None:
    assert find_conflicts({f"t{number}": output for number, output in enumerate(outputs, 1)}) == found


def test_failed_members_conflict_with_none() -> None:
    story = asked()
    story.complete_task("legal", {"ok": True})
    story.complete_task("risk", {"ok": False})
    state = story.state
    failed = copy_with(state.tasks["risk"], status=TaskStatus.FAILED)

    assert find_result_conflicts(state) == ("ok: legal says yes; risk says no",)
    assert find_result_conflicts(copy_with(state, tasks={**state.tasks, "risk": failed})) == ()
