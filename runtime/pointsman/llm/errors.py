"""Every failure of a provider becomes a `ModelError` here: its class, when to try again, and a message without keys."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from pointsman.errors import ModelError
from pointsman_schemas.events import MAX_RETRY_AFTER_S, ErrorKind, Usage

__all__ = [
    "error_detail",
    "error_from_connection",
    "error_from_status",
    "error_from_stream_event",
    "error_from_unreadable",
    "retry_after",
]

_RETRYABLE_STATUSES = frozenset({408, 409, 429})
"""With every status from 500 on (529 is Anthropic's "overloaded"): the same call may succeed later."""

_ADVICE = {
    400: "the request itself was refused: check the model's name, the tools' schemas and the length of the input",
    401: "check the provider's API key",
    403: "the API key may not use this model",
    404: "check the model's name and the base URL",
    413: "the input is too long for this model",
    422: "the request itself was refused: check the tools' schemas",
}

_STATUS_BY_CODE = {
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    "context_length_exceeded": 400,
    "authentication_error": 401,
    "insufficient_quota": 402,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""What an error that comes inside of a stream, after a status of 200, would have been by itself; any other word is a
500."""

_CONTEXT_OVERFLOW_PATTERN = re.compile(
    r"context_length_exceeded|maximum context length|context window|prompt is too long", re.IGNORECASE
)

_CONNECT_ERRORS = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout"})
"""What httpx calls a connection that was never there: nothing was sent."""

_MAX_DETAIL_CHARS = 300  # characters of the provider's own words that a message repeats
_API_KEY_PATTERN = re.compile(r"\b(?:sk|pk|key|Bearer)[-_ ][A-Za-z0-9*._-]{6,}")


def error_from_status(
    provider: str, status: int, detail: str, headers: Mapping[str, str], secret: str = ""
) -> ModelError:
    """The error for an HTTP answer with `status`. What is said of a bad key may quote it, so that is left out."""
    retryable = status in _RETRYABLE_STATUSES or status >= 500
    said = "" if status in (401, 403) else _without_keys(detail, secret)
    overflow = status == 413 or (not retryable and _CONTEXT_OVERFLOW_PATTERN.search(detail) is not None)
    advice = (
        "" if retryable else _ADVICE[413] if overflow else _ADVICE.get(status, "the same call would be refused again")
    )
    message = ": ".join(part for part in (f"{provider} answered {status}", said, advice) if part)
    kind = ErrorKind.CONTEXT_OVERFLOW if overflow else None
    return ModelError(message, retryable=retryable, retry_after=retry_after(headers), status=status, kind=kind)


def error_from_stream_event(provider: str, error: object, secret: str = "") -> ModelError:
    """The error for one that was told inside of a 200: by its code or type, else in passing, as most there are."""
    said = error_detail(error)
    inner = error.get("error", error) if isinstance(error, Mapping) else {}
    fields = inner if isinstance(inner, Mapping) else {}
    named = [value for key in ("code", "type") if isinstance(value := fields.get(key), str | int)]
    status = next((name if isinstance(name, int) else _STATUS_BY_CODE[name] for name in named
                   if (isinstance(name, int) and name >= 400) or name in _STATUS_BY_CODE), 500)  # fmt: skip
    return error_from_status(provider, status, f"{said} ({named[0]})" if named else said, {}, secret)


def error_from_connection(provider: str, error: Exception, base_url: str | None = None) -> ModelError:
    """The error for a call that got no whole answer. Unless there was no connection nothing is known of what the
    provider did, so it counts as a call."""
    chain = (error, error.__cause__)
    if (unreached := next((each for each in chain if type(each).__name__ in _CONNECT_ERRORS), None)) is not None:
        at = f" at {_without_password(base_url)}" if base_url else ""
        why = str(unreached) or type(unreached).__name__
        message = f"{provider} cannot be reached{at}: {why}; check the base URL, and that its server runs"
        return ModelError(message, retryable=True)
    return ModelError(
        f"{provider} gave no answer: {type(error).__name__}; the connection was dropped or timed out",
        retryable=True,
        usage=Usage(calls=1),
    )


def error_from_unreadable(provider: str, seen: str) -> ModelError:
    """The error for an answer of status 200 that is not what the API promises, such as a proxy's error page."""
    return ModelError(f"{provider} answered 200 with something that is not a reply: {seen}", retryable=True)


def error_detail(body: object) -> str:
    """What the body of an error says in words, in either provider's form; nothing when it says nothing."""
    error = body.get("error", body) if isinstance(body, Mapping) else body
    if isinstance(error, Mapping):
        error = error.get("message") or json.dumps(error, default=str)
    return error if isinstance(error, str) else ""


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, from `retry-after-ms` or `Retry-After` (seconds or an HTTP date); None when absent or absurd."""
    lower = {name.lower(): value for name, value in headers.items()}
    seconds = None
    if (milliseconds := _number(lower.get("retry-after-ms"))) is not None:
        seconds = milliseconds / 1000
    elif (text := lower.get("retry-after")) is not None and (seconds := _number(text)) is None:
        try:
            seconds = (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):  # not a date, or a date without a zone
            return None
    if seconds is None:
        return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_S)


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None and text.strip().lower() not in ("nan", "inf", "-inf") else None
    except ValueError:
        return None


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _without_keys(text: str, secret: str) -> str:
    if secret:
        text = text.replace(secret, "[key]")
    text = _API_KEY_PATTERN.sub("[key]", " ".join(text.split()))
    return text if len(text) <= _MAX_DETAIL_CHARS else text[:_MAX_DETAIL_CHARS] + "..."
