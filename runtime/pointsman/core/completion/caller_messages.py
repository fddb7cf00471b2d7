"""The texts that a caller receives if a workflow has no answer."""

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
"""The answer after a temporary failure. The cause is only in the outcome's reason, for operators, because the text of
an exception might be confidential.
"""

START_AGENT_ADVICE: Final = "Ask again when the agent is live; `pointsman agents` lists the live agents."

RAISE_LIMIT_ADVICE: Final = "Ask for less, or raise the limit."

_ADVICE_BY_KIND: Final = {
    ErrorKind.REFUSED: "Say what is missing, or ask for something else.",
    ErrorKind.INVALID_INPUT: "Correct the request and publish it again under a new id.",
    ErrorKind.OVERSIZE: "Send less data, or a reference to the data.",
    ErrorKind.LIMIT: RAISE_LIMIT_ADVICE,
    ErrorKind.NO_WORKER: START_AGENT_ADVICE,
}
"""Kinds of errors whose message the caller receives, with the next step. These messages are not confidential, because
they are written by the runtime, or by an agent for the caller.
"""


def agent_gone(agent: str) -> str:
    """Return the reason for a missing result of an agent that is not live.

    The reason names two possible causes, because only a result shows that a worker took the handoff.
    """
    return f"no result came, and no agent named {agent} is alive: no worker took the handoff, or the worker has stopped"


def explain_failure(reason: str, next_step: str) -> str:
    """Return the text for the caller of a workflow that has no answer: the reason, and the caller's next step."""
    return f"Could not help, because {reason.strip().rstrip('.')}. {next_step}"


def generic_failure(workflow: str, errors: Iterable[AttemptError] = ()) -> str:
    """Return the text for the caller of a workflow that has no answer because of `errors`.

    If all errors are for the caller, the text names the errors. Otherwise, if a new request may help, the text asks the
    caller to try again. If a new request cannot help, the text names the command that shows the reason to an operator.
    """
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
        f"An operator finds the reason with `pointsman show {workflow}`."
    )


NO_AGENT_MESSAGE = "no agent is alive that could take the request"
