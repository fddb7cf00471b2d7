"""Select the attempt that follows a failed attempt: by the same agent, by its fallback, or no attempt."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from pointsman.core.decision import Decision
from pointsman.core.model.state import Task
from pointsman_schemas.events import AttemptError, ErrorKind
from pointsman_schemas.ids import derive_id
from pointsman_schemas.retry import RetryPolicy

__all__ = ["Retry", "next_attempt"]

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
"""Kinds of errors after which the fallback gets no attempt, because it cannot help or must not repeat the work."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The next attempt at a task: its agent, the delay before it, and the reason for the log."""

    agent: str
    delay: timedelta
    reason: str


def next_attempt(decision: Decision, task: Task, error: AttemptError) -> Retry | None:
    """Return the attempt that follows a failed attempt.

    Args:
        decision: The decision in progress.
        task: The task. Its `attempt` is the number of the failed attempt.
        error: The error of the failed attempt.

    Returns:
        The next attempt; None if the task gets no more attempts.
    """
    state = decision.state
    policy = state.retry_policy(task)
    if policy.is_retried(error) and task.attempt < task.max_attempts:
        delay = _retry_delay(policy, state.workflow_id, task, error)
        return Retry(task.agent, delay, f"attempt {task.attempt} failed: {error.kind}")
    falls_back = task.fallback != task.agent and error.kind not in _NO_FALLBACK_KINDS
    if task.fallback and falls_back and decision.card(task.fallback):
        reason = f"{task.agent} is exhausted ({error.kind}); {task.fallback} is its fallback"
        return Retry(task.fallback, timedelta(), reason)
    return None


def _retry_delay(policy: RetryPolicy, workflow_id: str, task: Task, error: AttemptError) -> timedelta:
    """Return the delay before the next attempt. A delay in the error replaces the delay of the policy.

    The jitter is computed from ids and not at random. So the delay is the same if the decision is made again.
    """
    if error.kind == ErrorKind.INSUFFICIENT:
        return timedelta()  # a wait would not help: the agent only needs the reason, which the next handoff contains
    if error.retry_after is not None:
        return timedelta(seconds=error.retry_after)
    draw = int(derive_id("jitter", workflow_id, task.id, str(task.attempt), length=8), 16) / 0xFFFFFFFF
    seconds = policy.delay_after(task.attempt)
    return timedelta(seconds=seconds * (1 - policy.jitter + 2 * policy.jitter * draw))
