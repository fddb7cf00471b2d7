"""Decide on the turns of a thread, and fold the entries of its record. All functions are pure.

A thread has its own record beside the logs of its workflows. The record grants a turn before the workflow of the turn
begins, and records the end of the turn after the workflow has ended. Each change of the record is a compare-and-set, so
a decision from an old version of the record is never stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, assert_never

from pointsman.errors import InvariantError
from pointsman_schemas.threads import (
    MAX_TURNS,
    Thread,
    ThreadDeleted,
    ThreadEntry,
    ThreadPolicy,
    ThreadStarted,
    Turn,
    TurnEnded,
    TurnGranted,
    TurnRequested,
    TurnsSummarized,
)

__all__ = [
    "LOST",
    "TurnAsked",
    "TurnRefusal",
    "delete_thread",
    "end_turn",
    "evolve_thread",
    "fold_thread",
    "grant_turn",
    "is_expired",
    "open_turns",
    "request_turn",
    "turn_of",
    "turns_ahead",
]

LOST = "lost"
"""The outcome of a turn whose request was acknowledged but whose workflow never began. The history omits such a
turn."""

_KEPT_TURNS = 100
"""Number of ended turns whose texts stay in the record. More are never needed, because a `ThreadPolicy` can give at
most this number of turns to agents."""


@dataclass(frozen=True, slots=True)
class TurnAsked:
    """A request that names a thread.

    Attributes:
        team: The team.
        caller: The caller of the request.
        thread: The id of the thread.
        workflow: The workflow that the request starts.
        sequence: The stream sequence of the request.
        request: The request as a text of bounded length (`bounded_text`).
    """

    team: str
    caller: str
    thread: str
    workflow: str
    sequence: int
    request: str


class TurnRefusal(NamedTuple):
    """The refusal of a turn.

    Attributes:
        reason: The reason.
        retryable: True if the thread might accept the same turn later.
    """

    reason: str
    retryable: bool


def request_turn(
    thread: Thread | None, asked: TurnAsked, policy: ThreadPolicy, now: datetime
) -> tuple[tuple[ThreadEntry, ...], TurnRefusal | None]:
    """Decide on a request that names the thread.

    Args:
        thread: The thread; None before its first turn.
        asked: The request.
        policy: The policy of the team.
        now: The time.

    Returns:
        The entries of the record, and the refusal. The refusal is None if the turn joins the thread. There are no
        entries for a turn that is already in the record.
    """
    if thread is not None and thread.deleted_at is not None and not is_expired(thread, policy, now):
        return (), TurnRefusal(f"the thread {thread.thread} was deleted", retryable=False)
    begins: tuple[ThreadEntry, ...] = ()
    if thread is None or is_expired(thread, policy, now):
        begins = (ThreadStarted(at=now, team=asked.team, caller=asked.caller, thread=asked.thread),)
        thread = fold_thread(None, begins)
    known = turn_of(thread, asked.workflow)
    if known is not None and known.outcome != LOST:
        return (), None
    waiting = open_turns(thread)
    if _count(thread) >= MAX_TURNS:
        reason = f"the thread {thread.thread} has {MAX_TURNS} turns, the allowed maximum; start a new thread"
        return (), TurnRefusal(reason, retryable=False)
    if waiting and policy.busy == "reject":
        reason = f"the thread {thread.thread} is busy: the turn {waiting[0].workflow_id} has not ended"
        return (), TurnRefusal(reason, retryable=True)
    if len(waiting) > policy.max_queued:
        reason = f"the thread {thread.thread} has {len(waiting)} open turns, and no further turn is allowed"
        return (), TurnRefusal(reason, retryable=True)
    status = "running" if not waiting or policy.busy == "parallel" else "queued"
    entry = TurnRequested(
        at=now, workflow_id=asked.workflow, status=status, sequence=asked.sequence, request=asked.request
    )
    return (*begins, entry), None


def turns_ahead(thread: Thread, workflow: str) -> tuple[Turn, ...]:
    """Return the open turns that must end before the queued turn of `workflow` can start."""
    own = turn_of(thread, workflow)
    return () if own is None else tuple(each for each in open_turns(thread) if each.number < own.number)


def grant_turn(thread: Thread, workflow: str, now: datetime) -> tuple[ThreadEntry, ...]:
    """Grant a queued turn, if all earlier turns have ended."""
    own = turn_of(thread, workflow)
    if own is None or own.status != "queued" or turns_ahead(thread, workflow):
        return ()
    return (TurnGranted(at=now, workflow_id=workflow),)


def end_turn(
    thread: Thread, workflow: str, outcome: str, answer: str, now: datetime, summary: tuple[int, str] | None = None
) -> tuple[ThreadEntry, ...]:
    """Record the end of a turn. An end that is already in the record leads to no entry.

    Args:
        thread: The thread.
        workflow: The workflow of the turn.
        outcome: The status of the workflow's outcome.
        answer: The workflow's answer as a text of bounded length (`bounded_text`).
        now: The time.
        summary: A summary of older turns, and the number of the last turn that the summary covers.

    Returns:
        The entries.
    """
    own = turn_of(thread, workflow)
    entries: list[ThreadEntry] = []
    if thread.deleted_at is not None or own is None:
        return ()
    if (own.status, own.outcome, own.answer) != ("ended", outcome, answer):
        entries.append(TurnEnded(at=now, workflow_id=workflow, outcome=outcome, answer=answer))
    if summary is not None and summary[0] > thread.summarized:
        entries.append(TurnsSummarized(at=now, through=summary[0], summary=summary[1]))
    return tuple(entries)


def delete_thread(thread: Thread, by: str, now: datetime, *, purged: bool) -> tuple[ThreadEntry, ...]:
    """Delete the thread. The record keeps the ids of its workflows until their messages are deleted (`purged`)."""
    if thread.deleted_at is not None and not purged:
        return ()
    return (ThreadDeleted(at=now, by=thread.deleted_by or by, purged=purged),)


def open_turns(thread: Thread) -> tuple[Turn, ...]:
    """Return the turns that have not ended, in order."""
    return tuple(each for each in thread.turns if each.status != "ended")


def turn_of(thread: Thread, workflow: str) -> Turn | None:
    """Return the turn of a workflow; None if the record has no such turn, or has kept only the id of the workflow."""
    return next((each for each in reversed(thread.turns) if each.workflow_id == workflow), None)


def is_expired(thread: Thread, policy: ThreadPolicy, now: datetime) -> bool:
    """Return True if the time to live of the thread has passed. A thread with an open turn does not expire."""
    return now > thread.changed_at + timedelta(seconds=policy.ttl) and not open_turns(thread)


def fold_thread(thread: Thread | None, entries: Iterable[ThreadEntry]) -> Thread:
    """Return the thread after `entries`.

    Raises:
        InvariantError: An entry cannot follow the earlier entries.
    """
    for entry in entries:
        thread = evolve_thread(thread, entry)
    if thread is None:
        raise InvariantError("a thread begins with thread_started")
    return thread


def evolve_thread(thread: Thread | None, entry: ThreadEntry) -> Thread:
    """Return the thread after `entry`.

    Raises:
        InvariantError: The entry cannot follow the earlier entries.
    """
    if isinstance(entry, ThreadStarted):
        return Thread(
            team=entry.team, caller=entry.caller, thread=entry.thread, started_at=entry.at, changed_at=entry.at
        )
    if thread is None:
        raise InvariantError(f"{entry.kind} comes before thread_started")
    match entry:
        case TurnRequested():
            own = turn_of(thread, entry.workflow_id)
            if own is not None and own.outcome != LOST:
                raise InvariantError(f"{entry.workflow_id} joined the thread {thread.thread} twice")
            turn = Turn(
                workflow_id=entry.workflow_id,
                number=_last_number(thread) + 1,
                status=entry.status,
                asked_at=entry.at,
                sequence=entry.sequence,
                request=entry.request,
            )
            others = tuple(each for each in thread.turns if each is not own)
            return _with_turns(thread, (*others, turn), entry.at)
        case TurnGranted():
            return _with_turn(thread, entry.workflow_id, entry.at, status="running")
        case TurnEnded():
            ended = {"status": "ended", "outcome": entry.outcome, "answer": entry.answer, "ended_at": entry.at}
            return _with_turn(thread, entry.workflow_id, entry.at, **ended)
        case TurnsSummarized():
            return _with_turns(
                thread.model_copy(update={"summary": entry.summary, "summarized": entry.through}),
                thread.turns,
                entry.at,
            )
        case ThreadDeleted():
            deleted = {"deleted_at": entry.at, "deleted_by": entry.by, "summary": "", "changed_at": entry.at}
            ids = () if entry.purged else (*thread.earlier, *(each.workflow_id for each in thread.turns))
            return thread.model_copy(update={**deleted, "turns": (), "earlier": ids})
        case _:
            assert_never(entry)


def _with_turn(thread: Thread, workflow: str, at: datetime, **changes: object) -> Thread:
    if turn_of(thread, workflow) is None:
        raise InvariantError(f"{workflow} is not a turn of the thread {thread.thread}")
    turns = tuple(each.model_copy(update=changes) if each.workflow_id == workflow else each for each in thread.turns)
    return _with_turns(thread, turns, at)


def _with_turns(thread: Thread, turns: tuple[Turn, ...], at: datetime) -> Thread:
    """Return the thread with `turns`. If no later turn can receive an ended turn, only its workflow id is kept."""
    ended = [each for each in turns if each.status == "ended"]
    gone = {each.number for each in ended[:-_KEPT_TURNS]} | {
        each.number for each in ended if each.number <= thread.summarized
    }
    return thread.model_copy(
        update={
            "turns": tuple(each for each in turns if each.number not in gone),
            "earlier": (*thread.earlier, *(each.workflow_id for each in turns if each.number in gone)),
            "changed_at": at,
        }
    )


def _count(thread: Thread) -> int:
    return len(thread.turns) + len(thread.earlier)


def _last_number(thread: Thread) -> int:
    return max((each.number for each in thread.turns), default=max(thread.summarized, len(thread.earlier)))
