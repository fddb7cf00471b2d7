"""Convert each failure of a provider to a `ModelError` with a class, a time to wait, and a message without API keys."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urlsplit

from pointsman.errors import ModelError
from pointsman.llm.dialects import DAILY_QUOTA_WORDS, FAULT_WORDS, STATUS_BY_CODE, Fault, normalized_code
from pointsman.util.exceptions import causes
from pointsman.util.scrubber import HIDDEN_TEXT, scrub
from pointsman_schemas.events import MAX_RETRY_AFTER_S, ErrorKind, Usage

__all__ = [
    "ErrorDetail",
    "error_detail",
    "error_from_client",
    "error_from_connection",
    "error_from_status",
    "error_from_stream_event",
    "retry_after",
]

_RETRYABLE_STATUSES: Final = frozenset({408, 409, 429})
"""The statuses below 500 after which the same call can succeed later. After each status of 500 or more, the same call
can succeed later, too. For example, 529 is Anthropic's "overloaded"."""

_ADVICE: Final[Mapping[int, str]] = {
    400: "the request itself was refused: check the model's name, the tools' schemas and the length of the input",
    401: "check the provider's API key",
    402: "the account has no credit or quota left: check the provider's plan and billing",
    403: "the API key may not use this model",
    404: "check the model's name and the base URL",
    413: "the input is too long for this model",
    422: "the request itself was refused: check the tools' schemas",
}
_OTHER_ADVICE: Final = "the same call would be refused again"
_TOO_LONG: Final = Fault(ErrorKind.CONTEXT_OVERFLOW, _ADVICE[413])
_DAILY_QUOTA: Final = Fault(
    None, "a quota of a day or longer is used up: raise the quota, or give the agent a second model"
)
_ALWAYS_TOO_LARGE: Final = re.compile(r"request too large for", re.IGNORECASE)
"""The text of a 429 for a request with more tokens than a whole minute allows. A later try would fail, too."""

_UNSENT: Final = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError"})
"""The names of httpx's errors for a connection that was not made. Nothing was sent, so the call is not counted."""
_UNSENDABLE: Final = frozenset({
    "InvalidURL", "LocalProtocolError", "UnsupportedProtocol", "UnicodeEncodeError", "InvalidHeader",
})  # fmt: skip
"""The names of errors for a request that cannot be written. A retry would fail, too, so the call is not retried."""
_UNTRUSTED: Final = re.compile(r"certificate|CERTIFICATE_VERIFY_FAILED", re.IGNORECASE)

_PROXY_VARIABLES: Final = ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY")
_CA_VARIABLES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")

_MAX_DETAIL_CHARS: Final = 300  # largest number of characters of the provider's own text in a message
_MAX_NESTED: Final = 4  # levels of nested errors that are read; a gateway's error can contain the provider's error
# After `key` and `Bearer`, the pattern demands a digit, a star or a dot, so that "key not found" is not a key.
_API_KEY_PATTERN: Final = re.compile(
    r"\b(?:(?:sk|pk|rk|gsk|hf|xai)[-_][A-Za-z0-9*._-]{6,}"
    r"|(?:key|Bearer)[-_ ](?=[A-Za-z._-]*[0-9*]|[A-Za-z]+\.[A-Za-z])[A-Za-z0-9*._-]{6,}"
    r"|AIza[A-Za-z0-9_-]{20,})"
)

_UNITS: Final[Mapping[str, float]] = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_DURATION_PART: Final = re.compile(
    r"(\d+(?:\.\d+)?)\s*(ms|milliseconds?|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d)?(?![a-z])",
    re.IGNORECASE,
)
_DURATION: Final = re.compile(r"(?:\d+(?:\.\d+)?\s*(?:ms|[smhd])\s*)+", re.IGNORECASE)
_WAIT_WORDS: Final = re.compile(
    r"\b(?:retry|try again|try it again|wait)\b(?: again)?(?: in| after| for| at least| about|:)*\s*"
    r"(\d+(?:\.\d+)?\s*[a-z]*(?:\s*\d+(?:\.\d+)?\s*[a-z]+)*)",
    re.IGNORECASE,
)
_WAIT_FIELDS: Final[Mapping[str, float]] = {
    "retrydelay": 1.0, "retryafter": 1.0, "retryafterseconds": 1.0, "retryafterms": 0.001, "retryinseconds": 1.0,
}  # fmt: skip
_ERROR_STATUS: Final = re.compile("[45][0-9]{2}")
_RESET_FIELDS: Final = frozenset({"xratelimitreset"})
_QUOTED: Final = re.compile(r"[`'\"]([A-Za-z_][\w.\[\]-]{0,99})[`'\"]")


@dataclass(frozen=True, slots=True)
class ErrorDetail:
    """The parts of an error's body.

    Attributes:
        message: The provider's text; empty if the body has no text.
        codes: The codes, types and reasons, most significant first.
        status: The HTTP status that corresponds to the codes, or None.
        retry_after: Seconds to wait, or None.
        names: The parameters and fields that the error names.
    """

    message: str = ""
    codes: tuple[str, ...] = ()
    status: int | None = None
    retry_after: float | None = None
    names: tuple[str, ...] = ()


def error_from_status(provider: str, status: int, body: object, headers: Mapping[str, str]) -> ModelError:
    """Return the error for an answer with an HTTP status of 400 or more.

    For a status of 401 or 403, the provider's text is left out, because it can quote the API key.
    """
    detail = body if isinstance(body, ErrorDetail) else error_detail(body)
    waits = _is_retryable(status)
    fault = _fault(status, detail, headers, waits=waits)
    shown = "" if status in (401, 403) else _without_keys(_with_code(detail, fault))
    advice = fault.advice if fault else "" if waits else _ADVICE.get(status, _OTHER_ADVICE)
    message = ": ".join(part for part in (f"{provider} answered {status}", shown, advice) if part)
    wait = retry_after(headers)
    return ModelError(
        message,
        retryable=waits and fault is None,
        retry_after=detail.retry_after if wait is None else wait,
        status=status,
        kind=fault.kind if fault else None,
    )


def error_from_stream_event(provider: str, body: object, usage: Usage | None = None) -> ModelError:
    """Return the error for an error object inside an answer of status 200.

    The code or the type of the error object determines the class. An error without a known code counts as retryable,
    unless its text shows that the input is too long.

    Args:
        provider: The name of the provider.
        body: The error object, or an object with the member `error`.
        usage: The tokens that the answer reports. The call itself is counted in any case.
    """
    detail = error_detail(body)
    words = f"{detail.message} ({detail.codes[0]})".strip() if detail.codes else detail.message
    told = ErrorDetail(words, detail.codes, detail.status, detail.retry_after, detail.names)
    error = error_from_status(provider, detail.status or 500, told, {})
    error.usage = usage or Usage(calls=1)
    return error


def error_from_connection(provider: str, error: BaseException, base_url: str | None = None) -> ModelError:
    """Return the error for a call that got no whole answer.

    If there was a connection, the call is counted, because the provider may have worked on it.
    """
    seen = list(causes(error))
    at = f" at {_without_password(base_url)}" if base_url else ""
    if (found := next((each for each in seen if type(each).__name__ in _UNSENDABLE), None)) is not None:
        shown = "" if isinstance(found, UnicodeError) else f": {found}"
        message = f"the request to {provider}{at} cannot be written: {type(found).__name__}{shown}"
        return ModelError(f"{message}; check the base URL and the API key", retryable=False)
    if (found := next((each for each in seen if type(each).__name__ in _UNSENT), None)) is not None:
        why = str(found) or type(found).__name__
        if any(_UNTRUSTED.search(str(each)) for each in seen):
            message = f"{provider}{at} has a certificate that is not trusted here: {why}; set SSL_CERT_FILE to its CA"
            return ModelError(message, retryable=False)
        message = f"{provider} cannot be reached{at}: {why}; check the base URL, and that its server runs"
        return ModelError(message, retryable=True)
    return ModelError(
        f"{provider} gave no answer: {type(error).__name__}; the connection was dropped or timed out",
        retryable=True,
        usage=Usage(calls=1),
    )


def error_from_client(provider: str, error: Exception, environment: Mapping[str, str]) -> ModelError:
    """Return the error for an SDK's client that cannot be made because of a proxy, a CA file or a package.

    Args:
        provider: The name of the provider.
        error: The exception of the SDK.
        environment: The environment variables. The message shows the variables with a proxy or a CA file.
    """
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    names: tuple[str, ...] = ()
    advice = f"install the package {provider} and its dependencies"
    if "proxy" in str(error).lower() or type(error).__name__ == "InvalidURL":
        names, advice = _PROXY_VARIABLES, "name a proxy by http://HOST:PORT"
        if "socks" in str(error).lower():
            advice = "for a SOCKS proxy, install the package socksio"
    elif isinstance(error, OSError):
        names, advice = _CA_VARIABLES, "name a file of certificates in PEM form"
    there = [name for each in names for name in (each, each.lower()) if environment.get(name, "").strip()]
    values = {name: environment[name].strip() for name in there}
    if missing := [name for name in there if name in _CA_VARIABLES and not os.path.exists(values[name])]:
        there, advice = missing, "there is no such file"
    told = ", ".join(f"{name} is {_without_password(values[name])!r}" for name in there)
    message = f"the client of {provider} cannot be made ({reason}): {f'{told}: ' if told else ''}{advice}"
    return ModelError(message, retryable=False, kind="configuration")


def error_detail(body: object) -> ErrorDetail:
    """Return the parts of an error's body in any provider's form: an object, a list, text, or JSON in text."""
    return _detail(body, _MAX_NESTED)


def _detail(body: object, depth: int) -> ErrorDetail:
    if isinstance(body, str):
        inner = _parsed(body)
        if inner is None or not depth:
            return ErrorDetail(body.strip(), retry_after=_wait_in_words(body), names=tuple(_QUOTED.findall(body)))
        return _detail(inner, depth - 1)
    if isinstance(body, list):
        details = [_detail(each, depth - 1) for each in body[:10] if isinstance(each, str | Mapping)] if depth else []
        return _joined(details)
    if not isinstance(body, Mapping) or not depth:
        return ErrorDetail()
    error = body.get("error", body)
    if isinstance(error, list) or (isinstance(error, Mapping) and "error" in error and error is not body):
        return _detail(error, depth - 1)
    if not isinstance(error, Mapping):
        texts = [text for text in (error, body.get("message")) if isinstance(text, str) and text]
        codes = _codes(body) if len(texts) > 1 else ()
        words = ": ".join(texts)
        wait = _wait_in(body, 3)
        return ErrorDetail(
            words,
            codes,
            _status(codes),
            _wait_in_words(words) if wait is None else wait,
            tuple(_QUOTED.findall(words)),
        )
    return _of_object(error, body, depth)


def _of_object(error: Mapping[object, object], body: Mapping[object, object], depth: int) -> ErrorDetail:
    message, names = _message(error, depth)
    codes = _codes(error)
    parts = error.get("details") if isinstance(error.get("details"), list) else []
    for part in parts if isinstance(parts, list) else []:
        if isinstance(part, Mapping):
            codes += tuple(str(part[key]) for key in ("reason",) if isinstance(part.get(key), str))
            for violation in _mappings(part.get("violations")):
                codes += tuple(str(violation[key]) for key in ("quotaId",) if isinstance(violation.get(key), str))
            for violation in _mappings(part.get("fieldViolations")):
                names += tuple(str(violation[key]) for key in ("field",) if isinstance(violation.get(key), str))
    if isinstance(inner := error.get("innererror"), Mapping):
        codes += _codes(inner)
    metadata = error.get("metadata")
    if isinstance(metadata, Mapping) and isinstance(raw := metadata.get("raw"), str | Mapping):
        upstream = _detail(raw, depth - 1)
        message = ": ".join(dict.fromkeys(text for text in (message, upstream.message) if text))
        codes, names = codes + upstream.codes, names + upstream.names
    if isinstance(param := error.get("param"), str) and param:
        names = (param, *names)
    wait = _wait_in(error, 3)
    wait = _wait_in({key: value for key, value in body.items() if key != "error"}, 2) if wait is None else wait
    if not message and error:
        message = _as_json(error)
    names += tuple(_QUOTED.findall(message))
    return ErrorDetail(message, codes, _status(codes), _wait_in_words(message) if wait is None else wait, names)


def _message(error: Mapping[object, object], depth: int) -> tuple[str, tuple[str, ...]]:
    """Return the text of an error object, and, for a validation error, the names of the invalid fields."""
    keys = ("message", "Message", "msg", "detail", "error_description", "error_message", "errors")
    said = next((value for key in keys if (value := error.get(key)) not in (None, "", [], {})), None)
    if isinstance(said, str):
        if said.lstrip().startswith(("{", "[")) and (inner := _parsed(said)) is not None and depth:
            detail = _detail(inner, depth - 1)
            return detail.message or said, detail.names
        return said, ()
    if isinstance(said, Mapping):
        return _message(said, depth - 1) if depth else ("", ())
    texts: list[str] = []
    names: tuple[str, ...] = ()
    for each in said if isinstance(said, list) else []:
        if isinstance(each, Mapping):
            place = each.get("loc")
            path = [str(part) for part in place if isinstance(part, str | int)] if isinstance(place, list) else []
            path = path[1:] if path[:1] == ["body"] else path
            names += tuple(path)
            words = str(each.get("msg") or each.get("message") or "")
            texts.append(f"{'.'.join(path)}: {words}" if path else words)
        elif isinstance(each, str):
            texts.append(each)
    return "; ".join(texts), names


def _codes(error: Mapping[object, object]) -> tuple[str, ...]:
    found = (error.get(key) for key in ("code", "type", "status", "error_code", "__type", "reason"))
    codes = [str(code) for code in found if isinstance(code, str | int) and not isinstance(code, bool) and code != ""]
    return tuple(dict.fromkeys(codes))


def _status(codes: tuple[str, ...]) -> int | None:
    """Return the status of the first code that is a number from 400 to 599 or a known name."""
    for code in codes:
        if _ERROR_STATUS.fullmatch(code):
            return int(code)
        if (status := STATUS_BY_CODE.get(normalized_code(code.rpartition("#")[2]))) is not None:
            return status
    return None


def _fault(status: int, detail: ErrorDetail, headers: Mapping[str, str], *, waits: bool) -> Fault | None:
    """Return the class of a permanent error; None for any other error. `waits` is True for a retryable status."""
    codes = {normalized_code(code) for code in detail.codes}
    codes |= {normalized_code(value) for name, value in headers.items() if name.lower() == "x-amzn-errortype"}
    words = detail.message
    if status == 413 or (status == 429 and _ALWAYS_TOO_LARGE.search(words)):
        return _TOO_LONG
    for known, pattern, fault in FAULT_WORDS:
        fits = codes & known or (pattern is not None and pattern.search(words))
        is_overflow = fault.kind == ErrorKind.CONTEXT_OVERFLOW
        # With a retryable status, the words alone show a permanent error in only two cases: a used-up quota with status
        # 429, and a full context with status 500 or more, which some servers answer.
        in_words = not waits or (status >= 500 and is_overflow) or (status == 429 and fault.kind is None)
        if fits and (in_words or codes & known) and status not in (401, 403):
            return fault
    if status == 429 and any(DAILY_QUOTA_WORDS.search(text) for text in (*detail.codes, words)):
        return _DAILY_QUOTA
    return None


def _is_retryable(status: int) -> bool:
    return status in _RETRYABLE_STATUSES or status >= 500


def _with_code(detail: ErrorDetail, fault: Fault | None) -> str:
    """Return the text of the provider, with the code that determined the class of the error."""
    for known, _, each in FAULT_WORDS if fault else ():
        if each is fault:
            deciding = next((code for code in detail.codes if normalized_code(code) in known), None)
            if deciding and deciding not in detail.message:
                return f"{detail.message} ({deciding})".strip()
    return detail.message


# The time to wait


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait, from `retry-after-ms` or `Retry-After` (seconds or an HTTP date).

    Returns:
        At most `MAX_RETRY_AFTER_S` seconds; None if no such header can be read.
    """
    lower = {name.lower(): value for name, value in headers.items()}
    seconds = None
    if (milliseconds := _number(lower.get("retry-after-ms"))) is not None:
        seconds = milliseconds / 1000
    elif (text := lower.get("retry-after")) is not None and (seconds := _number(text)) is None:
        try:
            seconds = (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError, OverflowError):  # not a date, or a date without a zone
            return _duration(text) if _DURATION.fullmatch(text.strip()) else None
    return _bounded(seconds)


def _wait_in(value: object, depth: int) -> float | None:
    """Return the seconds to wait, from a field of an error's body such as Google's `retryDelay`."""
    if isinstance(value, list) and depth:
        return next((wait for each in value[:20] if (wait := _wait_in(each, depth)) is not None), None)
    if not isinstance(value, Mapping):
        return None
    for key, each in value.items():
        name = normalized_code(str(key))
        if name in _WAIT_FIELDS and (wait := _stated(each, _WAIT_FIELDS[name])) is not None:
            return wait
        if name in _RESET_FIELDS and (at := _number(str(each))) is not None:
            epoch = at / 1000 if at > 10**11 else at
            return _bounded(epoch - datetime.now(UTC).timestamp() if epoch > 10**9 else epoch)
    if not depth:
        return None
    return next((wait for each in value.values() if (wait := _wait_in(each, depth - 1)) is not None), None)


def _stated(value: object, unit: float) -> float | None:
    """Return the seconds in a field. The value is a number, a duration as text, or an object with seconds and nanos."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float | str):
        number = _number(str(value))
        return _bounded(number * unit) if number is not None else _duration(str(value))
    if isinstance(value, Mapping):
        parts = [_number(str(value.get(key, 0))) or 0.0 for key in ("seconds", "nanos")]
        return _bounded(parts[0] + parts[1] / 1e9)
    return None


def _wait_in_words(text: str) -> float | None:
    """Return the seconds in a sentence such as "Please try again in 1m30.5s"."""
    found = _WAIT_WORDS.search(text)
    return _duration(found[1]) if found else None


def _duration(text: str) -> float | None:
    """Return the seconds of a duration such as `53.4s`, `1m30s` or `2 minutes`; a bare number is seconds."""
    parts = _DURATION_PART.findall(text)
    return _bounded(sum(float(number) * _unit(unit) for number, unit in parts)) if parts else None


def _unit(name: str) -> float:
    short = name.lower()
    return _UNITS.get("ms" if short.startswith(("ms", "milli")) else short[:1] or "s", 1.0)


def _bounded(seconds: float | None) -> float | None:
    return None if seconds is None or seconds != seconds else round(min(max(seconds, 0.0), MAX_RETRY_AFTER_S), 3)


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None and text.strip().lower() not in ("nan", "inf", "-inf", "+inf") else None
    except ValueError:
        return None


# Parts


def _parsed(text: str) -> object | None:
    """Return the value of the text if the whole text is a JSON object or a JSON list; else None."""
    text = text.strip().removeprefix("data:").strip()
    if not text.startswith(("{", "[")):
        return None
    try:
        return json.loads(text)  # type: ignore[no-any-return]
    except (ValueError, RecursionError):
        return None


def _joined(details: list[ErrorDetail]) -> ErrorDetail:
    message = "; ".join(detail.message for detail in details if detail.message)
    codes = tuple(dict.fromkeys(code for detail in details for code in detail.codes))
    names = tuple(name for detail in details for name in detail.names)
    waits = [detail.retry_after for detail in details if detail.retry_after is not None]
    return ErrorDetail(message, codes, _status(codes), max(waits, default=None), names)


def _as_json(value: object) -> str:
    try:
        return json.dumps(value, default=str, skipkeys=True)
    except (ValueError, RecursionError):
        return ""


def _mappings(value: object) -> list[Mapping[object, object]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _without_password(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return url.rpartition("@")[2]
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _without_keys(text: str) -> str:
    """Return the text in one line, cut to `_MAX_DETAIL_CHARS` characters, without API keys, not even masked keys."""
    text = _API_KEY_PATTERN.sub(HIDDEN_TEXT, scrub(" ".join(text.split())))
    return text if len(text) <= _MAX_DETAIL_CHARS else text[:_MAX_DETAIL_CHARS] + "..."
