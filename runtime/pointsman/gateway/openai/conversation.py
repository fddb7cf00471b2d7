"""Read the earlier turns of a conversation from the log, from the newest to the oldest.

Each turn is a response, and the request of a response names the previous response.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pydantic import JsonValue

from pointsman.engine.log.reader import read_commit, read_workflow_started
from pointsman.errors import NotFoundError
from pointsman.gateway.callers import Caller
from pointsman.gateway.context import Context
from pointsman.gateway.openai.messages import Message, answer_text
from pointsman.gateway.problems import ProblemError
from pointsman_schemas.ids import is_token
from pointsman_schemas.log import WorkflowEnded, WorkflowStarted

__all__ = [
    "BACKGROUND_METADATA",
    "MESSAGE_METADATA",
    "PREVIOUS_METADATA",
    "history_before",
    "response_errors",
    "response_id",
    "workflow_id",
]

MESSAGE_METADATA, PREVIOUS_METADATA = "pointsman.message", "pointsman.previous"
"""Keys of a request's metadata. The first key has the user's message without the history; the second key has the id of
the previous response.
"""
BACKGROUND_METADATA = "pointsman.background"
"""Key of a request's metadata. The value is true for a response in the background; other requests do not have the key.
"""
_MAX_TURNS = 10  # largest number of earlier turns that are sent with a request
_PREFIX = "resp_"


def response_id(workflow: str) -> str:
    """Return the id of the response of a workflow.

    Args:
        workflow: The workflow.
    """
    return _PREFIX + workflow.removeprefix("wf_")


def workflow_id(response: str) -> str:
    """Return the workflow of a response.

    Args:
        response: The id of the response.

    Returns:
        The workflow.

    Raises:
        NotFoundError: The id does not name a response.
    """
    if not response.startswith(_PREFIX) or not is_token(response):
        raise NotFoundError(_not_found(response))
    return "wf_" + response.removeprefix(_PREFIX)


@contextmanager
def response_errors(response: str) -> Iterator[None]:
    """Name the response in the error of a missing workflow, because the caller has sent the id of a response.

    Args:
        response: The id of the response.

    Yields:
        Nothing. Look for the workflow of the response inside the `with` block.

    Raises:
        NotFoundError: The response does not exist, or it belongs to a different caller.
    """
    try:
        yield
    except NotFoundError:
        raise NotFoundError(_not_found(response)) from None


def _not_found(response: str) -> str:
    return f"you have no response {response[:80]!r}; the id of a response is in its field `id`"


async def history_before(context: Context, caller: Caller, response: str) -> list[Message]:
    """Return the messages of the newest turns up to a response, with the messages of the response itself.

    Args:
        context: The parts of the gateway.
        caller: The caller.
        response: The id of the response.

    Returns:
        The messages, oldest first.

    Raises:
        ProblemError: The response does not exist, belongs to a different caller, or has not ended.
    """
    messages: list[Message] = []
    next_one: str | None = response
    for _ in range(_MAX_TURNS):
        if next_one is None:
            break
        try:
            turn = await _turn(context, caller, workflow_id(next_one))
        except NotFoundError:
            if next_one != response:
                break  # retention has removed this older turn, so the history begins with the turn after it
            raise ProblemError(404, "previous_response_not_found", _not_found(response)) from None
        messages[:0] = turn[0]
        next_one = turn[1]
    return messages


async def _turn(context: Context, caller: Caller, workflow: str) -> tuple[list[Message], str | None]:
    """Return the messages of one turn, and the id of the previous response."""
    bus, subjects = context.client.bus, context.client.subjects
    newest = await bus.last("log", subjects.workflow_log(workflow))
    if newest is None:
        raise NotFoundError(f"there is no log of {workflow}")
    started: WorkflowStarted = await read_workflow_started(bus, subjects, newest.subject)
    if not (caller.operator or started.caller == caller.name):
        raise NotFoundError(f"{workflow} belongs to another caller")
    ended = next((entry for entry in read_commit(newest).entries if isinstance(entry, WorkflowEnded)), None)
    if ended is None:
        raise ProblemError(
            400, "previous_response_in_progress", f"the response of {workflow} has not ended; wait for its end"
        )
    asked = _text(started.metadata, MESSAGE_METADATA)
    if asked is None:
        asked = started.input if isinstance(started.input, str) else ""
    previous = _text(started.metadata, PREVIOUS_METADATA)
    return [Message("user", asked, started.files), Message("assistant", answer_text(ended.outcome))], previous


def _text(metadata: Mapping[str, JsonValue], name: str) -> str | None:
    value = metadata.get(name)
    return value if isinstance(value, str) else None
