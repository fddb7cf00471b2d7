"""A turn of a thread starts after the summary of older turns. Its agents receive the history."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.core import WorkflowDriver, admission, card, cards, plan, task

from pointsman.core.model.inputs import RequestReceived
from pointsman.core.replay.replayer import replay_log
from pointsman_schemas.card import Role
from pointsman_schemas.events import History, PastTurn, Request
from pointsman_schemas.log import QuestionAsked, ThreadTurn
from pointsman_schemas.team import PlanAndExecute, Team, ThreadPolicy

TURNS = tuple(PastTurn(number=number, request=f"ask {number}", answer=f"said {number}") for number in range(1, 5))
SUMMARIZER = card("summarizer", role=Role.SUMMARIZE)


def turn(*live: Any, overflow: tuple[PastTurn, ...] = TURNS[:3], **given: Any) -> WorkflowDriver:
    """Return the fifth turn of a thread that summarizes its first three turns."""
    story = WorkflowDriver(cards=(*cards("worker"), *live), strategy=PlanAndExecute(**given))
    place = ThreadTurn(thread="talk", caller="ann", number=5, overflow=overflow)
    history = History(summary="before", turns=TURNS[1:], left_out=1)
    admitted = replace(admission(story.strategy, story.limits), thread=place, history=history)
    story.decide_and_apply(RequestReceived(admitted, Request(input="do it", thread="talk")))
    return story


def past(story: WorkflowDriver, task_id: str) -> tuple[str, list[int]] | None:
    history = story.handoff(task_id).history
    return None if history is None else (history.summary, [each.number for each in history.turns])


def test_turn_without_overflow_begins_at_once_with_its_past() -> None:
    story = turn(SUMMARIZER, overflow=())

    assert past(story, "plan-1") == ("before", [2, 3, 4])


def test_summary_comes_first_and_replaces_the_older_turns_for_every_role() -> None:
    story = turn(SUMMARIZER)
    assert list(story.state.tasks) == ["summary"]
    assert story.handoff_input("summary") == {
        "summary": "before",
        "turns": [each.model_dump(mode="json") for each in TURNS[:3]],
    }
    assert past(story, "summary") is None

    story.complete_task("summary", {"summary": "all of it"})
    received = [past(story, "plan-1")]
    story.complete_task("plan-1", plan(task("a")))
    received.append(past(story, "a"))
    story.complete_task("a")
    received.append(past(story, "synthesis"))

    assert received == [("all of it", [4])] * 3
    assert not list(replay_log(story.commits))


@pytest.mark.parametrize("output", [{"summary": ""}, "no object"])
def test_summary_that_cannot_be_read_is_left_out(output: Any) -> None:
    story = turn(SUMMARIZER)

    story.complete_task("summary", output)

    assert past(story, "plan-1") == ("before", [2, 3, 4])


def test_workflow_begins_without_a_summary_where_the_summarizer_fails_or_is_not_live() -> None:
    failed = turn(SUMMARIZER)
    failed.fail_task("summary")

    assert past(failed, "plan-1") == past(turn(), "plan-1") == ("before", [2, 3, 4])


def test_agent_of_another_role_is_no_summarizer() -> None:
    assert list(turn(card("summarizer")).state.tasks) == ["plan-1"]


def test_turn_asks_once_for_the_approval_of_its_plan() -> None:
    story = WorkflowDriver(cards=cards("worker"))
    admitted = replace(
        admission(story.strategy, story.limits), thread=ThreadTurn(thread="talk", caller="ann", number=1)
    )
    team = Team(name="team", strategy=story.strategy, limits=story.limits, approve_plan=True)
    story.decide_and_apply(RequestReceived(replace(admitted, team=team), Request(input="do it", thread="talk")))

    story.complete_task("plan-1", plan(task("a")))

    assert len(story.entries_of(QuestionAsked)) == 1


def test_policy_of_threads_has_bounds() -> None:
    with pytest.raises(ValueError, match="turns"):
        ThreadPolicy(turns=101)
