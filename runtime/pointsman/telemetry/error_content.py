"""Leave the texts of errors out of spans and logs, unless the capture of content is on.

Content means prompts, answers and arguments.

The text of an exception, the body of a provider's error and the name of a task in a refused plan may quote arguments,
prompts and answers. Without capture, only the type of the exception and the lines of its stack are recorded.
"""

from __future__ import annotations

import traceback
from typing import Final

from pointsman.errors import ContractError, ModelError, PointsmanError, TaskError
from pointsman.util.exceptions import causes
from pointsman.util.scrubber import scrub, scrub_traceback

__all__ = ["configure", "content_text", "message_of", "stack_of", "without_texts_of"]

_CONTENT_ERRORS: Final = (TaskError, ModelError, ContractError)
"""Errors of Pointsman that quote data of requests, agents and providers. Other errors of Pointsman quote
only settings and subjects."""
_MIN_REPLACED_CHARS: Final = 4  # shorter texts are not replaced, because they also occur within other words

_visible = False


def configure(*, visible: bool) -> None:
    """Turn the recording of error texts on or off. `content_capture.configure` calls this."""
    global _visible
    _visible = visible


def content_text(text: str) -> str | None:
    """Return `text`, which may quote content, if capture is on; otherwise None.

    Args:
        text: The text, such as the reason of a failed task.
    """
    return text if _visible else None


def message_of(error: BaseException) -> str:
    """Return the message of an exception for a span or a log.

    While capture is off, the result for a message that may quote content is the type of the exception.

    Args:
        error: The exception.
    """
    if _visible or _is_free_of_content(error):
        return scrub(_text(error))
    if isinstance(error, OSError) and isinstance(error.strerror, str):
        return f"{type(error).__name__}: {error.strerror}"
    return error.kind if isinstance(error, PointsmanError) else type(error).__name__


def stack_of(error: BaseException) -> str:
    """Return the stack of an exception and of its causes. The messages are left out while no content is captured.

    Args:
        error: The exception.
    """
    if _visible:
        return scrub_traceback("".join(traceback.format_exception(error)))
    parts: list[str] = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        lines = traceback.format_tb(current.__traceback__)
        parts.append("".join(["Traceback (most recent call last):\n", *lines, f"{_headline(current)}\n"]))
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return scrub_traceback("\n".join(reversed(parts)))


def without_texts_of(error: BaseException, text: str) -> str:
    """Return `text`, such as a log line of a library, with the messages of an exception and its causes replaced.

    The type of the exception replaces its message. Messages that quote no content stay. If capture is on, the text is
    unchanged.

    Args:
        error: The exception.
        text: The text.
    """
    if _visible:
        return text
    for each in causes(error):
        if not _is_free_of_content(each):
            for part in (repr(each), _text(each)):
                if len(part) >= _MIN_REPLACED_CHARS:
                    text = text.replace(part, type(each).__name__)
    return text


def _headline(error: BaseException) -> str:
    message = message_of(error)
    name = type(error).__name__
    members = [_headline(each) for each in error.exceptions] if isinstance(error, BaseExceptionGroup) else []
    line = message if message.startswith(name) else f"{name}: {message}"
    return f"{line} ({', '.join(members)})" if members else line


def _is_free_of_content(error: BaseException) -> bool:
    return isinstance(error, PointsmanError) and not isinstance(error, _CONTENT_ERRORS)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as unprintable:
        return f"its message cannot be shown: {type(unprintable).__name__}"
