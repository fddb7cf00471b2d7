"""The tree of errors, by the side that caused the error.

PointsmanError
├── ContractError                       an event or a value does not fit the wire contract (pointsman_schemas.errors)
│   ├── InvalidTokenError               a name is not a token of a subject
│   ├── UndecodableEventError           headers or body cannot be read
│   ├── BodyLostError                   a body in the object store is missing or differs
│   ├── UnknownEventTypeError           this release does not support the type or version of an event
│   ├── OversizeEventError              an event is larger than the maximum size
│   └── NotJsonError                    strict JSON cannot represent a value
├── ConfigurationError                  the user's error: settings, team files, agents or streams do not fit
│   └── PermissionDeniedError           the broker does not permit the user to use a subject
├── NotFoundError                       the requested workflow, agent or dead letter does not exist
├── PeerError                           an error of the other side: the broker or a model provider
│   ├── BusUnavailableError             the broker cannot be reached, or did not answer
│   │   ├── PublishOutcomeUnknownError  the broker did not answer a publish, so the message may have been stored
│   │   └── ConnectionRejectedError     a lost connection cannot be restored: the broker refuses it, or TLS fails
│   ├── StreamLostError                 the broker has lost messages that the broker had stored
│   ├── ConflictError                   a compare-and-set failed, because another process wrote first
│   └── ModelError                      a provider failed; `retryable` is True if a repeated call may succeed
│       └── ModelReplyError             a provider's answer cannot be read; `path` names the field
├── BusyThreadError                     a turn of the thread runs
├── ScheduleRefusedError                a supervisor refuses a change of a schedule
├── TaskError                           a handler raises this error to end the attempt with a reason
│   ├── RefusedError                    the agent refuses the task
│   ├── AnswerRequiredError             the task waits until a person answers a question or allows a tool call
│   └── UnansweredError                 a person declined to answer, or no answer arrived in time
└── InvariantError                      a bug in Pointsman
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from pointsman.util.scrubber import scrub
from pointsman_schemas.errors import (
    BodyLostError,
    ContractError,
    InvalidTokenError,
    NotJsonError,
    OversizeEventError,
    PointsmanError,
    UndecodableEventError,
    UnknownEventTypeError,
)
from pointsman_schemas.events import QuestionRequest, Usage
from pointsman_schemas.strict_json import describe

__all__ = [
    "AnswerRequiredError",
    "BodyLostError",
    "BusUnavailableError",
    "BusyThreadError",
    "ConfigurationError",
    "ConflictError",
    "ConnectionRejectedError",
    "ContractError",
    "InvalidTokenError",
    "InvariantError",
    "ModelError",
    "ModelReplyError",
    "NotFoundError",
    "NotJsonError",
    "OversizeEventError",
    "PeerError",
    "PermissionDeniedError",
    "PointsmanError",
    "PublishOutcomeUnknownError",
    "RefusedError",
    "ScheduleRefusedError",
    "StreamLostError",
    "TaskError",
    "UnansweredError",
    "UndecodableEventError",
    "UnknownEventTypeError",
    "describe_error",
    "error_text",
]

MAX_ERROR_CHARS = 500
"""Maximum number of characters of an exception's text in an event. This is enough for the cause of an error."""


class ConfigurationError(PointsmanError):
    """Settings, a team file, an agent definition or an existing stream does not fit. The message has the correction."""

    kind = "configuration"


class PermissionDeniedError(ConfigurationError):
    """The broker does not permit the user to use a subject. The message has the broker's text with subject and user."""

    kind = "permission_denied"


class NotFoundError(PointsmanError):
    """The workflow, agent, dead letter or namespace does not exist."""

    kind = "not_found"


class PeerError(PointsmanError):
    """The broker or a model provider failed."""

    kind = "peer"


class BusUnavailableError(PeerError):
    """The broker cannot be reached or did not answer in time. This error does not mean that messages are lost."""

    kind = "bus_unavailable"


class ConnectionRejectedError(BusUnavailableError):
    """A lost connection cannot be restored, because the broker refuses the login or TLS fails. Nothing was sent.

    Another try may succeed, once the credentials, the certificate or the broker's configuration is corrected.
    """

    kind = "connection_rejected"


class PublishOutcomeUnknownError(BusUnavailableError):
    """A publish was not acknowledged in time, so the message may have been stored.

    Read the subject before you publish the message again.
    """

    kind = "publish_outcome_unknown"


class StreamLostError(PeerError):
    """A stream ends before a message that the broker had acknowledged."""

    kind = "stream_lost"


class ConflictError(PeerError):
    """A publish was refused, because the subject does not end with the expected sequence. Another process wrote first.

    Nothing was stored.
    """

    kind = "conflict"


class ModelError(PeerError):
    """A model provider failed.

    Args:
        message: The cause, and what to do.
        retryable: True if the same call may succeed later.
        retry_after: Seconds to wait before the next call, as the provider requests; None without such a request.
        status: The HTTP status of the answer; None without an answer.
        kind: The kind of the error, such as `context_overflow`; None for `provider_error`.
        usage: The tokens of a call that failed after it began; None if nothing was used.
        adapted: If the provider refused a parameter, the change that the next request will have. The next call may then
            be made at once. Empty if the next request would be the same.
    """

    kind = "provider_error"

    def __init__(
        self,
        message: str,
        *,
        retryable: bool,
        retry_after: float | None = None,
        status: int | None = None,
        kind: str | None = None,
        usage: Usage | None = None,
        adapted: str = "",
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.retry_after = retry_after
        self.status = status
        self.usage = usage
        self.adapted = adapted
        if kind is not None:
            self.kind = kind


class ModelReplyError(ModelError):
    """A model provider's answer of status 200 cannot be read. The same call may succeed later.

    Args:
        message: The field, its value and the expected value.
        path: The path of the field, such as `choices[0].message.content`. Empty for the whole body.
        usage: The tokens of the call; None if they are not known.
    """

    def __init__(self, message: str, *, path: str = "", usage: Usage | None = None) -> None:
        super().__init__(message, retryable=True, usage=usage)
        self.path = path


class TaskError(PointsmanError):
    """Raise this error in a handler to end the attempt with your own reason.

    Args:
        message: The reason. Callers and models may read it.
        retryable: True to request another attempt.
        retry_after: The delay before the next attempt, in seconds; None for the delay of the retry policy.
        kind: The kind of the error; None for `handler_error`.
        unusable_output: Text of a model that cannot be used. Only the workflow's log contains this text.
    """

    kind = "handler_error"

    def __init__(
        self,
        message: str,
        *,
        retryable: bool = False,
        retry_after: float | None = None,
        kind: str | None = None,
        unusable_output: str | None = None,
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.retry_after = retry_after
        self.unusable_output = unusable_output
        if kind is not None:
            self.kind = kind


class RefusedError(TaskError):
    """The agent understands the task and refuses it."""

    kind = "refused"


class AnswerRequiredError(TaskError):
    """A person must answer questions. This attempt ends, and the task continues in a new attempt after the answers.

    Args:
        questions: The tool calls that need an approval, and the questions for information.
    """

    kind = "needs_answer"

    def __init__(self, questions: Sequence[QuestionRequest]) -> None:
        names = ", ".join(dict.fromkeys(each.tool for each in questions if each.about == "tool"))
        super().__init__(f"a person must allow the use of {names}" if names else "a person must answer a question")
        self.questions = tuple(questions)


class UnansweredError(TaskError):
    """A question to a person has no answer. A person declined to answer, or the question expired without a default."""

    kind = "unanswered"


class BusyThreadError(PointsmanError):
    """A turn of a thread runs, so the thread cannot be deleted yet."""

    kind = "busy_thread"


class ScheduleRefusedError(PointsmanError):
    """A supervisor refuses a change of a schedule. The schedule has not changed."""

    kind = "schedule_refused"


class InvariantError(PointsmanError):
    """A bug in Pointsman: a state that cannot occur."""

    kind = "bug"


def describe_error(error: BaseException) -> str:
    """Describe an exception in one text that is short enough for every event.

    Args:
        error: The exception.

    Returns:
        The message. If Pointsman does not define the type of the exception, the type's name comes before the message.
    """
    text = error_text(error)
    if not isinstance(error, PointsmanError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text[:MAX_ERROR_CHARS]


def error_text(error: BaseException) -> str:
    """Return the message of an exception without its type, in a text that is short enough for every event.

    Secrets are hidden in the text. Events, dead letters, logs and commands show the text of this function.

    Args:
        error: The exception.

    Returns:
        The message, cut off at `MAX_ERROR_CHARS`.
    """
    try:
        text = describe(error) if isinstance(error, ValidationError) else str(error)
    except Exception as unprintable:
        text = f"its message cannot be shown: {type(unprintable).__name__}"
    # Cut twice. The first cut avoids a search of megabytes. The second cut removes the part of a secret that the first
    # cut may have left at the end.
    return scrub(text[: 2 * MAX_ERROR_CHARS])[:MAX_ERROR_CHARS]
