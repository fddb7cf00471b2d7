"""Invalid arguments end a command with exit code 2 and one line, before any connection to the broker."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pointsman.cli.app import app
from pointsman.cli.arguments import parse_time
from pointsman.errors import ConfigurationError

REFUSED = "an argument is not UTF-8: the byte 0xe9 in 'order-\\xe9'; give the argument as UTF-8 text"


@pytest.mark.parametrize(
    "arguments",
    [
        ["submit", "crew", "hello", "--request-id", "order-\udce9"],
        ["submit", "crew", "hello", "--correlation-id", "order-\udce9"],
        ["submit", "crew", "order-\udce9"],
        ["submit", "crew", "two", "order-\udce9"],
        ["submit", "order-\udce9", "hello"],
        ["cancel", "wf_1", "--reason", "order-\udce9"],
        ["reject", "wf_1-1", "--reason", "order-\udce9"],
        ["show", "order-\udce9"],
        ["list", "--team", "order-\udce9"],
        ["agents", "--wait", "order-\udce9"],
        ["dead", "list", "--origin", "order-\udce9"],
        ["dead", "replay", "order-\udce9"],
        ["worker", "order-\udce9"],
        ["list", "--namespace", "order-\udce9"],
    ],
    ids=lambda arguments: " ".join(arguments).replace("\udce9", "*"),
)
def test_argument_that_is_not_utf8_is_refused_in_one_line(arguments: list[str]) -> None:
    ran = CliRunner().invoke(app, arguments)

    assert (ran.exit_code, ran.stdout, ran.stderr) == (2, "", f"pointsman: {REFUSED}\n")


@pytest.mark.skipif(os.name != "posix", reason="only POSIX has arguments of arbitrary bytes")
def test_bytes_of_the_shell_that_are_not_utf8_are_refused() -> None:
    command = [os.fsencode(sys.executable), b"-m", b"pointsman", b"cancel", b"wf_1", b"--reason", b"order-\xe9"]

    ran = subprocess.run(command, capture_output=True, timeout=60, check=False)

    assert (ran.returncode, ran.stdout, ran.stderr.decode()) == (2, b"", f"pointsman: {REFUSED}\n")


@pytest.mark.skipif(
    os.name != "posix" or sys.platform == "darwin", reason="this system has no file names of arbitrary bytes"
)
def test_file_may_have_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    file = os.fsencode(tmp_path) + b"/order-\xe9.json"
    Path(os.fsdecode(file)).write_bytes(b"{}")

    ran = subprocess.run(
        [os.fsencode(sys.executable), b"-m", b"pointsman", b"replay", file],
        capture_output=True,
        timeout=60,
        check=False,
    )

    assert ran.returncode == 2
    assert b"not UTF-8" not in ran.stderr
    assert ran.stderr.count(b"\n") == 1


@pytest.mark.parametrize("id", ["", " ", "\t\n"])
def test_empty_request_id_is_refused(id: str) -> None:
    ran = CliRunner().invoke(app, ["submit", "crew", "hello", "--request-id", id])

    assert ran.exit_code == 2
    assert ran.stderr == "pointsman: --request-id is empty; give an id, or leave out the option for a new id\n"


def test_submit_without_a_request_explains_the_ways_to_give_it() -> None:
    ran = CliRunner().invoke(app, ["submit", "crew"])

    assert ran.exit_code == 2
    assert ran.stderr == (
        "pointsman: TEXT is missing: pointsman submit crew 'your request'; or give --input-json, or pipe the "
        "request in: pointsman submit crew -\n"
    )


@pytest.mark.parametrize("seconds", ["0", "-1", "1e-9", "1e308", "inf", "-inf", "nan"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["submit", "crew", "hello", "--timeout"],
        ["submit", "crew", "hello", "--deadline"],
        ["agents", "--timeout"],
        ["mcp", "crew", "--timeout"],
    ],
    ids=" ".join,
)
def test_duration_that_cannot_be_waited_for_is_refused(arguments: list[str], seconds: str) -> None:
    ran = CliRunner().invoke(app, [*arguments, seconds])

    assert ran.exit_code == 2
    assert "give between 0.001 and 315360000 seconds (10 years)" in ran.stderr


def test_time_is_an_age_or_a_point_in_time() -> None:
    now = datetime.now(UTC)

    assert abs((now - (parse_time("90m") or now)) - timedelta(minutes=90)) < timedelta(seconds=10)
    assert parse_time(" 2026-01-31T12:00:00Z ") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert (parse_time("2026-01-31") or now).tzinfo is not None
    assert parse_time(None) is None


@pytest.mark.parametrize("text", ["yesterday", "", "2 h", "1e9d", "99999999999d", "2026-13-01", "-2h"])
def test_any_other_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="give an age such as 90s, 15m, 2h or 3d, or a time such as 2026"):
        parse_time(text)
