"""Select the earlier turns that a new turn receives, within the bounds of the team's policy."""

from __future__ import annotations

from pydantic import JsonValue

from pointsman.core.threads.turns import LOST, turn_of
from pointsman_schemas.events import History, PastTurn
from pointsman_schemas.log import ThreadTurn
from pointsman_schemas.strict_json import compact_json
from pointsman_schemas.threads import Thread, ThreadPolicy, Turn

__all__ = ["MAX_TURN_CHARS", "bounded_text", "history_of"]

MAX_TURN_CHARS = 4_000
"""Largest number of characters of a request, and of an answer, in the record of a thread. A longer text is cut, and
only the log of the workflow has the whole text."""

_CHARS_PER_TOKEN = 4


def bounded_text(value: JsonValue) -> str:
    """Return a request or an answer as a text of at most `MAX_TURN_CHARS` characters."""
    text = value if isinstance(value, str) else "" if value is None else compact_json(value).decode()
    return text if len(text) <= MAX_TURN_CHARS else f"{text[: MAX_TURN_CHARS - 3]}..."


def history_of(thread: Thread, workflow: str, policy: ThreadPolicy) -> tuple[ThreadTurn, History]:
    """Return the place of a turn in its thread, and the earlier turns for the agents of the turn.

    If the turns since the last summary exceed the bounds, the newest turns that fit into half of the bounds stay as
    they are, and the summarizer gets the older turns. The other half of the bounds is then free for later turns, so the
    summarizer runs only once for several turns.

    Args:
        thread: The thread.
        workflow: The workflow of the turn.
        policy: The policy of the team.

    Returns:
        The place, with the turns to summarize, and the history.
    """
    own = turn_of(thread, workflow)
    assert own is not None
    past = [
        _past(each)
        for each in thread.turns
        if each.status == "ended" and each.outcome != LOST and thread.summarized < each.number < own.number
    ]
    shown = _newest(past, policy.turns, policy.tokens)
    overflow: list[PastTurn] = []
    if len(shown) < len(past):
        kept = _newest(past, policy.turns // 2, policy.tokens // 2)
        overflow = past[: len(past) - len(kept)][-policy.turns * 2 :]
    place = ThreadTurn(thread=thread.thread, caller=thread.caller, number=own.number, overflow=tuple(overflow))
    history = History(summary=thread.summary, turns=tuple(shown), left_out=len(past) - len(shown))
    return place, history


def _past(turn: Turn) -> PastTurn:
    return PastTurn(number=turn.number, request=turn.request, answer=turn.answer, status=turn.outcome)


def _newest(past: list[PastTurn], turns: int, tokens: int) -> list[PastTurn]:
    """Return the newest turns in order: at most `turns` turns, which have at most `tokens` tokens together."""
    kept: list[PastTurn] = []
    left = tokens * _CHARS_PER_TOKEN
    for each in reversed(past[-turns:] if turns else []):
        left -= len(each.request) + len(each.answer)
        if left < 0:
            break
        kept.insert(0, each)
    return kept
