"""The texts that a caller receives where a workflow has no answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pointsman_schemas.events import AttemptError, ErrorKind

__all__ = [
    "NOT_SERVED_MESSAGE",
    "NO_AGENT_MESSAGE",
    "RAISE_LIMIT_ADVICE",
    "START_AGENT_ADVICE",
    "agent_gone",
    "explain_failure",
    "generic_failure",
]


NOT_SERVED_MESSAGE: Final = "The request could not be served. Please try again later."
"""The answer where something failed that may pass. Why is for those who run it, and stands in the outcome's reason:
what an exception said may be nobody's business who only asked."""

START_AGENT_ADVICE: Final = "Ask again once it runs; `pointsman agents` shows who does."

RAISE_LIMIT_ADVICE: Final = "Ask for less, or have more allowed."

_ADVICE_BY_KIND: Final = {
    ErrorKind.REFUSED: "Say what is missing, or ask for something else.",
    ErrorKind.INVALID_INPUT: "Correct the request and publish it again under a new id.",
    ErrorKind.OVERSIZE: "Send less at once, or a reference to it.",
    ErrorKind.LIMIT: RAISE_LIMIT_ADVICE,
    ErrorKind.NO_WORKER: START_AGENT_ADVICE,
}
"""What failed for these is told to who asked: it is in words of ours, or of an agent that means them for the caller.
Each has what can be done about it."""


def agent_gone(agent: str) -> str:
    """Why there is no result of a task whose agent is not alive. Who takes a handoff says so only with its result."""
    return f"no result came, and no agent named {agent} is alive: no worker took the handoff, or the worker has stopped"


def explain_failure(reason: str, next_step: str) -> str:
    """The answer of a workflow that has none, for a reason that its caller can do something about."""
    return f"Could not help, because {reason.strip().rstrip('.')}. {next_step}"


def generic_failure(workflow: str, errors: Iterable[AttemptError] = ()) -> str:
    """What who asked is told where `errors` have left `workflow` without an answer: what is wrong, if all of it may be
    told; to try again, if that may help; else who can be asked."""
    errors = tuple(errors)
    if errors and all(error.kind in _ADVICE_BY_KIND for error in errors):
        said = "; ".join(dict.fromkeys(error.message.rstrip(".") for error in errors))
        return explain_failure(
            said, " ".join(dict.fromkeys(_ADVICE_BY_KIND[ErrorKind(error.kind)] for error in errors))
        )
    if any(error.retryable for error in errors):
        return NOT_SERVED_MESSAGE
    return (
        "The request could not be served, and trying again is unlikely to help. "
        f"Whoever runs this finds the reason with `pointsman show {workflow}`."
    )


NO_AGENT_MESSAGE = "no agent is alive that could take the request"
