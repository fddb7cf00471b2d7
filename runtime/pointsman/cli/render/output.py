"""What every command says and how it ends: JSON lines for programs, clean text for people, exit codes for both.

| Code | Meaning |
|---|---|
| 0 | done; the workflow completed; the check found nothing wrong; who read the output (`| head -1`) has read enough |
| 1 | the workflow ended partial, failed or cancelled, or did not end in time; the check found something; refused; |
|   | what was to be said could not be written |
| 2 | wrong usage or configuration: what was typed or set does not fit, or the broker refuses the login or a subject |
| 3 | what was asked for does not exist |
| 4 | the broker cannot be reached or does not answer |
| 130 | interrupted |
"""

from __future__ import annotations

import codecs
import errno
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from functools import partial, wraps
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from pointsman.util.environment import variable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from pointsman_schemas.events import Outcome

__all__ = [
    "EVENT_TEXT_COLUMN",
    "Code",
    "code_for",
    "command",
    "console",
    "escape_control",
    "exit_code_of",
    "one_line",
    "outcome_code",
    "print_error",
    "print_event",
    "print_hint",
    "print_json",
    "print_prose",
    "print_table",
    "use_ascii_signs",
    "write_json",
]

P = ParamSpec("P")

_UNBOUNDED_WIDTH = 10_000  # columns of a file or a pipe: nothing is cut or broken there, so that `grep` finds it
_UNWRITABLE_ERRNOS = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

EVENT_TEXT_COLUMN = 27  # the column in which an event's own text begins: behind its time, its sign and its agent

_ASCII_SIGNS = str.maketrans("✓✗■●█▪─━├└│…·→↓▶≡‖", "+x#*##-=|`|..>v>=|")
"""What stands for a sign that a terminal's encoding lacks; a question mark for any other."""

# Escape sequences from an agent's answer would move the cursor or retitle the window; C1 are escape sequences too.
_CONTROL_CHARS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Code(IntEnum):
    """The exit codes of the table above."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4
    INTERRUPTED = 130


def command(function: Callable[P, Code | None]) -> Callable[P, None]:
    """`function` as a command: its code becomes the exit code, its errors one line on standard error."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        import typer

        raise typer.Exit(exit_code_of(partial(function, *args, **kwargs)))

    return run


def exit_code_of(function: Callable[[], Code | None]) -> Code:
    """Its code once it has run; of an error raised on purpose, which is one line on standard error, the error's."""
    try:
        try:
            return function() or Code.OK
        except (Exception, KeyboardInterrupt):
            _disable_broken_output()  # what has gone wrong is told, whoever reads the rest
            raise
        finally:
            sys.stdout.flush()  # here, and not when the interpreter has nobody left to tell
    except KeyboardInterrupt:
        print_error("interrupted")
        return Code.INTERRUPTED
    except SystemExit as end:  # rich and click end the process where a pipe is closed
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        return _output_error_code(end.__context__)
    except Exception as error:
        cause = _root_cause(error)
        if isinstance(cause, OSError) and cause.errno in _UNWRITABLE_ERRNOS:
            return _output_error_code(cause)
        known = code_for(cause)
        if known is None:
            raise
        print_error(str(cause))
        return known


def _output_error_code(error: OSError) -> Code:
    """The code where the output cannot go where it should, of which nothing more is tried."""
    _redirect_to_null()
    if error.errno == errno.EPIPE:
        return Code.OK
    print_error(f"the output could not be written: {error.strerror}; make room there, or send it elsewhere")
    return Code.FAILED


def _disable_broken_output() -> None:
    try:
        sys.stdout.flush()
    except OSError:
        _redirect_to_null()


def _redirect_to_null() -> None:
    with suppress(OSError, ValueError):  # what is buffered would be written again at the end, and complained about
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def use_ascii_signs() -> None:
    """From now on a sign that the terminal's encoding lacks is a plainer one, and no error; nor is it one to write
    where whoever started this process has closed the output."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
    codecs.register_error("pointsman", _replace_unencodable)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="pointsman")


def _replace_unencodable(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end].translate(_ASCII_SIGNS)
    return "".join(each if each.isascii() else "?" for each in lacking), error.end


def code_for(error: BaseException) -> Code | None:
    """The exit code of an error raised on purpose; None for a bug, which shows its traceback."""
    from pointsman import errors

    match error:
        case errors.InvariantError():
            return None
        case errors.ConnectionRejectedError():
            return Code.USAGE
        case errors.BusUnavailableError():
            return Code.UNREACHABLE
        case errors.NotFoundError():
            return Code.NOT_FOUND
        case errors.ConfigurationError() | errors.ContractError():
            return Code.USAGE
        case errors.PointsmanError():
            return Code.FAILED
    return None


def _root_cause(error: BaseException) -> BaseException:
    """The error itself, where a task group has wrapped the only one there was; of several raised on purpose the first,
    as when each of its tasks misses the broker."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    causes = [_root_cause(each) for each in error.exceptions]
    return causes[0] if len(causes) == 1 or None not in map(code_for, causes) else error


def outcome_code(outcome: Outcome) -> Code:
    """0 for a completed workflow, 1 for any other end."""
    return Code.OK if outcome.status == "completed" else Code.FAILED


def print_error(message: str) -> None:
    """One line on standard error."""
    with suppress(OSError):  # nobody reads it
        print(f"pointsman: {one_line(message, limit=2_000)}", file=sys.stderr)


def print_json(value: Any) -> None:
    """`value`, a model, dataclass or plain data, as one line of JSON on standard output."""
    from pydantic_core import to_json

    print(_escape_unencodable(to_json(value, exclude_none=True).decode()), flush=True)


def _escape_unencodable(text: str) -> str:
    """`text`, which is JSON, with escapes in place of what the encoding of standard output lacks."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        import json

        return json.dumps(json.loads(text))
    return text


def write_json(file: str, text: str) -> None:
    """`text`, which is JSON, in `file`, or on standard output for `-`.

    Raises:
        ConfigurationError: it cannot be written.
    """
    from pointsman.errors import ConfigurationError

    if file == "-":
        print(_escape_unencodable(text).rstrip("\n"))
        return
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error.strerror or error}") from None


def console(*, stderr: bool = False) -> Console:
    """A terminal that wraps and colours, or plain text where there is none."""
    from rich.console import Console

    found = Console(stderr=stderr, highlight=False)
    if not found.is_terminal and variable("COLUMNS") is None:
        found.width = _UNBOUNDED_WIDTH
    return found


def print_event(terminal: Console, line: Text, told_from: int = EVENT_TEXT_COLUMN) -> None:
    """One event, one line: cut at the edge of a terminal, whole in a file or a pipe. One with `no_wrap=False` is whole
    on a terminal too, and goes on below where its text begins, at the column `told_from`."""
    if not terminal.is_terminal:
        terminal.print(line, soft_wrap=True)
    elif line.no_wrap is not False or len(line) <= terminal.width or terminal.width < 2 * told_from:
        terminal.print(line, no_wrap=True, overflow="ellipsis")
    else:
        first, rest = line.divide([told_from])
        for part in rest.wrap(terminal, terminal.width - told_from):
            terminal.print(first + part, no_wrap=True)
            first.plain = " " * told_from


def print_table(terminal: Console, table: RenderableType) -> None:
    """A table: in a file or a pipe without the blanks that make every row as long as the longest."""
    if terminal.is_terminal:
        terminal.print(table)
        return
    with terminal.capture() as printed:
        terminal.print(table)
    for line in printed.get().splitlines():
        print(line.rstrip())


def print_prose(terminal: Console, text: str, style: str = "") -> None:
    """Text to read: broken between words on a terminal, as it is in a file or a pipe."""
    from rich.text import Text

    terminal.print(Text(text, style=style), soft_wrap=not terminal.is_terminal)


def print_hint(terminal: Console, text: str, style: str = "dim") -> None:
    """What to do next. A command in it is never broken, so that it can be copied."""
    from rich.text import Text

    terminal.print(Text(text, style=style), soft_wrap=True)


def escape_control(text: str) -> str:
    """`text` with its control characters made visible; line ends and tabs stay."""
    return _CONTROL_CHARS.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def one_line(text: str, *, limit: int = 200) -> str:
    """`text` cleaned, on one line, cut at `limit` characters."""
    line = " ".join(escape_control(text).split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
