"""Define the retry policy of a team or a task: the number of attempts, the delays, and the errors that are retried."""

from __future__ import annotations

from typing import Annotated, Self, TypeAlias

from pydantic import Field, StringConstraints, model_validator

from pointsman_schemas.base import Frozen
from pointsman_schemas.events import AttemptError, ErrorKind

__all__ = ["FINAL_KINDS", "RetryPolicy"]

FINAL_KINDS = frozenset(
    {
        ErrorKind.REFUSED,
        ErrorKind.REJECTED,
        ErrorKind.CANCELLED,
        ErrorKind.LIMIT,
        ErrorKind.DAILY_LIMIT,
        ErrorKind.NEEDS_ANSWER,
        ErrorKind.OUTCOME_UNKNOWN,
    }
)
"""Kinds of errors that a policy must not retry. The attempt was ended by a decision, or might have had effects that a
second attempt would repeat."""

_MAX_DELAY_S = 86_400.0
"""Longest delay that a policy may set, in seconds: one day."""

_MAX_GROWTHS = 100
"""Largest exponent of the factor. With this bound, the delay is a finite float even for the largest factor."""

_Kind: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=64)]


class RetryPolicy(Frozen):
    """The retries of a task after failed attempts.

    A failed attempt is retried if its error is marked as retryable, or if `retry_on` names the kind of the error. If
    `no_retry_on` names the kind, the attempt is never retried. If the error has a `retry_after`, the next attempt
    starts after this delay. If an output failed a check, the next attempt starts without a delay.
    """

    attempts: int = Field(
        default=3,
        strict=True,
        ge=1,
        le=20,
        description="Number of attempts at a task by its agent. A fallback agent gets one additional attempt.",
    )
    backoff: float = Field(
        default=1.0, strict=True, ge=0, le=_MAX_DELAY_S, description="Seconds before the first retry."
    )
    factor: float = Field(
        default=2.0,
        strict=True,
        ge=1,
        le=10,
        description="Factor by which the delay grows from each retry to the next.",
    )
    max_backoff: float = Field(
        default=300.0,
        strict=True,
        ge=0,
        le=_MAX_DELAY_S,
        description="Longest delay before a retry, in seconds, without jitter.",
    )
    jitter: float = Field(
        default=0.2,
        strict=True,
        ge=0,
        le=1,
        description="Largest random change of a delay, as a share of the delay; 0.2 is a fifth. The change "
        "separates the retries of tasks that failed at the same time.",
    )
    retry_on: tuple[_Kind, ...] = Field(
        default=(), description="Kinds of errors that are retried even if they are not marked as retryable."
    )
    no_retry_on: tuple[_Kind, ...] = Field(
        default=(), description="Kinds of errors that are not retried even if they are marked as retryable."
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.backoff > self.max_backoff:
            raise ValueError(
                f"backoff is {self.backoff:g} s, longer than max_backoff, {self.max_backoff:g} s: lower backoff or "
                "raise max_backoff"
            )
        if final := sorted(FINAL_KINDS.intersection(self.retry_on)):
            raise ValueError(f"retry_on names {', '.join(final)}, which end a task: remove them")
        if both := sorted(set(self.retry_on).intersection(self.no_retry_on)):
            raise ValueError(f"both retry_on and no_retry_on name {', '.join(both)}: name each kind once")
        return self

    def is_retried(self, error: AttemptError) -> bool:
        """Return True if an attempt that failed with `error` is retried while attempts are left.

        Args:
            error: The error of the attempt.

        Returns:
            True if the policy retries the error.
        """
        return error.kind not in self.no_retry_on and (error.retryable or error.kind in self.retry_on)

    def delay_after(self, attempt: int) -> float:
        """Return the delay before the retry of a failed attempt, without jitter.

        Args:
            attempt: The number of the failed attempt, from 1.

        Returns:
            The delay in seconds.
        """
        return min(self.backoff * self.factor ** min(attempt - 1, _MAX_GROWTHS), self.max_backoff)

    def within(self, bound: RetryPolicy) -> RetryPolicy:
        """Return this policy, reduced to the attempts and the kinds of errors that another policy allows.

        Args:
            bound: The other policy.

        Returns:
            The reduced policy. It has at most the attempts of `bound`, and retries only errors that `bound` also
            retries.
        """
        return self.model_copy(
            update={
                "attempts": min(self.attempts, bound.attempts),
                "retry_on": tuple(kind for kind in self.retry_on if kind in bound.retry_on),
                "no_retry_on": tuple(dict.fromkeys((*self.no_retry_on, *bound.no_retry_on))),
            }
        )
