"""Check subjects, headers and sizes before a message is sent. Every bus uses the same checks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from pointsman.errors import ContractError, InvalidTokenError, OversizeEventError
from pointsman_schemas.card import AgentCard
from pointsman_schemas.ids import token
from pointsman_schemas.strict_json import dump, parse

__all__ = [
    "DUPLICATE_WINDOW_S",
    "EXPECTED_SEQUENCE_HEADER",
    "EXPECTED_SUBJECT_HEADER",
    "MAX_CARD_BYTES",
    "MAX_HEADER_BYTES",
    "MESSAGE_ID_HEADER",
    "REQUEST_DUPLICATE_WINDOW_S",
    "ROLLUP_HEADER",
    "SCHEDULER_HEADER",
    "TTL_HEADER",
    "check_consumer",
    "check_filter",
    "check_size",
    "check_subject",
    "decode_card",
    "encode_card",
    "event_headers",
    "format_ttl",
    "header_size",
    "is_event_header",
    "matches",
    "printable",
    "wire_headers",
]

MESSAGE_ID_HEADER = "Nats-Msg-Id"
DUPLICATE_WINDOW_S = 120.0
"""After a stream has received a message id, it drops further messages with the same id for this number of seconds.
120 s is the default of the broker. All retries of a publish together take less time."""
REQUEST_DUPLICATE_WINDOW_S = 0.1
"""The duplicate window of the stream of requests, in seconds: the shortest window that the broker accepts. Callers
choose their message ids, so in a longer window a caller could suppress the request of another caller. A longer window
is not needed, because supervisors detect a repeated request by the id of its workflow."""
EXPECTED_SEQUENCE_HEADER = "Nats-Expected-Last-Subject-Sequence"
ROLLUP_HEADER = "Nats-Rollup"
TTL_HEADER = "Nats-TTL"
SCHEDULER_HEADER = "Nats-Scheduler"  # the broker sets this header to the schedule that produced the message
# The value of the next header is a subject. With this header, the expected sequence is the last sequence of that
# subject, and not of the message's own subject.
EXPECTED_SUBJECT_HEADER = f"{EXPECTED_SEQUENCE_HEADER}-Subject"

# The server closes the connection after a protocol line of more than 4,096 bytes, and a line can have two subjects.
_MAX_SUBJECT_CHARS = 1_000
MAX_HEADER_BYTES = 65_535  # JetStream stores the length of a message's headers in 16 bits
MAX_CARD_BYTES = 65_536  # small, because supervisors have all cards in memory, and planners' prompts contain schemas
_MAX_SHOWN_CHARS = 80  # number of characters of a refused value that an error message repeats
_LITERAL = r"[^\s.*>\x00-\x1f\x7f\ud800-\udfff]+"
_SUBJECT = re.compile(rf"{_LITERAL}(?:\.{_LITERAL})*")
_FILTER = re.compile(rf"(?:(?:{_LITERAL}|\*)(?:\.(?:{_LITERAL}|\*))*(?:\.>)?|>)")
_CONSUMER = re.compile(r"[A-Za-z0-9_-]{1,255}")  # the server uses the name for a folder, and refuses longer names
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_UNSAFE_CHARS = re.compile(r"[\r\n\x00\ud800-\udfff]")
_VISIBLE_BYTES = bytes(range(0x21, 0x7F))  # ASCII without the space and control characters


def check_subject(subject: str) -> None:
    """Raise `InvalidTokenError` if `subject` has white space, control characters, wildcards or an empty token."""
    if len(subject) > _MAX_SUBJECT_CHARS or not _SUBJECT.fullmatch(subject):
        _invalid_subject(subject, "tokens without white space, control characters or wildcards")


def check_filter(subject: str) -> None:
    """Raise `InvalidTokenError` if `subject` is not valid in a subscription.

    A token may be `*`, and the last token may be `>`.
    """
    if len(subject) > _MAX_SUBJECT_CHARS or not _FILTER.fullmatch(subject):
        _invalid_subject(
            subject,
            "tokens without white space or control characters; `*` only as a whole token, `>` only as the last token",
        )


def check_consumer(name: str) -> str:
    """Return `name`. Raise `InvalidTokenError` if `name` is not valid as the name of a durable consumer."""
    if not _CONSUMER.fullmatch(name):
        shown = name if len(name) <= _MAX_SHOWN_CHARS else name[:_MAX_SHOWN_CHARS] + "..."
        raise InvalidTokenError(
            f"consumer is {shown!r}; expected 1 to 255 of A-Z a-z 0-9 _ -; choose a name of that form"
        )
    return name


def wire_headers(headers: Mapping[str, str], extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the headers for a publish: the event's headers and the bus's headers in `extra`, with stripped values.

    Raises:
        ContractError: A name or value is not valid in the protocol, or a header is a command to the broker.
    """
    _check_names(tuple(headers))
    wire = {**headers, **extra} if extra else dict(headers)
    every = "".join(wire.values())
    # The usual case, such as the headers that `encode` makes: nothing to strip or refuse.
    if every.isascii() and not every.encode().translate(None, _VISIBLE_BYTES):
        return wire
    for name, value in wire.items():
        if not value.isprintable() and _UNSAFE_CHARS.search(value):
            raise ContractError(
                f"the header {name[:_MAX_SHOWN_CHARS]} has a line end, a NUL or a lone surrogate; encode the value, "
                "for example with percent signs"
            )
        wire[name] = value.strip(" \t")
    return wire


@lru_cache(256)  # the events of a kind have the same dozen names
def _check_names(names: tuple[str, ...]) -> None:
    for name in names:
        if not _NAME.fullmatch(name):
            raise ContractError(
                f"a header is named {name[:_MAX_SHOWN_CHARS]!r}; expected letters, digits and !#$%&'*+-.^_`|~"
            )
        if _is_broker_header(name):
            raise ContractError(
                f"the header {name[:_MAX_SHOWN_CHARS]} is a command to the broker; remove the header from the event"
            )


def event_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Return the headers of the event, without the headers that the broker or the bus added."""
    if not headers:
        return {}
    return {name: value for name, value in headers.items() if is_event_header(name)}


def is_event_header(name: str) -> bool:
    """Return True if a header with the name `name` belongs to the event."""
    return name[:5] != "Nats-" or name == MESSAGE_ID_HEADER


def format_ttl(seconds: float) -> str:
    """Format a message's time to live. The broker accepts only whole seconds from 1, so the time is rounded up."""
    return f"{max(1, -int(-seconds // 1))}s"


def header_size(headers: Mapping[str, str]) -> int:
    """Count the bytes of the header block on the wire. The limit of the broker includes headers and body."""
    if not headers:
        return 0
    size = len("NATS/1.0\r\n") + len("\r\n")
    for name, value in headers.items():
        size += len(name) + len(": ") + len("\r\n") + (len(value) if value.isascii() else len(value.encode()))
    return size


def check_size(subject: str, headers: int, body: int, limit: int) -> None:
    """Check the size of a message.

    Raises:
        OversizeEventError: Headers and body together exceed `limit`, or the headers alone exceed `MAX_HEADER_BYTES`.
    """
    if headers > MAX_HEADER_BYTES:
        raise OversizeEventError(
            f"the headers of {subject} take {headers} bytes; {MAX_HEADER_BYTES} are accepted; shorten the headers"
        )
    if headers + body > limit:
        raise OversizeEventError(
            f"{subject} takes {headers + body} bytes, headers included; {limit} are accepted; "
            "send less, or a reference to the data"
        )


def matches(pattern: str, subject: str) -> bool:
    """Return True if `subject` matches `pattern`, by the rules of NATS wildcards."""
    if pattern == subject:
        return True
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted = wanted[:-1]
        if len(tokens) <= len(wanted):
            return False
        tokens = tokens[: len(wanted)]
    return len(wanted) == len(tokens) and all(want in ("*", token) for want, token in zip(wanted, tokens, strict=True))


def encode_card(card: AgentCard) -> bytes:
    """Encode `card`.

    Returns:
        The value that the registry stores.

    Raises:
        InvalidTokenError: The instance is not a token of a subject.
        OversizeEventError: The card is larger than `MAX_CARD_BYTES`.
    """
    token(card.instance, "instance")
    body = dump(card)
    _check_card_size(card.name, len(body))
    return body


def decode_card(key: str, body: bytes) -> AgentCard:
    """Return the card that the registry has under `key`, which is `{agent}.{instance}`.

    Raises:
        ContractError: The value is not a card, is too large, or is the card of a different agent or instance.
    """
    _check_card_size(key, len(body))
    card = parse(AgentCard, body)
    if (found := f"{card.name}.{card.instance}") != key:
        raise ContractError(
            f"the card belongs to {found[:_MAX_SHOWN_CHARS]!r}, but its key is {key[:_MAX_SHOWN_CHARS]!r}; use the key "
            "`{agent}.{instance}`, with the name and the instance of the card"
        )
    return card


def _check_card_size(name: str, size: int) -> None:
    if size > MAX_CARD_BYTES:
        raise OversizeEventError(
            f"the card of {name[:_MAX_SHOWN_CHARS]} takes {size} bytes; {MAX_CARD_BYTES} are accepted; shorten its "
            "description, its examples or its schemas"
        )


def printable(text: str) -> str:
    r"""Return `text` with an escape such as `\xe9` for each byte that was not UTF-8. JSON can represent the result."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _is_broker_header(name: str) -> bool:
    return name[:5].lower() == "nats-" and name != MESSAGE_ID_HEADER


def _invalid_subject(subject: str, expected: str) -> None:
    shown = subject if len(subject) <= _MAX_SHOWN_CHARS else subject[:_MAX_SHOWN_CHARS] + "..."
    raise InvalidTokenError(f"subject is {shown!r}; expected 1 to {_MAX_SUBJECT_CHARS} characters, {expected}")
