"""The texts that a caller receives where a workflow has no answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pointsman_schemas.events import AttemptError, ErrorKind

__all__ = ["ASK_FOR_LESS", "GONE", "NOT_SERVED", "START_IT", "could_not", "gone", "not_served"]


NOT_SERVED: Final = "The request could not be served. Please try again later."
"""The answer where something failed that may pass. Why is for those who run it, and stands in the outcome's reason:
what an exception said may be nobody's business who only asked."""

START_IT: Final = "Ask again once it runs; `pointsman agents` shows who does."

ASK_FOR_LESS: Final = "Ask for less, or have more allowed."

GONE: Final = "no result came, and no agent named"

_NEXT: Final = {
    ErrorKind.REFUSED: "Say what is missing, or ask for something else.",
    ErrorKind.INVALID_INPUT: "Correct the request and publish it again under a new id.",
    ErrorKind.OVERSIZE: "Send less at once, or a reference to it.",
    ErrorKind.LIMIT: ASK_FOR_LESS,
    ErrorKind.NO_WORKER: START_IT,
}
"""What failed for these is told to who asked: it is in words of ours, or of an agent that means them for the caller.
Each has what can be done about it."""


def gone(agent: str) -> str:
    """Why there is no result of a task whose agent is not alive. Who takes a handoff says so only with its result."""
    return f"{GONE} {agent} is alive: nobody took it, or who did has stopped"


def could_not(reason: str, next_step: str) -> str:
    """The answer of a workflow that has none, for a reason that its caller can do something about."""
    return f"Could not help, because {reason.strip().rstrip('.')}. {next_step}"


def not_served(workflow: str, errors: Iterable[AttemptError] = ()) -> str:
    """What who asked is told where `errors` have left `workflow` without an answer: what is wrong, if all of it may be
    told; to try again, if that may help; else who can be asked."""
    errors = tuple(errors)
    if errors and all(error.kind in _NEXT for error in errors):
        said = "; ".join(dict.fromkeys(error.message.rstrip(".") for error in errors))
        return could_not(said, " ".join(dict.fromkeys(_NEXT[ErrorKind(error.kind)] for error in errors)))
    if any(error.retryable for error in errors):
        return NOT_SERVED
    return (
        "The request could not be served, and trying again is unlikely to help. "
        f"Whoever runs this finds the reason with `pointsman show {workflow}`."
    )
