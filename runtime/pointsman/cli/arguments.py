"""Define the arguments and options that several commands share, and read standard input."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import JsonValue

from pointsman.errors import ConfigurationError
from pointsman_schemas.strict_json import parse_json

__all__ = [
    "Deadline",
    "Files",
    "Json",
    "Namespace",
    "OfWorkflow",
    "QuestionId",
    "Since",
    "Timeout",
    "Until",
    "Url",
    "WithParent",
    "WorkflowId",
    "address_option",
    "check_seconds",
    "exit_with_parent_if",
    "parse_request",
    "parse_start",
    "parse_time",
    "port_option",
    "read_stdin",
]

_MIN_SECONDS = 0.001  # a shorter wait is useless, because no answer can arrive in this time
_MAX_SECONDS = 315_360_000.0  # ten years of 365 days, the longest deadline of a request
_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def check_seconds(value: float | None) -> float | None:
    """Check a duration in seconds.

    Args:
        value: Seconds, or None.

    Returns:
        The value.

    Raises:
        typer.BadParameter: The value is not a number, or not between 0.001 and 315,360,000.
    """
    if value is not None and not _MIN_SECONDS <= value <= _MAX_SECONDS:  # NaN is refused, too
        bounds = f"{_MIN_SECONDS:g} and {_MAX_SECONDS:.0f} seconds (10 years)"
        raise typer.BadParameter(f"{value:g} s; give between {bounds}")
    return value


Url = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="NATS servers, separated by commas. Default: POINTSMAN_URL, or nats://127.0.0.1:4222.",
        show_default=False,
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Namespace: the prefix of all subjects and streams. Default: POINTSMAN_NAMESPACE, or pointsman.",
        show_default=False,
    ),
]


def address_option(setting: str) -> Any:
    """Return the option of the address on which a server listens.

    Args:
        setting: The setting with the default.

    Returns:
        The option.
    """
    return typer.Option(
        metavar="ADDRESS", help=f"Address to listen on. Default: {setting}, or 127.0.0.1.", show_default=False
    )


def port_option(default: str, meaning: str = "Port to listen on") -> Any:
    """Return the option of a port.

    Args:
        default: The default, as text for the help.
        meaning: The use of the port, as text for the help.

    Returns:
        The option.
    """
    return typer.Option(
        min=0, max=65_535, help=f"{meaning}; 0 for a free port. Default: {default}.", show_default=False
    )


Json = Annotated[bool, typer.Option("--json", help="Print JSON, one document on each line.")]
WithParent = Annotated[bool, typer.Option("--with-parent", hidden=True)]  # the child exits when its parent has exited

Deadline = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Time limit of the workflow, in seconds. Default: the limit of the team, which is also the maximum.",
        callback=check_seconds,
        show_default=False,
    ),
]
Files = Annotated[
    list[Path] | None,
    typer.Option("--file", metavar="FILE", help="A file for the agents. Repeat the option for several files."),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Stop waiting after this many seconds. The workflow continues. Default: no limit.",
        callback=check_seconds,
        show_default=False,
    ),
]
WorkflowId = Annotated[
    str, typer.Argument(metavar="WORKFLOW", help="The id of the workflow, wf_..., or a unique beginning of the id.")
]
OfWorkflow = Annotated[
    str | None,
    typer.Option(
        "--workflow", metavar="ID", help="Use only this workflow. Default: all workflows.", show_default=False
    ),
]
Since = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="The earliest time: an age such as 90s, 15m, 2h or 3d, or a time such as 2026-01-31T12:00:00Z. "
        "Default: no limit.",
        show_default=False,
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="The latest time, in the form of --since. Default: no limit.", show_default=False
    ),
]
QuestionId = Annotated[str, typer.Argument(metavar="ID", help="The id that `pointsman questions` shows.")]


def parse_time(text: str | None) -> datetime | None:
    """Read the value of `--since` or `--until`.

    Args:
        text: An age such as 90s, 15m, 2h or 3d, or an ISO 8601 time, which is local without a zone; or None.

    Returns:
        The time, with a zone; None for None.

    Raises:
        ConfigurationError: The text is neither an age nor a time.
    """
    if text is None:
        return None
    try:
        if (age := _AGE.fullmatch(text.strip())) is not None:
            return datetime.now(UTC) - timedelta(**{_UNITS[age[2]]: float(age[1])})
    except OverflowError:
        raise ConfigurationError(_time_fault(text, "an age")) from None
    return _parse_point_in_time(text, "an age")


def _parse_point_in_time(text: str, other: str) -> datetime:
    try:
        parsed = datetime.fromisoformat(text.strip())
        return parsed if parsed.tzinfo else parsed.astimezone()
    except (ValueError, OverflowError):
        raise ConfigurationError(_time_fault(text, other)) from None


def _time_fault(text: str, other: str) -> str:
    return f"the time is {text[:40]!r}; give {other} such as 90s, 15m, 2h or 3d, or a time such as 2026-01-31T12:00:00Z"


def parse_start(text: str | None) -> datetime | None:
    """Read the value of `--at`.

    Args:
        text: A delay such as 90s, 15m, 2h or 3d, or an ISO 8601 time, which is local without a zone; or None.

    Returns:
        The time, with a zone; None for None.

    Raises:
        ConfigurationError: The text is neither a delay nor a time.
    """
    if text is None:
        return None
    if (delay := _AGE.fullmatch(text.strip())) is not None:
        try:
            return datetime.now(UTC) + timedelta(**{_UNITS[delay[2]]: float(delay[1])})
        except OverflowError:
            raise ConfigurationError(f"the delay {text[:40]!r} is too long; give a shorter one") from None
    return _parse_point_in_time(text, "a delay")


def parse_request(command: str, team: str, words: Sequence[str], input_json: str | None) -> str | dict[str, JsonValue]:
    """Read the request of a command from its words, from JSON or from standard input.

    Args:
        command: The command, for the error messages.
        team: The team, for the error messages.
        words: The words of the request.
        input_json: The request as JSON, or None.

    Returns:
        The request.

    Raises:
        ConfigurationError: The request is missing, given twice or not valid.
    """
    if words and input_json is not None:
        raise ConfigurationError(
            "the request is given twice, as TEXT and with --input-json; remove TEXT or --input-json"
        )
    if input_json is not None:
        value = parse_json((read_stdin() if input_json == "-" else input_json).encode())
        if not isinstance(value, dict):
            raise ConfigurationError(f"--input-json is {json.dumps(value)[:80]}; give a JSON object")
        return value
    if not words:
        raise ConfigurationError(
            f"TEXT is missing: pointsman {command} {shlex.quote(team)} 'your request'; or give --input-json, or pipe "
            f"the request in: pointsman {command} {shlex.quote(team)} -"
        )
    if len(words) > 1:  # the shell has split the text
        options, dashes = (", and options before --", "-- ") if words[0].startswith("-") else ("", "")
        quoted = f"pointsman {command} {shlex.quote(team)} {dashes}{shlex.quote(' '.join(words))}"
        raise ConfigurationError(f"TEXT is {len(words)} words; put the text in quotes{options}: {quoted}")
    text = read_stdin().strip() if words[0] == "-" else words[0]
    if not text:
        raise ConfigurationError("the request is empty; give TEXT, or pipe it in with -")
    return text


def exit_with_parent_if(wanted: bool) -> None:
    """Let this process exit when its parent has exited.

    Args:
        wanted: The value of `--with-parent`.
    """
    if wanted:
        from pointsman.util.child_processes import exit_with_parent

        exit_with_parent()


def read_stdin() -> str:
    """Read standard input as UTF-8, even if the terminal has another encoding. Skip a byte order mark.

    Returns:
        The text.

    Raises:
        ConfigurationError: The input is not UTF-8.
    """
    data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"standard input is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}; send UTF-8 text, or a "
            "reference to the data"
        ) from None
