"""What follows a failed attempt: another, by the same agent or its fallback, or none."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from pointsman.core.decision import DecisionContext
from pointsman.core.model.state import Task
from pointsman_schemas.events import AttemptError, ErrorKind
from pointsman_schemas.ids import derive_id
from pointsman_schemas.team import Limits

__all__ = ["Retry", "next_attempt"]

_MAX_BACKOFF_S = 300.0  # seconds: five minutes, the longest pause that providers commonly ask for
_JITTER_SHARE = 0.2  # spread of the pause, so that tasks that failed together do not come back together

_NO_FALLBACK_KINDS = frozenset(
    {
        ErrorKind.REFUSED,
        ErrorKind.REJECTED,
        ErrorKind.CANCELLED,
        ErrorKind.LIMIT,
        ErrorKind.BAD_PLAN,
        ErrorKind.OUTCOME_UNKNOWN,
    }
)


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again with `agent` after `delay`."""

    agent: str
    delay: timedelta
    reason: str


def next_attempt(
    workflow_id: str, task: Task, error: AttemptError, limits: Limits, context: DecisionContext
) -> Retry | None:
    """The next attempt at `task` after `error`, or None when there is none to be made."""
    if error.retryable and task.attempt < task.max_attempts:
        return Retry(
            task.agent, _backoff(workflow_id, task, error, limits), f"attempt {task.attempt} failed: {error.kind}"
        )
    falls_back = task.fallback != task.agent and error.kind not in _NO_FALLBACK_KINDS
    if task.fallback and falls_back and context.card(task.fallback):
        reason = f"{task.agent} is exhausted ({error.kind}); {task.fallback} is its fallback"
        return Retry(task.fallback, timedelta(), reason)
    return None


def _backoff(workflow_id: str, task: Task, error: AttemptError, limits: Limits) -> timedelta:
    """Doubling from `limits.backoff`; what the other side asked for comes first. The jitter follows from the ids."""
    if error.kind == ErrorKind.INSUFFICIENT:
        return timedelta()  # nothing has to recover: the agent is told what was missing
    if error.retry_after is not None:
        return timedelta(seconds=error.retry_after)
    seconds = min(limits.backoff * 2 ** (task.attempt - 1), _MAX_BACKOFF_S)
    draw = int(derive_id("jitter", workflow_id, task.id, str(task.attempt), length=8), 16) / 0xFFFFFFFF
    return timedelta(seconds=seconds * (1 - _JITTER_SHARE + 2 * _JITTER_SHARE * draw))
