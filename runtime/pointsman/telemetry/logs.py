"""Write one line per log event to standard error, as JSON or for a console, without secrets.

Control characters in a text from outside could forge lines, so they are escaped: in JSON by the JSON encoder, and for
the console by this module.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import Token
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

from opentelemetry.trace import get_current_span

from pointsman.settings import Settings
from pointsman.telemetry.error_content import message_of, stack_of, without_texts_of
from pointsman.util.environment import variable
from pointsman.util.lazy_import import structlog
from pointsman.util.scrubber import HIDDEN_TEXT, is_secret, scrub

if TYPE_CHECKING:
    from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

__all__ = ["Line", "bind", "configure", "get_logger", "send_to"]

# These characters are escaped: C0, C1 and DEL end or overwrite lines, U+2028 and U+2029 end lines in some readers, the
# bidirectional marks reorder lines, and a lone surrogate cannot be written as UTF-8.
_UNPRINTABLE_PATTERN: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_MAX_DEPTH: Final = 6  # levels of nested containers that are cleaned item by item; a deeper one is cleaned as one text
# A line of an exporter is shown at most once in this time. A failing exporter repeats the line more often.
_REPEAT_INTERVAL_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Line:
    """A log line as data, without secrets. `at` is in nanoseconds since 1970. Outside of a span, both ids are empty."""

    at: int
    level: str
    event: str
    trace_id: str
    span_id: str
    attributes: dict[str, Any]


_send: Callable[[Line], None] | None = None


def send_to(send: Callable[[Line], None] | None) -> None:
    """Pass each written line also to `send`. With None, lines are only written."""
    global _send
    _send = send


CACHE_LOGGERS = True
"""Fix the level of a logger at its first use, which makes later calls cheap. Tests turn this off, because they change
the level with each `setup`."""


def get_logger(name: str) -> FilteringBoundLogger:
    """Return a structlog logger that adds `logger=name`, the open span's ids and the ids of `bind` to its lines.

    Until `setup` is called, the logger shows warnings and errors.

    Args:
        name: The name of the module.

    Returns:
        The logger.
    """
    if not structlog.is_configured():
        _install("warning")
    return cast("FilteringBoundLogger", structlog.get_logger(name))


class bind:
    """Add `ids` to every line that is logged in the block. An id that is None is left out."""

    __slots__ = ("_ids", "_tokens")

    def __init__(self, **ids: object) -> None:
        self._ids = {name: value for name, value in ids.items() if value is not None}

    def __enter__(self) -> None:
        self._tokens = structlog.contextvars.bind_contextvars(**self._ids)

    def __exit__(self, *raised: object) -> None:
        # Reset by value, not by token: if a generator is closed early, this code runs in another context, in which the
        # tokens are not valid.
        for token in self._tokens.values():
            token.var.set(... if token.old_value is Token.MISSING else token.old_value)  # in structlog, ... means unset


def configure(settings: Settings) -> None:
    """Set up structlog and the root logger. If the application has set up one of them, its setup is kept."""
    as_json = settings.log_format == "json" or (settings.log_format == "auto" and not sys.stderr.isatty())
    if not structlog.is_configured() or structlog.get_config()["processors"] is _processors:
        _install(settings.log_level, as_json=as_json)
        root = logging.getLogger()
        if all(isinstance(handler, _Handler) for handler in root.handlers):
            root.handlers[:] = [_Handler(as_json=as_json)]
            root.setLevel(logging.WARNING)


_processors: list[Processor] = []  # changed in place, because existing loggers have a reference to this list


def _install(level: str, *, as_json: bool = True) -> None:
    _processors[:] = _pipeline(as_json)
    structlog.configure(
        processors=_processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=_Stderr,
        cache_logger_on_first_use=CACHE_LOGGERS,
    )


def _pipeline(as_json: bool) -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        _add_name_and_trace,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _format_exception,
        _scrub_event,
        _send_event,
        *([structlog.processors.JSONRenderer()] if as_json else [_escape_event, _console()]),
    ]


def _console() -> Processor:
    colors = sys.stderr.isatty() and not variable("NO_COLOR")
    renderer = structlog.dev.ConsoleRenderer(colors=colors)

    def render(logger: WrappedLogger, name: str, event: EventDict) -> str:
        rows = cast("list[str]", event.pop("exception", []))
        return "\n".join([str(renderer(logger, name, event)), *(f"  | {row}" for row in rows)])

    return render


def _add_name_and_trace(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    if isinstance(logger, _Stderr) and logger.name:
        event.setdefault("logger", logger.name)
    context = get_current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = f"{context.trace_id:032x}"
        event["span_id"] = f"{context.span_id:016x}"
    return event


def _format_exception(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    info = event.pop("exc_info", None)
    if info is True:
        info = sys.exc_info()[1]
    elif isinstance(info, tuple):
        info = info[1]
    if isinstance(info, BaseException):
        for key, value in event.items():
            if isinstance(value, str):
                event[key] = without_texts_of(info, value)
        event["exception"] = stack_of(info).rstrip()
    return event


def _send_event(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    # A line of OpenTelemetry is not exported, because a failed export of the line would cause the next such line.
    if _send is not None and not str(event.get("logger", "")).startswith("opentelemetry"):
        rest = dict(event)
        taken = {key: str(rest.pop(key, "")) for key in ("level", "event", "trace_id", "span_id")}
        rest.pop("timestamp", None)
        with suppress(Exception):  # a line that cannot be sent is still written
            _send(Line(time.time_ns(), attributes={key: value for key, value in rest.items() if value is not None},
                       **taken))  # fmt: skip
    return event


def _scrub_event(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    return _clean_mapping(event, scrub, 0)


def _escape_event(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    if "exception" in event:
        event["exception"] = str(event["exception"]).split("\n")
    return _clean_mapping(event, _plain, 0)


def _clean_mapping(mapping: Mapping[Any, Any], text: Callable[[str], str], depth: int) -> dict[str, Any]:
    return {
        text(key): HIDDEN_TEXT if is_secret(key, value) else _clean_value(value, text, depth + 1)
        for key, value in ((str(key), value) for key, value in mapping.items())
    }


def _clean_value(value: Any, text: Callable[[str], str], depth: int) -> Any:
    match value:
        case str():
            return text(value)
        case None | bool() | int() | float():
            return value
        case BaseException():
            return text(message_of(value))
        case dict() if depth < _MAX_DEPTH:
            return _clean_mapping(value, text, depth)
        case list() | tuple() | set() | frozenset() if depth < _MAX_DEPTH:
            return [_clean_value(item, text, depth + 1) for item in cast("list[Any]", value)]
        case _:
            return text(_text(value))


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception as error:
        return f"<{type(value).__name__}: str() raised {type(error).__name__}>"


def _plain(text: str) -> str:
    return _UNPRINTABLE_PATTERN.sub(_escape_match, text)


def _escape_match(found: re.Match[str]) -> str:
    code = ord(found[0])
    return {9: "\\t", 10: "\\n", 13: "\\r"}.get(code) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


class _Stderr:
    """A structlog logger that writes to the current `sys.stderr`. A closed pipe raises no error."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    def msg(self, message: str) -> None:
        _write(sys.stderr, message)

    log = debug = info = warning = warn = error = critical = fatal = failure = exception = msg


def _write(stream: TextIO, message: str) -> None:
    try:
        stream.write(message + "\n")
        stream.flush()
    except (OSError, ValueError):  # the stream is closed, or the reader of the pipe has exited
        pass


class _Handler(logging.Handler):
    """Handler of the root logger. The lines of libraries go through the same processors as Pointsman's own lines.

    Each line of OpenTelemetry is shown at most once a minute, because an exporter logs the same line with every batch
    while the collector is unavailable.
    """

    def __init__(self, *, as_json: bool) -> None:
        super().__init__(logging.WARNING)
        self._pipeline: list[Any] = _pipeline(as_json)
        self._last_shown: dict[tuple[str, int], float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if self._is_repetition(record):
            return
        try:
            event: Any = {"event": record.getMessage(), "logger": record.name, "exc_info": record.exc_info}
            for processor in self._pipeline:
                event = processor(None, record.levelname.lower(), event)
            _write(sys.stderr, event)
        except Exception:  # a log line that cannot be rendered must not stop the work
            self.handleError(record)

    def _is_repetition(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith("opentelemetry"):
            return False
        place = (record.name, record.lineno)
        now = time.monotonic()
        if now - self._last_shown.get(place, -_REPEAT_INTERVAL_S) < _REPEAT_INTERVAL_S:
            return True
        self._last_shown[place] = now
        return False
