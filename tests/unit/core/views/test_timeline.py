"""Each event is rendered as one line. Its symbol and its text agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.history import at, completed, dispatched, failing, succeeded, tool

from pointsman.core.views.timeline import Timeline, TimelineLine
from pointsman_schemas.events import ATTEMPT_STARTED
from pointsman_schemas.log import Commit, Entry, QuestionAnswered, QuestionAsked

LOGS = sorted((Path(__file__).parents[3] / "replay").glob("*.jsonl"))
LATER = at(60)


def told(*entries: Entry) -> list[TimelineLine]:
    story = Timeline()
    return [story.render(entry) for entry in entries]


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_every_recorded_entry_has_a_text_with_its_agent(log: Path) -> None:
    commits = [Commit.model_validate(json.loads(line)) for line in log.read_text().splitlines()]

    lines = told(*(entry for commit in commits for entry in commit.entries))

    assert all(line.actor and (line.text or line.detail) for line in lines)
    assert "?" not in {line.actor for line in lines}


def begun(*times: float) -> TimelineLine:
    """Return the last line about an attempt that started at these times."""
    story = Timeline()
    story.render(dispatched("t1", "fitter", 1))
    return [story.render(tool(ATTEMPT_STARTED, each, each, kind="progress")) for each in times][-1]


def test_restarted_attempt_is_shown_as_left_by_a_dead_worker() -> None:
    line = begun(1.5, 35)

    assert (line.mark, line.detail) == ("·", "t1, its worker stopped; started again after 33.5 s")


def test_begin_of_an_attempt_is_shown_to_all_only_after_a_long_wait() -> None:
    at_once, late = (begun(1.5), begun(8))

    assert (at_once.mark, at_once.detail) == ("", "t1")
    assert (late.mark, late.actor, late.text) == ("·", "fitter", "is at work on")
    assert late.detail == "t1, started 7.0 s after the handoff"


def test_a_line_reads_as_a_sentence() -> None:
    lines = told(*failing())

    assert [f"{line.actor} {line.text} {line.detail}".strip(" :") for line in lines[-5:]] == [
        "fitter failed at t1, attempt 1: handler error: out of bolts",
        "helper gets t1, attempt 2 in 1.0 s",
        "helper failed at t1, attempt 2: handler error: out of bolts",
        "helper failed t1 after 2 attempts: out of bolts",
        "tester has t2 skipped: t1 failed",
    ]


def test_role_tasks_are_named_by_their_purpose() -> None:
    handed = [line.detail for line in told(*completed()) if line.text == "is handed"]

    assert handed == ["plan", "t1", "t2", "synthesize"]


def test_report_shows_its_duration_and_error() -> None:
    story = Timeline()

    good, bad = story.render(tool("drill", 1, 2.5)), story.render(tool("drill", 1, 2.5, error="blunt"))

    assert (good.mark, good.tone, good.detail) == ("⚒", "plain", "drill 1.5 s")
    assert (bad.tone, bad.detail) == ("bad", "drill 1.5 s: blunt")


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        (QuestionAsked(at=at(1), question="wf-1", about="plan", expires_at=LATER), "the plan"),
        (QuestionAsked(at=at(1), question="wf-1", about="task", task_id="t1", expires_at=LATER), "the task t1"),
        (
            QuestionAsked(at=at(1), question="wf-1", about="tool", task_id="t1", tool="pay", expires_at=LATER),
            "the call of pay in t1",
        ),
    ],
    ids=["plan", "task", "tool"],
)
def test_approval_question_is_named(asked: QuestionAsked, what: str) -> None:
    (line,) = told(asked)

    assert (line.text, line.detail) == ("waits for approval of", what)


def test_expired_approval_is_shown_as_unanswered() -> None:
    (line,) = told(QuestionAnswered(at=at(1), event_id="e", question="wf-1", verdict="expired", reason="time is up"))

    assert f"{line.actor} {line.text} {line.detail}" == "timer answered: expired wf-1: time is up"


def test_task_taken_by_another_worker_shows_how_long_it_waited() -> None:
    story = Timeline()
    for event in (dispatched("t1", "fitter", 1), tool("drill", 1.2, 1.5), tool("drill", 32, 32.5)):
        story.render(event)

    line = story.render(succeeded("t1", "fitter", 31.5, 33))

    assert line.detail == "t1 in 1.5 s, 120 tokens, its worker stopped; started again after 30.0 s"
