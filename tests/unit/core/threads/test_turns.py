"""Turns of a thread keep their order, even if requests arrive in another order. The record stays bounded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.threads.past_turns import MAX_TURN_CHARS, bounded_text, history_of
from pointsman.core.threads.turns import (
    LOST,
    TurnAsked,
    delete_thread,
    end_turn,
    fold_thread,
    grant_turn,
    open_turns,
    request_turn,
    turn_of,
    turns_ahead,
)
from pointsman.errors import InvariantError
from pointsman_schemas.threads import MAX_TURNS, Thread, ThreadPolicy, ThreadStarted, TurnEnded

T0 = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
QUEUE = ThreadPolicy()


def ask(thread: Thread | None, name: str, policy: ThreadPolicy = QUEUE, at: float = 0.0) -> tuple[Thread | None, str]:
    asked = TurnAsked("team", "ann", "talk", f"wf_{name}", 7, f"ask {name}")
    entries, refusal = request_turn(thread, asked, policy, T0 + timedelta(seconds=at))
    return (fold_thread(thread, entries) if entries else thread), refusal.reason if refusal else ""


def end(thread: Thread | None, name: str, answer: str = "", at: float = 0.0, **given: Any) -> Thread:
    assert thread is not None
    now = T0 + timedelta(seconds=at)
    answer = answer or f"answer {name}"
    return fold_thread(thread, end_turn(thread, f"wf_{name}", "completed", answer, now, **given))


def grant(thread: Thread, name: str) -> Thread:
    return fold_thread(thread, grant_turn(thread, f"wf_{name}", T0))


def talked(count: int, policy: ThreadPolicy = QUEUE) -> Thread:
    """Return a thread with `count` ended turns and a running turn `now`."""
    thread: Thread | None = None
    for number in range(1, count + 1):
        thread, _ = ask(thread, str(number), policy)
        thread = end(thread, str(number))
    thread, _ = ask(thread, "now", policy)
    assert thread is not None
    return thread


def statuses(thread: Thread | None) -> dict[str, str]:
    assert thread is not None
    return {each.workflow_id[3:]: each.status for each in thread.turns}


def test_first_turn_begins_the_thread_and_runs() -> None:
    thread, refusal = ask(None, "a")

    assert thread is not None
    assert (thread.team, thread.caller, thread.thread, refusal) == ("team", "ann", "talk", "")
    assert statuses(thread) == {"a": "running"}


def test_queued_turns_run_one_after_the_other_in_their_order() -> None:
    thread, _ = ask(None, "a")
    thread, _ = ask(thread, "b")
    thread, _ = ask(thread, "c")
    assert thread is not None
    assert statuses(grant(thread, "c")) == {"a": "running", "b": "queued", "c": "queued"}

    thread = grant(grant(end(thread, "a"), "c"), "b")

    assert statuses(thread) == {"a": "ended", "b": "running", "c": "queued"}
    assert [each.workflow_id for each in turns_ahead(thread, "wf_c")] == ["wf_b"]


@pytest.mark.parametrize(("busy", "expected"), [("queue", "queued"), ("interrupt", "queued"), ("parallel", "running")])
def test_second_turn_waits_or_runs_by_the_policy(busy: Any, expected: str) -> None:
    policy = ThreadPolicy(busy=busy)
    thread, _ = ask(None, "a", policy)

    thread, refusal = ask(thread, "b", policy)

    assert (statuses(thread)["b"], refusal) == (expected, "")


def test_busy_thread_refuses_a_turn_and_records_nothing() -> None:
    policy = ThreadPolicy(busy="reject")
    first, _ = ask(None, "a", policy)

    thread, refusal = ask(first, "b", policy)

    assert thread == first
    assert refusal == "the thread talk is busy: the turn wf_a has not ended"
    assert ask(end(thread, "a"), "b", policy)[1] == ""


def test_more_waiting_turns_than_the_policy_allows_are_refused() -> None:
    policy = ThreadPolicy(max_queued=2)
    thread, _ = ask(None, "a", policy)
    for name in "bc":
        thread, _ = ask(thread, name, policy)

    after, refusal = ask(thread, "d", policy)

    assert after == thread
    assert "has 3 open turns" in refusal


def test_request_that_is_delivered_again_changes_nothing() -> None:
    thread, _ = ask(None, "a")

    again, refusal = ask(thread, "a")

    assert (again, refusal) == (thread, "")
    assert end_turn(end(thread, "a"), "wf_a", "completed", "answer a", T0) == ()


def test_a_lost_turn_blocks_nothing_and_is_added_again_at_the_end() -> None:
    thread, _ = ask(None, "a")
    thread, _ = ask(thread, "b")
    assert thread is not None
    thread = grant(fold_thread(thread, end_turn(thread, "wf_a", LOST, "", T0)), "b")

    thread, _ = ask(thread, "a")

    assert thread is not None
    assert [(each.workflow_id, each.number, each.status) for each in thread.turns] == [
        ("wf_b", 2, "running"),
        ("wf_a", 3, "queued"),
    ]


def test_thread_begins_again_after_its_time_to_live() -> None:
    policy = ThreadPolicy(ttl=60)
    thread = end(ask(None, "a", policy)[0], "a")

    within, _ = ask(thread, "b", policy, at=60)
    after, _ = ask(thread, "b", policy, at=61)

    assert list(statuses(within)) == ["a", "b"]
    assert list(statuses(after)) == ["b"]


def test_running_turn_keeps_the_thread_alive() -> None:
    policy = ThreadPolicy(ttl=60)
    thread, _ = ask(None, "a", policy)

    thread, _ = ask(thread, "b", policy, at=3_600)

    assert statuses(thread) == {"a": "running", "b": "queued"}


def test_deleted_thread_takes_no_turn_and_keeps_ids_until_all_is_purged() -> None:
    thread = end(ask(None, "a")[0], "a")

    deleted = fold_thread(thread, delete_thread(thread, "ann", T0, purged=False))
    purged = fold_thread(deleted, delete_thread(deleted, "bo", T0, purged=True))

    assert (deleted.turns, deleted.earlier, deleted.summary) == ((), ("wf_a",), "")
    assert (purged.earlier, purged.deleted_by) == ((), "ann")
    assert ask(purged, "b")[1] == "the thread talk was deleted"
    assert delete_thread(deleted, "ann", T0, purged=False) == ()
    assert end_turn(deleted, "wf_a", "completed", "late", T0) == ()


def test_record_is_bounded_and_knows_every_workflow() -> None:
    thread = talked(150)

    assert len(thread.turns) == 101
    assert len(thread.earlier) == 50
    assert turn_of(thread, "wf_now").number == 151  # type: ignore[union-attr]


def test_thread_with_the_most_turns_takes_no_further_one() -> None:
    thread = talked(0).model_copy(update={"earlier": tuple(f"wf_{number}" for number in range(MAX_TURNS))})

    assert ask(thread, "more")[1] == f"the thread talk has {MAX_TURNS} turns, the allowed maximum; start a new thread"


def test_only_a_refusal_for_a_short_time_invites_the_same_turn_again() -> None:
    policy = ThreadPolicy(busy="reject", max_queued=1)
    full = talked(0).model_copy(update={"earlier": tuple(f"wf_{number}" for number in range(MAX_TURNS))})
    ended = end(ask(None, "a")[0], "a")
    deleted = fold_thread(ended, delete_thread(ended, "ann", T0, purged=False))
    waiting = ask(ask(None, "a")[0], "b")[0]
    asked = TurnAsked("team", "ann", "talk", "wf_more", 7, "more")

    refusals = [
        request_turn(thread, asked, chosen, T0)[1]
        for thread, chosen in (
            (full, QUEUE), (deleted, QUEUE), (talked(0), policy), (waiting, ThreadPolicy(max_queued=1)),
        )
    ]  # fmt: skip

    assert [refusal and refusal.retryable for refusal in refusals] == [False, False, True, True]


def test_entry_that_cannot_follow_is_refused() -> None:
    with pytest.raises(InvariantError, match="comes before thread_started"):
        fold_thread(None, [TurnEnded(at=T0, workflow_id="wf_a", outcome="completed")])
    with pytest.raises(InvariantError, match="is not a turn of the thread"):
        fold_thread(talked(0), [TurnEnded(at=T0, workflow_id="wf_x", outcome="completed")])


# The history


def test_turn_receives_the_ended_turns_in_order() -> None:
    place, history = history_of(talked(3), "wf_now", QUEUE)

    assert (place.thread, place.caller, place.number, place.overflow) == ("talk", "ann", 4, ())
    assert [(each.number, each.request, each.answer) for each in history.turns] == [
        (number, f"ask {number}", f"answer {number}") for number in (1, 2, 3)
    ]
    assert history.left_out == 0


def test_turns_beyond_the_bound_are_to_be_summarized_down_to_half() -> None:
    policy = ThreadPolicy(turns=4)

    place, history = history_of(talked(5, policy), "wf_now", policy)

    assert [each.number for each in history.turns] == [2, 3, 4, 5]
    assert [each.number for each in place.overflow] == [1, 2, 3]
    assert history.left_out == 1


def test_summary_replaces_its_turns_and_the_next_turn_needs_no_other() -> None:
    policy = ThreadPolicy(turns=4)
    talk = end(talked(5, policy), "now", summary=(3, "they said hello"))

    thread, _ = ask(talk, "next", policy)
    assert thread is not None
    place, history = history_of(thread, "wf_next", policy)

    assert (history.summary, [each.number for each in history.turns], place.overflow) == (
        "they said hello",
        [4, 5, 6],
        (),
    )
    assert thread.earlier == ("wf_1", "wf_2", "wf_3")


def test_tokens_bound_the_history() -> None:
    policy = ThreadPolicy(tokens=100)
    thread: Thread | None = None
    for name in ("1", "2"):
        thread, _ = ask(thread, name, policy)
        thread = end(thread, name, answer="x" * 300)
    thread, _ = ask(thread, "now", policy)
    assert thread is not None

    place, history = history_of(thread, "wf_now", policy)

    assert [each.number for each in history.turns] == [2]
    assert [each.number for each in place.overflow] == [1, 2]


def test_lost_turns_and_running_ones_are_no_history() -> None:
    policy = ThreadPolicy(busy="parallel")
    thread, _ = ask(None, "a", policy)
    thread, _ = ask(thread, "b", policy)
    assert thread is not None
    thread = fold_thread(thread, end_turn(thread, "wf_b", LOST, "", T0))
    thread, _ = ask(thread, "c", policy)
    assert thread is not None

    assert history_of(thread, "wf_c", policy)[1].turns == ()


def test_long_texts_are_cut() -> None:
    assert len(bounded_text("x" * 9_000)) == MAX_TURN_CHARS
    assert bounded_text({"a": 1}) == '{"a":1}'
    assert bounded_text(None) == ""


@given(st.data())
def test_whatever_happens_one_turn_runs_and_turns_start_in_their_order(data: st.DataObject) -> None:
    """Callers, supervisors and crashes act in any order. Each action is decided on the newest record."""
    thread: Thread | None = None
    asked = 0
    started: list[int] = []
    for _ in range(data.draw(st.integers(1, 30))):
        match data.draw(st.sampled_from(["ask", "again", "grant", "end", "lose"])):
            case "ask":
                asked += 1
                thread, _ = ask(thread, str(asked))
            case "again" if asked:
                thread, _ = ask(thread, str(data.draw(st.integers(1, asked))))
            case "grant" if asked and thread is not None:
                thread = grant(thread, str(data.draw(st.integers(1, asked))))
            case ("end" | "lose") as action if thread is not None:
                running = [each for each in thread.turns if each.status == "running"]
                for each in running:
                    outcome = "completed" if action == "end" else LOST
                    thread = fold_thread(thread, end_turn(thread, each.workflow_id, outcome, "a", T0))
        if thread is None:
            continue
        running = [each for each in thread.turns if each.status == "running"]
        assert len(running) <= 1
        assert len(open_turns(thread)) <= QUEUE.max_queued + 1
        started += [each.number for each in running if each.number not in started]
        assert started == sorted(started)
        assert not turns_ahead(thread, running[0].workflow_id) if running else True


def test_state_of_a_record_is_the_fold_of_its_entries() -> None:
    begins = [ThreadStarted(at=T0, team="team", caller="ann", thread="talk")]

    assert fold_thread(fold_thread(None, begins), ()) == fold_thread(None, begins)
