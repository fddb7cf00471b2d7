"""Print JSON lines for programs, text for people, and each error as one line on standard error. Define the exit codes.

| Code | Meaning |
|---|---|
| 0 | success; the workflow completed; a check found no problem; the reader (`| head -1`) has closed the output |
| 1 | the workflow ended partial, failed or cancelled, or did not end in time; a check found a problem; the |
|   | request was refused; the output could not be written |
| 2 | wrong usage or configuration; the broker refuses the login or a subject |
| 3 | not found |
| 4 | the broker cannot be reached or does not answer |
| 130 | interrupted |
"""

from __future__ import annotations

import codecs
import errno
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import IntEnum
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any

from pointsman.util.environment import variable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from pointsman_schemas.events import Outcome

__all__ = [
    "Code",
    "code_for",
    "console",
    "escape_control",
    "exit_code_of",
    "one_line",
    "outcome_code",
    "print_error",
    "print_event",
    "print_hint",
    "print_json",
    "print_list",
    "print_prose",
    "print_table",
    "use_ascii_signs",
    "use_connection_options",
    "with_connection_options",
    "write_json",
]

_BROKER_COMMAND = re.compile(r"`(pointsman (?!up\b|demo\b|grants\b|replay\b|dashboard-user\b)[^`]+)`")
_connection_options: dict[str, str] = {}  # the connection options of the running command, by name

_UNBOUNDED_WIDTH = 10_000  # columns for a file or a pipe: no line is cut or wrapped, because `grep` needs whole lines
_UNWRITABLE_ERRNOS = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

_ASCII_SIGNS = str.maketrans("✓✗■●█▪─━├└│┊…·→↓▶≡‖", "+x#*##-=|`||..>v>=|")
"""The replacements of signs for a terminal whose encoding lacks them. Any other character becomes a question mark."""

# These characters are escaped in printed text, because escape sequences in an agent's answer could move the cursor or
# rename the window. The C1 control characters, from \x80 to \x9f, also begin such sequences.
_CONTROL_CHARS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Code(IntEnum):
    """The exit codes."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4
    INTERRUPTED = 130


def exit_code_of(function: Callable[[], Code | None]) -> Code:
    """Call a function and return its exit code; print a `PointsmanError` as one line on standard error."""
    try:
        try:
            return function() or Code.OK
        except (Exception, KeyboardInterrupt):
            _disable_broken_output()  # so that a broken standard output does not hide the error
            raise
        finally:
            sys.stdout.flush()  # flush here, because the interpreter's flush at exit cannot report an error
    except KeyboardInterrupt:
        print_error("interrupted")
        return Code.INTERRUPTED
    except SystemExit as end:  # rich and click raise this if the reader has closed the pipe, which is a success
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
    """Stop writing to standard output, and return the exit code for the error."""
    _redirect_to_null()
    if error.errno == errno.EPIPE:
        return Code.OK
    print_error(f"the output could not be written: {error.strerror}; free space there, or redirect the output")
    return Code.FAILED


def _disable_broken_output() -> None:
    try:
        sys.stdout.flush()
    except OSError:
        _redirect_to_null()


def _redirect_to_null() -> None:
    # At exit, the interpreter writes the rest of the buffer. The null device accepts this write. A broken output would
    # raise an error.
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def use_ascii_signs() -> None:
    """Replace signs that the encoding of the terminal lacks, in all later output.

    Also open the null device in place of a closed standard stream.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
    codecs.register_error("pointsman", _replace_unencodable)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="pointsman")


def _replace_unencodable(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    replaced = error.object[error.start : error.end].translate(_ASCII_SIGNS)
    return "".join(each if each.isascii() else "?" for each in replaced), error.end


def code_for(error: BaseException) -> Code | None:
    """Return the exit code for an error.

    Args:
        error: The error.

    Returns:
        The code of a `PointsmanError`. None for a bug, which is an `InvariantError` or an exception of another class.
        The traceback of a bug is printed.
    """
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
    """Return the error that a task group has wrapped.

    A group has several errors, for example, if each of its tasks has lost the connection to the broker. If each error
    has an exit code, return the first error. If one of the errors is a bug, return the whole group.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    causes = [_root_cause(each) for each in error.exceptions]
    return causes[0] if len(causes) == 1 or None not in map(code_for, causes) else error


def outcome_code(outcome: Outcome) -> Code:
    """Return 0 for a completed workflow, 1 for any other outcome."""
    return Code.OK if outcome.status == "completed" else Code.FAILED


def print_error(message: str) -> None:
    """Print one line on standard error."""
    with suppress(OSError):  # standard error might be closed
        print(f"pointsman: {with_connection_options(one_line(message, limit=2_000))}", file=sys.stderr)


def use_connection_options(url: str | None, namespace: str | None) -> None:
    """Add the connection options of this command to all commands that are printed later.

    A user who copies a printed command then uses the same broker and the same namespace.

    Args:
        url: The value of `--url`, or None. A URL with a login is not printed.
        namespace: The value of `--namespace`, or None.
    """
    _connection_options.clear()
    for option, value in (("--url", url), ("--namespace", namespace)):
        if value and "@" not in value:
            _connection_options[option] = shlex.quote(value)


def with_connection_options(text: str) -> str:
    """Return the text. Each command in it that needs a broker gets the options of `use_connection_options`."""

    def completed(found: re.Match[str]) -> str:
        command = found[1]
        missing = [f" {option} {value}" for option, value in _connection_options.items() if f"{option} " not in command]
        return f"`{command}{''.join(missing)}`"

    return _BROKER_COMMAND.sub(completed, text) if _connection_options else text


def print_json(value: Any) -> None:
    """Print a model, a dataclass or plain data as one line of JSON on standard output."""
    from pydantic_core import to_json

    print(_escape_unencodable(to_json(value, exclude_none=True).decode()), flush=True)


def _escape_unencodable(text: str) -> str:
    """Return JSON text. Characters that the encoding of standard output lacks are escaped."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        import json

        return json.dumps(json.loads(text))
    return text


def write_json(file: str, text: str) -> None:
    """Write JSON text to a file that only its owner can read, because the text can contain requests and answers.

    Args:
        file: The path; `-` is standard output.
        text: The JSON text.

    Raises:
        ConfigurationError: The file cannot be written, or is a symbolic link.
    """
    import os
    import stat

    from pointsman.errors import ConfigurationError

    if file == "-":
        print(_escape_unencodable(text).rstrip("\n"))
        return
    if os.path.islink(file):  # checked here too, because some systems have no O_NOFOLLOW
        raise ConfigurationError(f"{file} is a symbolic link, which is not followed; give the path of the file itself")
    flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    try:
        with open(os.open(file, flags, 0o600), "w", encoding="utf-8") as output:
            if stat.S_ISREG(os.fstat(output.fileno()).st_mode):
                # An existing file keeps its mode when it is opened, so the mode is changed here.
                os.chmod(output.fileno() if os.chmod in os.supports_fd else file, 0o600)
                output.truncate()
            output.write(text)
    except OSError as error:
        raise ConfigurationError(
            f"{file} cannot be written: {error.strerror or error}; give a file in a folder that exists"
        ) from None


def console(*, stderr: bool = False) -> Console:
    """Return a console that wraps and colours text on a terminal. In a file or a pipe, text is plain.

    Args:
        stderr: True to write to standard error. Default: to standard output.

    Returns:
        The console.
    """
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    # `FORCE_COLOR`, which many CI systems set, would make rich cut the lines of a pipe to 80 columns.
    found = Console(stderr=stderr, highlight=False, force_terminal=None if stream.isatty() else False)
    if not found.is_terminal and variable("COLUMNS") is None:
        found.width = _UNBOUNDED_WIDTH
    return found


def print_event(terminal: Console, prefix: Text, text: Text, column: int, *, whole: bool = False) -> None:
    """Print one event.

    In a file, a pipe or a narrow terminal, an event is one line. On any other terminal, all texts begin at the same
    column. If a prefix does not fit into the columns before the text, the prefix is a separate line.

    Args:
        terminal: The console.
        prefix: The beginning of the line, such as the time and the name. The prefix ends with a space.
        text: The text.
        column: The column at which the text begins.
        whole: True to wrap text that is longer than the line. Default: cut the text at the edge of the terminal.
    """
    from rich.text import Text

    if not terminal.is_terminal or terminal.width < 2 * column:
        terminal.print(prefix + text, soft_wrap=not terminal.is_terminal, no_wrap=True, overflow="ellipsis")
        return
    margin = Text(" " * column)
    if len(prefix) > column:
        terminal.print(prefix, no_wrap=True, overflow="ellipsis")
        prefix = margin
    prefix.pad_right(column - len(prefix))
    for part in text.wrap(terminal, terminal.width - column) if whole else [text]:
        terminal.print(prefix + part, no_wrap=True, overflow="ellipsis")
        prefix = margin


def print_table(terminal: Console, table: RenderableType) -> None:
    """Print a table. In a file or a pipe, lines have no trailing spaces."""
    if terminal.is_terminal:
        terminal.print(table)
        return
    with terminal.capture() as printed:
        terminal.print(table)
    for line in printed.get().splitlines():
        print(line.rstrip())


def print_list(documents: Sequence[Any], table: Callable[[Console], RenderableType], empty: str, *, json: bool) -> None:
    """Print a list as JSON, one document on each line, or as a table. In place of an empty table, print `empty`."""
    if json:
        for each in documents:
            print_json(each)
    elif documents:
        terminal = console()
        print_table(terminal, table(terminal))
    else:
        print(empty)


def print_prose(terminal: Console, text: str, style: str = "") -> None:
    """Print text. On a terminal, text is wrapped between words. In a file or a pipe, text is unchanged."""
    from rich.text import Text

    terminal.print(Text(text, style=style), soft_wrap=not terminal.is_terminal)


def print_hint(terminal: Console, text: str, style: str = "dim") -> None:
    """Print the next step. The line is not wrapped, so a command in the text can be copied."""
    from rich.text import Text

    terminal.print(Text(with_connection_options(text), style=style), soft_wrap=True)


def escape_control(text: str) -> str:
    """Return text with visible escapes in place of control characters. Line ends and tabs stay."""
    return _CONTROL_CHARS.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def one_line(text: str, *, limit: int = 200) -> str:
    """Return text as one line without control characters.

    Args:
        text: The text.
        limit: The maximum length, in characters. Default: 200.

    Returns:
        The line. A line that was cut ends with three dots.
    """
    line = " ".join(escape_control(text).split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
