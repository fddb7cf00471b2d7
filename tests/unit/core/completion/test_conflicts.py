"""Conflicting results go to a judge. The outcome has the judge's ruling and its reason."""

from __future__ import annotations

from typing import Any

from support.core import WorkflowDriver, card, cards, failure, task

from pointsman.core.replay.replayer import replay_log
from pointsman_schemas.card import Role
from pointsman_schemas.events import Conflict
from pointsman_schemas.team import PlanAndExecute

AGENTS = (*cards("worker", "other"), card("judge", role=Role.JUDGE))
SAYS = "due: t1 says Monday; t2 says Friday"
RULED = {"decisions": [{"description": SAYS, "decision": "Friday", "reason": "t2 read the contract"}]}


def contradicting(**given: Any) -> WorkflowDriver:
    story = WorkflowDriver(**{"cards": AGENTS, **given})
    story.planned(task("t1", "worker"), task("t2", "other"))
    story.complete_task("t1", {"due": "Monday"})
    story.complete_task("t2", {"due": "Friday"})
    return story


def test_a_contradiction_is_decided_before_the_answer_is_written() -> None:
    story = contradicting()

    asked = story.handoff("judge")
    assert asked.role is Role.JUDGE
    assert asked.input == {"request": "do it", "conflicts": [SAYS]}
    assert [report.task_id for report in asked.context] == ["t1", "t2"]
    story.complete_task("judge", RULED)
    assert story.handoff_input("synthesis")["decisions"] == RULED["decisions"]
    story.complete_task("synthesis", {"answer": "on Friday"})

    assert story.outcome.status == "completed"
    assert story.outcome.conflicts == (Conflict(description=SAYS, decision="Friday", reason="t2 read the contract"),)
    assert not list(replay_log(story.commits))


def test_ruling_stands_in_the_outcome_without_a_synthesizer() -> None:
    story = contradicting(strategy=PlanAndExecute(synthesizer=None))

    story.complete_task("judge", RULED)

    assert story.outcome.conflicts[0].decision == "Friday"


def test_a_failed_judge_delays_nothing() -> None:
    story = contradicting()

    story.fail_task("judge", failure())
    written = story.handoff_input("synthesis")
    story.complete_task("synthesis", {"answer": "on Monday or Friday"})

    assert written["conflicts"] == [SAYS]
    assert story.outcome.status == "completed"
    assert story.outcome.conflicts == ()


def test_conflict_goes_to_the_synthesizer_if_no_judge_is_live() -> None:
    story = contradicting(cards=cards("worker", "other"))

    assert story.handoff_input("synthesis")["conflicts"] == [SAYS]


def test_results_that_agree_go_to_no_judge() -> None:
    story = WorkflowDriver(cards=AGENTS).planned(task("t1"), task("t2", "other"))
    story.complete_task("t1", {"due": "Friday"})
    story.complete_task("t2", {"due": "friday"})

    assert "judge" not in story.state.tasks


def test_team_without_a_judge_has_no_conflicts_decided() -> None:
    story = contradicting(judge=None)

    assert "judge" not in story.state.tasks
    assert "conflicts" not in story.handoff_input("synthesis")
