"""Every id is one subject token, and nothing here draws random numbers.

The same request gives the same workflow id, and a task's span id follows from the workflow's and the task's, so any
process that holds the log can name it. The trace's id and that of the workflow's own span are drawn at admission, and
the log keeps them.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import sha256
from typing import Annotated, TypeAlias

from pydantic import StringConstraints

from pointsman_schemas.errors import InvalidToken

__all__ = [
    "TOKEN_PATTERN",
    "AgentName",
    "MaybeAgent",
    "Skill",
    "TaskId",
    "TeamName",
    "Token",
    "WorkflowId",
    "as_token",
    "child_id_for",
    "dead_letter_id",
    "derived_id",
    "digest_of",
    "is_token",
    "span_id_for",
    "token",
    "workflow_id_for",
]

TOKEN_PATTERN = r"^[A-Za-z0-9_-]{1,64}$"
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SHOWN = 80  # characters of a refused value that an error message repeats

Token: TypeAlias = Annotated[str, StringConstraints(pattern=TOKEN_PATTERN)]
WorkflowId: TypeAlias = Token
TaskId: TypeAlias = Token
AgentName: TypeAlias = Token
TeamName: TypeAlias = Token
MaybeAgent: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{0,64}$")]
"""An agent's name, or nothing: nobody who had the skill was there."""
Skill: TypeAlias = Annotated[str, StringConstraints(strip_whitespace=True, max_length=200)]


@lru_cache(4096)  # a workflow's events name the same few over and over
def token(value: str, what: str) -> str:
    """`value` itself when it may stand in a subject.

    Raises:
        InvalidToken: it is empty, longer than 64 characters, or holds anything but letters, digits, `_` and `-`.
    """
    if _TOKEN.fullmatch(value):
        return value
    shown = value if len(value) <= _SHOWN else value[:_SHOWN] + "..."
    raise InvalidToken(f"{what} is {shown!r}; expected 1 to 64 of A-Z a-z 0-9 _ -; choose a name of that form")


def is_token(value: object) -> bool:
    """Whether it may stand in a subject."""
    return isinstance(value, str) and _TOKEN.fullmatch(value) is not None


def as_token(text: str) -> str:
    """`text` as a name that may stand in a subject: what may not is a `-`."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")[:64] or "unnamed"


def derived_id(*parts: str, length: int = 24) -> str:
    """`length` hexadecimal digits that follow from `parts` and nothing else. Parts are kept apart by their length."""
    text = "".join([f"{len(part)}:{part}" for part in parts])
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:length]


def digest_of(data: bytes) -> str:
    """24 hexadecimal digits by which the same bytes are known again."""
    return sha256(data).hexdigest()[:24]


def workflow_id_for(subject: str, request_id: str, source: str = "") -> WorkflowId:
    """The id of the workflow that the request `request_id` of `source` on `subject` starts: the same request, the same
    workflow.

    The subject names the namespace and the team, so that neither two teams nor two tenants share an id, nor the
    idempotency keys that are made of it. `source` is the event's `ce-source`, nothing for a request without one: an id
    is one within its source only.
    """
    return "wf_" + derived_id("workflow", subject, source, request_id)


def child_id_for(team: str, workflow: str, task: str, attempt: int) -> WorkflowId:
    """The id of the workflow in which `team` does one attempt at a task of another team's workflow."""
    return "wf_" + derived_id("child", team, workflow, task, str(attempt))


def span_id_for(workflow: str, part: str, attempt: int | None = None) -> str:
    """16 hexadecimal digits: the span of one part of a workflow, a task id, or of one attempt at it."""
    return derived_id("span", workflow, part, *(() if attempt is None else (str(attempt),)), length=16)


def dead_letter_id(workflow: str, *parts: object) -> str:
    """The id of the dead letter of one event, the same whoever writes it and however often."""
    return "dl_" + derived_id("dead", workflow, *(str(part) for part in parts))
