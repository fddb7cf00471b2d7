"""Compute ids from other values, without random numbers. Every id is one token of a subject.

The workflow id is computed from the subject, the id and the source of the request. A task's span id is computed from
the ids of the workflow and the task. So any process with the log can compute these ids. The ids of the trace and of the
workflow's own span are random, and the log stores them when a workflow starts.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import sha256
from typing import Annotated, TypeAlias

from pydantic import StringConstraints

from pointsman_schemas.errors import ContractError, InvalidTokenError

__all__ = [
    "MAX_CALLER_ID_CHARS",
    "TEAM_SEPARATOR",
    "TOKEN_PATTERN",
    "AgentName",
    "OptionalAgentName",
    "Skill",
    "TaskId",
    "TeamName",
    "Token",
    "WorkflowId",
    "as_token",
    "attempt_token",
    "caller_id",
    "child_id_for",
    "dead_letter_id",
    "delayed_handoff_id",
    "derive_id",
    "is_token",
    "outcome_id",
    "outcome_round",
    "own_agent",
    "schedule_id_for",
    "span_id_for",
    "stable_digest",
    "task_key",
    "team_caller",
    "token",
    "workflow_id_for",
]

TOKEN_PATTERN = r"^[A-Za-z0-9_-]{1,64}$"
TEAM_SEPARATOR = "--"
"""The separator in the full name of a team's own agent, between the team and the name within the team."""
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAX_ROUND_DIGITS = 9
_MAX_SHOWN_CHARS = 80  # number of characters of a rejected value that an error message shows

MAX_CALLER_ID_CHARS = 256
"""Largest length of an id that a caller chooses, in characters. The length is limited, because every event of a
workflow has the correlation id in a header, and the broker stores at most 65,535 bytes of headers."""

Token: TypeAlias = Annotated[str, StringConstraints(pattern=TOKEN_PATTERN)]
WorkflowId: TypeAlias = Token
TaskId: TypeAlias = Token
AgentName: TypeAlias = Token
TeamName: TypeAlias = Token
OptionalAgentName: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{0,64}$")]
"""The name of an agent; empty if no live agent had the skill."""
Skill: TypeAlias = Annotated[str, StringConstraints(strip_whitespace=True, max_length=200)]


@lru_cache(4096)  # the events of a workflow repeat a few names, so a cache saves time
def token(value: str, what: str) -> str:
    """Return `value` if it is a token of a subject.

    Args:
        value: The name.
        what: The kind of name, for the error message.

    Returns:
        The unchanged value.

    Raises:
        InvalidTokenError: The value is empty, is longer than 64 characters, or has a character that is not a letter, a
            digit, `_` or `-`.
    """
    if _TOKEN.fullmatch(value):
        return value
    shown = value if len(value) <= _MAX_SHOWN_CHARS else value[:_MAX_SHOWN_CHARS] + "..."
    raise InvalidTokenError(f"{what} is {shown!r}; expected 1 to 64 of A-Z a-z 0-9 _ -; choose a name of that form")


def caller_id(value: str, what: str) -> str:
    """Return `value` if it is valid as an id that a caller chooses, such as a request id or a correlation id.

    Args:
        value: The id.
        what: The kind of id, for the error message.

    Returns:
        The unchanged value.

    Raises:
        ContractError: The value is empty, longer than 256 characters, or not valid Unicode.
    """
    if not 1 <= len(value) <= MAX_CALLER_ID_CHARS:
        raise ContractError(
            f"the {what} has {len(value)} characters; expected 1 to {MAX_CALLER_ID_CHARS}; use a shorter id, such as a "
            "digest of the long one"
            if value
            else f"the {what} is empty; expected 1 to {MAX_CALLER_ID_CHARS} characters"
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ContractError(f"the {what} {value!r} is not valid UTF-8; encode the id as UTF-8 text") from None
    return value


def is_token(value: object) -> bool:
    """Return True if a value is a token of a subject.

    Args:
        value: Any value.

    Returns:
        True for a text of 1 to 64 letters, digits, `_` and `-`.
    """
    return isinstance(value, str) and _TOKEN.fullmatch(value) is not None


def as_token(text: str) -> str:
    """Convert a text to a token of a subject.

    Args:
        text: Any text.

    Returns:
        The first 64 characters. Each character that is not a letter, a digit, `_` or `-` is replaced by `-`.
    """
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")[:64] or "unnamed"


def derive_id(*parts: str, length: int = 24) -> str:
    """Compute an id from `parts` only.

    Args:
        *parts: Texts. Each text is hashed with its length, so ("ab", "c") and ("a", "bc") have different ids.
        length: The number of hexadecimal digits.

    Returns:
        The id.
    """
    text = "".join([f"{len(part)}:{part}" for part in parts])
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:length]


def stable_digest(data: bytes) -> str:
    """Compute a digest to detect equal bytes.

    Args:
        data: Any bytes.

    Returns:
        24 hexadecimal digits.
    """
    return sha256(data).hexdigest()[:24]


def workflow_id_for(subject: str, request_id: str, source: str = "") -> WorkflowId:
    """Compute the id of the workflow that a request starts. A request that is sent again results in the same id.

    Args:
        subject: The subject of the request, with the namespace, the team and the caller. So different tenants, teams or
            callers never share an id, and never share the idempotency keys that are computed from the id.
        request_id: The id of the request, unique within its source.
        source: The `ce-source` of the request; empty for a request without one.

    Returns:
        The id of the workflow.
    """
    return "wf_" + derive_id("workflow", subject, source, request_id)


def schedule_id_for(team: str, caller: str, name: str) -> Token:
    """Compute the id of a schedule. The subjects of its commands and timers have this id in place of a workflow id.

    Args:
        team: The team.
        caller: The caller to whom the schedule belongs.
        name: The name of the schedule.

    Returns:
        The id of the schedule.
    """
    return "sc_" + derive_id("schedule", team, caller, name)


@lru_cache(maxsize=10_000)  # a cache, because a supervisor needs each token three times within 1 ms
def attempt_token(secret: str, task: str, attempt: int) -> str:
    """Compute the last token of a result's subject. Only supervisors and a process with the handoff have the token.

    Args:
        secret: The secret of the workflow, from the first entry of its log.
        task: The task.
        attempt: The number of the attempt, from 1.

    Returns:
        32 hexadecimal digits.
    """
    return derive_id("result", secret, task, str(attempt), length=32)


def task_key(secret: str, workflow: str, task: str) -> str:
    """Compute the idempotency key of a task. A process without the handoff of the task cannot compute the key.

    Args:
        secret: The secret of the workflow, from the first entry of its log.
        workflow: The workflow.
        task: The task.

    Returns:
        The workflow, the task, and 24 hexadecimal digits.
    """
    return f"{workflow}.{task}.{derive_id('key', secret, task)}"


def team_caller(team: str) -> str:
    """Return the caller of the child workflows that handoffs of a team start.

    Args:
        team: The team that sent the handoff.

    Returns:
        A text that cannot be the name of a broker's user. So a user with the same name as the team cannot see the child
        workflows.
    """
    return f"team:{team}"


def child_id_for(team: str, workflow: str, task: str, attempt: int) -> WorkflowId:
    """Compute the id of the child workflow for an attempt at another team's task.

    Args:
        team: The team that receives the task.
        workflow: The workflow of the other team.
        task: The task.
        attempt: The number of the attempt, from 1.

    Returns:
        The id of the child workflow.
    """
    return "wf_" + derive_id("child", team, workflow, task, str(attempt))


def delayed_handoff_id(task: str, attempt: int) -> str:
    """Compute the last token of the subject on which a delayed handoff is scheduled.

    Args:
        task: The task.
        attempt: The number of the attempt, from 1.

    Returns:
        The token.
    """
    return f"{derive_id(task)}-{attempt}"


def span_id_for(workflow: str, part: str, attempt: int | None = None) -> str:
    """Compute the id of a span of a workflow.

    Args:
        workflow: The workflow.
        part: A task id or another part of the workflow.
        attempt: The number of the attempt, for the span of an attempt.

    Returns:
        16 hexadecimal digits.
    """
    return derive_id("span", workflow, part, *(() if attempt is None else (str(attempt),)), length=16)


def own_agent(team: str, agent: str) -> AgentName:
    """Return the full name of an agent that belongs to a team.

    Args:
        team: The team.
        agent: The name of the agent within the team.

    Returns:
        The name, as in subjects and on the card.
    """
    return f"{team}{TEAM_SEPARATOR}{agent}"


def outcome_id(workflow: str, round: int) -> str:
    """Compute the id of the outcome of a workflow's round.

    Args:
        workflow: The workflow.
        round: The round, from 1.

    Returns:
        The id of the event.
    """
    return f"{workflow}-outcome" if round == 1 else f"{workflow}-outcome-{round}"


def outcome_round(workflow: str, event_id: str) -> int:
    """Return the round in the id of an outcome.

    Args:
        workflow: The workflow.
        event_id: The id of the event.

    Returns:
        The round; 1 for an id without the number of a round.
    """
    number = event_id.removeprefix(f"{workflow}-outcome-")
    return int(number) if number != event_id and number.isdecimal() and len(number) <= _MAX_ROUND_DIGITS else 1


def dead_letter_id(workflow: str, *parts: object) -> str:
    """Compute the id of an event's dead letter. Equal arguments give equal ids, so the event gets one dead letter.

    Args:
        workflow: The workflow of the event.
        *parts: Values that identify the event in its workflow.

    Returns:
        The id of the dead letter.
    """
    return "dl_" + derive_id("dead", workflow, *(str(part) for part in parts))
