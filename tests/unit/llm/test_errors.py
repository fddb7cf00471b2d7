"""A failure of a provider is retryable or not, and has a pause and a message. The message contains no key."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from pointsman.llm.errors import (
    error_detail,
    error_from_connection,
    error_from_status,
    error_from_stream_event,
    retry_after,
)
from pointsman.util.scrubber import hide_secret
from pointsman_schemas.events import MAX_RETRY_AFTER_S, Usage

KEY = "a-key-of-no-known-form"
hide_secret(KEY)
BAD = "the request itself was refused: check the model's name, the tools' schemas and the length of the input"
LONG = "the input is too long for this model"
AGAIN = "the same call would be refused again"


@pytest.mark.parametrize(
    ("status", "detail", "retryable", "said", "kind"),
    [
        (408, "late", True, "p answered 408: late", "provider_error"),
        (409, "busy", True, "p answered 409: busy", "provider_error"),
        (429, "maximum context length", True, "p answered 429: maximum context length", "provider_error"),
        (500, "", True, "p answered 500", "provider_error"),
        (529, "overloaded", True, "p answered 529: overloaded", "provider_error"),
        (400, "no", False, f"p answered 400: no: {BAD}", "provider_error"),
        (401, "the key x", False, "p answered 401: check the provider's API key", "provider_error"),
        (403, "the key x", False, "p answered 403: the API key may not use this model", "provider_error"),
        (404, "", False, "p answered 404: check the model's name and the base URL", "provider_error"),
        (418, "tea", False, f"p answered 418: tea: {AGAIN}", "provider_error"),
        (413, "big", False, f"p answered 413: big: {LONG}", "context_overflow"),
        (400, "Maximum context length is 8", False, f"p answered 400: Maximum context length is 8: {LONG}",
         "context_overflow"),
        (400, "(context_length_exceeded)", False, f"p answered 400: (context_length_exceeded): {LONG}",
         "context_overflow"),
        (400, "beyond the context window", False, f"p answered 400: beyond the context window: {LONG}",
         "context_overflow"),
        (400, "prompt is too long", False, f"p answered 400: prompt is too long: {LONG}", "context_overflow"),
        (500, f"bad\n key  {KEY}", True, "p answered 500: bad key [hidden]", "provider_error"),
        (500, "got sk-abcdefgh, Bearer abc.def", True, "p answered 500: got [hidden], [hidden]", "provider_error"),
        (500, "x" * 300, True, f"p answered 500: {'x' * 300}", "provider_error"),
        (500, "x" * 301, True, f"p answered 500: {'x' * 300}...", "provider_error"),
        (402, "no money", False, "p answered 402: no money: the account has no credit or quota left: check the "
         "provider's plan and billing", "provider_error"),
        (400, "The JSON key response_format is unknown", False,
         f"p answered 400: The JSON key response_format is unknown: {BAD}", "provider_error"),
    ],
)  # fmt: skip
def test_a_status_says_whether_the_same_call_may_succeed_later(
    status: int, detail: str, retryable: bool, said: str, kind: str
) -> None:
    error = error_from_status("p", status, detail, {"Retry-After": "3"})

    assert (str(error), error.retryable, error.kind) == (said, retryable, kind)
    assert (error.status, error.retry_after, error.usage) == (status, 3.0, None)


STATUSES = {
    "invalid_request_error": 400, "invalid_prompt": 400, "context_length_exceeded": 400, "authentication_error": 401,
    "insufficient_quota": 402, "billing_error": 402, "permission_error": 403, "not_found_error": 404,
    "request_too_large": 413, "rate_limit_error": 429, "rate_limit_exceeded": 429, "api_error": 500,
    "server_error": 500, "timeout_error": 504, "overloaded_error": 529,
}  # fmt: skip


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        *(({"type": name}, status, f"({name})") for name, status in STATUSES.items() if status not in (401, 403)),
        ({"type": "authentication_error"}, 401, "p answered 401: check"),
        ({"type": "permission_error"}, 403, "p answered 403: the API"),
        ({"code": "rate_limit_exceeded", "type": "server_error"}, 429, "(rate_limit_exceeded)"),
        ({"code": "unknown", "type": "rate_limit_error"}, 429, "(unknown)"),
        ({"code": 503}, 503, "p answered 503"),
        ({"code": 7, "type": "api_error"}, 500, "(7)"),
        ({"code": 7}, 500, "(7)"),
        ({"code": None, "type": None, "message": "m"}, 500, "p answered 500: m"),
        ({"error": {"type": "rate_limit_error", "message": "slow"}}, 429, "p answered 429: slow (rate_limit_error)"),
        ({"error": "words", "type": "rate_limit_error"}, 500, "p answered 500: words"),
        ({"message": f"it was {KEY}"}, 500, "it was [hidden]"),
        ("words", 500, "p answered 500: words"),
        (None, 500, "p answered 500"),
    ],
)
def test_error_inside_a_200_has_the_status_of_its_code(error: Any, status: int, said: str) -> None:
    failure = error_from_stream_event("p", error)

    assert failure.status == status
    assert said in str(failure)
    assert failure.retryable is (status >= 429)


class ConnectTimeout(Exception):
    """As the HTTP client of either SDK calls it."""


class PoolTimeout(Exception):
    """As the HTTP client of either SDK calls it."""


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "url", "said", "usage"),
    [
        (ConnectTimeout(), None, "p cannot be reached: ConnectTimeout; check the base URL", None),
        (PoolTimeout("full"), "http://me:pw@host/v1", "p cannot be reached at http://host/v1: full; check", None),
        (caused(OSError("x"), PoolTimeout("full")), None, "p cannot be reached: full; check", None),
        (caused(OSError("x"), OSError("y")), None, "p gave no answer: OSError; the connection", Usage(calls=1)),
        (TimeoutError(), "http://host", "p gave no answer: TimeoutError; the connection was dropped", Usage(calls=1)),
    ],
)
def test_a_call_counts_unless_there_was_no_connection(
    error: Exception, url: str | None, said: str, usage: Usage | None
) -> None:
    failure = error_from_connection("p", error, url)

    assert str(failure).startswith(said)
    assert (failure.retryable, failure.usage, failure.status) == (True, usage, None)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"error": {"message": "no"}}, "no"), ({"message": "no"}, "no"), ({"error": "no"}, "no"), ("no", "no"),
        ({"error": {"code": 5, "at": 1 + 2j}}, '{"code": 5, "at": "(1+2j)"}'), ({"error": 5}, ""), (None, ""),
    ],
)  # fmt: skip
def test_an_error_s_words_are_found_wherever_they_stand(body: object, said: str) -> None:
    assert error_detail(body).message == said


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"RETRY-AFTER": "7"}, 7.0),
        ({"Retry-After-Ms": "1500", "Retry-After": "9"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "1e12"}, MAX_RETRY_AFTER_S),
    ],
)
def test_retry_after_is_read_in_every_form(headers: dict[str, str], seconds: float) -> None:
    assert retry_after(headers) == seconds


@pytest.mark.parametrize(
    ("apart", "seconds"),
    [(timedelta(minutes=10), 600.0), (timedelta(hours=-1), 0.0), (timedelta(days=30), MAX_RETRY_AFTER_S)],
)
def test_a_pause_until_a_date_is_the_time_left_until_then(apart: timedelta, seconds: float) -> None:
    then = format_datetime(datetime.now(UTC) + apart, usegmt=True)

    assert retry_after({"Retry-After": then}) == pytest.approx(seconds, abs=10)


@pytest.mark.parametrize("text", [None, "soon", "nan", " INF ", "-inf", "Mon, 05 Jan 2026 10:00:00"])
def test_a_pause_that_cannot_be_read_is_none(text: str | None) -> None:
    assert retry_after({} if text is None else {"retry-after": text}) is None
