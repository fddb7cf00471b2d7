"""Hide secrets in log lines, prompts, exceptions and JSON data."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote

from pydantic import JsonValue

__all__ = [
    "HIDDEN_TEXT",
    "hide_header_values",
    "hide_secret",
    "is_secret",
    "scrub",
    "scrub_json",
    "scrub_traceback",
    "to_writable",
]

HIDDEN_TEXT: Final = "[hidden]"

_KEYS: Final = (
    r"(?:(?:api|private)[._-]?key|authorization|(?:access|refresh|auth|id)?token"
    r"|password|passwd|(?:client)?secret|credentials?|cookie|seed|jwt)"
)
_SECRET_KEY: Final = re.compile(rf"(?i)(?:^|[._-]){_KEYS}(?:$|[._-])")
# Data within a text, such as the JSON answer of a tool. The optional backslashes are for JSON that is quoted in JSON.
_KEYED_SECRET: Final = re.compile(
    rf"(?i)(\\?[\"'](?:[\w.-]{{0,40}}[._-])?{_KEYS}(?:[._-][\w.-]{{0,40}})?\\?[\"']\s*:\s*)(\\?[\"'])"
    r"(?:\\[\s\S]|[^\\])*?(?=\2|\\?\Z)"
)
# A header, or a line of settings. The value must have a digit and a letter, so that sentences and counts do not match.
_HEADER_SECRET: Final = re.compile(
    r"(?i)((?:api[_-]?key|password|passwd|secret):[ \t]+)(?=[^\s\d]*\d)(?=[^\sa-z]*[a-z])[^\s,;}]+"
)
# All alternatives that begin a word share one `\b`. With a `\b` in each alternative, the search would try every
# position of every text a dozen times.
_SECRET_VALUE: Final = re.compile(
    r"\b(?:"
    r"(?:sk|pk|rk)[-_][A-Za-z0-9_-]{12,}"  # model providers' and payment providers' keys
    r"|(?i:Bearer|Basic)\s+(?=[^\s\d]*\d)[A-Za-z0-9._~+/=-]{8,}"  # the digit excludes sentences
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?"  # JSON Web Tokens, such as tokens of NATS users
    r"|S[ACNOUX][A-Z2-7]{56}\b"  # NATS seeds
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}\b"  # AWS access key ids
    r"|AIza[A-Za-z0-9_-]{35}"  # Google API keys
    r"|(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,})"  # source hosts
    r"|(?:hf|gsk)_[A-Za-z0-9]{20,}"  # model hubs
    r"|(?:npm_|pypi-|whsec_|ya29\.|SG\.)[A-Za-z0-9._-]{16,}"  # package indexes, webhooks, Google's tokens, mail
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,}"  # chat workspaces
    r"|(?i:password|secret|token|api_?key)=(?!None\b)\S+"  # as in the repr of a settings object
    r"|(?i:aws_secret_access_key|aws_session_token)\s*[=:]\s*\S+"
    r")"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|(?<=://)[^\s/@]+(?=@)",  # user and password, or token, in a URL
)
# A literal in a line of code that belongs to a name such as `password`: by an assignment, a comparison or a pair. The
# quantifiers of white space are possessive, because backtracking over much white space would take minutes.
_LITERAL: Final = re.compile(
    rf"(?i)(\b(?:\w{{0,40}}_)?{_KEYS}(?:_\w{{0,40}})?"
    r"(?:[\"']\s*+\]?\s*+(?:,|:|[=!]?=)|(?:\s*+:\s*+[\w.\[\] |]{1,40}?)?\s*+[=!:]?=)\s*+[a-z]{0,2})(\"{3}|'{3}|[\"'])"
    r"(?:\\.|(?!\2)[^\\\n])*"
)
# Text after an escape sequence in a line of code. In `"\nsk-..."`, the two characters backslash and n are directly
# before the key, so `\b` does not match between n and the key.
_ESCAPED: Final = re.compile(r"(?<=\\[abfnrtv])[^\\]+")
_MAX_TRACEBACK_CHARS: Final = 32_768
_MIN_SECRET_CHARS: Final = 6  # a shorter secret is a part of ordinary words, and to hide it would make texts unreadable
_MIN_INFIX_CHARS: Final = 12  # a secret of this length or more is hidden within a word, too
_PLACEHOLDERS: Final = frozenset((
    "no-key", "nokey", "not-needed", "dummy-key", "api-key", "secret", "password", "changeme", "ollama", "lm-studio",
    "sk-no-key-required", "pointsman", "anonymous", "placeholder", "no-key-required",
))  # fmt: skip
_EMAIL: Final = re.compile(r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}")


_in_use: dict[str, str] = {}  # a pattern for each secret in use
_IN_USE: re.Pattern[str] | None = None


def hide_secret(value: str | None) -> None:
    """Hide a secret of this process, of any form, in every text that `scrub` handles.

    A percent-encoded copy is also hidden. A secret of fewer than 6 characters, or a placeholder such as `ollama`, is
    not hidden, because it is a part of ordinary words. A secret of 6 to 11 characters is hidden only as a whole word.

    Args:
        value: The key, token or password in use; None and an empty text are ignored.
    """
    global _IN_USE
    if value is None or value in _in_use or len(value) < _MIN_SECRET_CHARS or value.lower() in _PLACEHOLDERS:
        return
    forms = "|".join(re.escape(form) for form in sorted({value, quote(value, safe="")}))
    whole = rf"(?:{forms})" if len(value) >= _MIN_INFIX_CHARS else rf"(?<![A-Za-z0-9])(?:{forms})(?![A-Za-z0-9])"
    _in_use[value] = whole
    # Sort by length, longest first: if one secret begins with another, the longer secret must match.
    _IN_USE = re.compile("|".join(_in_use[each] for each in sorted(_in_use, key=len, reverse=True)))


def hide_header_values(headers: Iterable[str]) -> None:
    """Hide header values that are sent to another server. An example of a value is `Bearer TOKEN`.

    The last word of each value, such as `TOKEN`, is also hidden by itself.

    Args:
        headers: The values of the headers.
    """
    for value in headers:
        hide_secret(value)
        hide_secret(value.rpartition(" ")[2])


def to_writable(text: str) -> str:
    """Return `text` with lone surrogates escaped. UTF-8 cannot encode them, so the export of a batch would fail."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def scrub(text: str, *, emails: bool = False) -> str:
    """Replace the keys, tokens and passwords in a text by `[hidden]`, and apply `to_writable`.

    Secrets of this process are found by their value (see `hide_secret`), and other secrets by their form.

    Args:
        text: The text.
        emails: Also replace e-mail addresses. Default: no.

    Returns:
        The text without secrets.
    """
    text = to_writable(text)
    if _IN_USE is not None:
        text = _IN_USE.sub(HIDDEN_TEXT, text)
    text = _SECRET_VALUE.sub(HIDDEN_TEXT, text)
    if ":" in text:
        text = _HEADER_SECRET.sub(rf"\1{HIDDEN_TEXT}", _KEYED_SECRET.sub(rf"\1\2{HIDDEN_TEXT}", text))
    return _EMAIL.sub(HIDDEN_TEXT, text) if emails else text


def scrub_traceback(text: str) -> str:
    """Scrub a traceback and the literals in its lines of code. Only for exceptions, because `scrub` is faster.

    A traceback of more than 32,768 characters loses its middle, because a message can have megabytes.

    Args:
        text: The traceback.

    Returns:
        The traceback without secrets.
    """
    if left_out := max(0, len(text) - _MAX_TRACEBACK_CHARS):
        half = _MAX_TRACEBACK_CHARS // 2
        text = f"{text[:half]}\n... {left_out} characters left out ...\n{text[-half:]}"
    return _ESCAPED.sub(lambda rest: scrub(rest[0]), scrub(_LITERAL.sub(rf"\1\2{HIDDEN_TEXT}", text)))


def scrub_json(value: JsonValue, *, emails: bool = False) -> JsonValue:
    """Return `value` with its texts scrubbed, and with the values of keys such as `password` replaced."""
    match value:
        case str():
            return scrub(value, emails=emails)
        case dict():
            return {
                key: HIDDEN_TEXT if is_secret(key, each) else scrub_json(each, emails=emails)
                for key, each in value.items()
            }
        case list():
            return [scrub_json(each, emails=emails) for each in value]
        case _:
            return value


def is_secret(key: str, value: object) -> bool:
    """Return True if the value of `key` must be hidden. Numbers are shown, because a token count is not a token."""
    return not (value is None or isinstance(value, int | float)) and _SECRET_KEY.search(key) is not None
