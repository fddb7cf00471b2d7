"""Output that cannot be written causes no traceback."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import pytest
from rich.console import Console
from support import ready

from pointsman.cli.render.output import Code, console, exit_code_of, print_json, use_ascii_signs, write_json

NOWHERE = ["--url", "nats://127.0.0.1:1"]
FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="this system has no device that is always full")


SIGNS = f"""
from pointsman.cli import app
from pointsman.cli.render import output
app.app = lambda _: output.print_prose(output.console(), {"✓ └ ✗ 日本"!a})
app.main()
"""


FAILS = """
from pointsman import errors
from pointsman.cli import app
def fail(_):
    print("lost output")
    raise {}
app.app = fail
app.main()
"""


def python(code: str, *, stdout: int = subprocess.PIPE, environment: Mapping[str, str]) -> tuple[int, bytes, bytes]:
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=stdout, stderr=subprocess.PIPE, timeout=60, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


async def writing_to(output: IO[bytes], *arguments: str) -> tuple[int, str]:
    """Return the exit code of `pointsman ARGUMENTS` and its standard error."""
    words = ["-m", "pointsman", *arguments]
    environment = {**os.environ, "POINTSMAN_REQUEST_TIMEOUT": "0.2"}
    with TemporaryFile() as errors:
        process = await ready.start(words, output, errors, environment=environment, folder=Path.cwd())
        code = await process.wait()
        errors.seek(0)
        return code, errors.read().decode()


@pytest.fixture
def full() -> Iterator[IO[bytes]]:
    with FULL.open("wb") as file:
        yield file


@needs_full
@pytest.mark.parametrize("arguments", [["doctor", *NOWHERE], ["doctor", "--json", *NOWHERE], ["--version"], ["--help"]])
async def test_full_disk_ends_with_one_line_and_code_1(full: IO[bytes], arguments: list[str]) -> None:
    code, err = await writing_to(full, *arguments)

    assert (code, err.count("\n")) == (1, 1), err
    assert err.startswith("pointsman: the output could not be written: No space left on device")


@pytest.mark.parametrize("arguments", [["doctor", *NOWHERE], ["doctor", "--json", *NOWHERE], ["--version"], ["--help"]])
async def test_closed_pipe_ends_output_quietly(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as output:
        code, err = await writing_to(output, *arguments)

    assert (code, err) == (0, "")


@pytest.mark.skipif(os.name != "posix", reason="this system has no shell that closes an output")
@pytest.mark.parametrize(("arguments", "expected"), [(["--version"], 0), (["doctor", "--json", *NOWHERE], 1)])
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_output_is_no_error(closed: str, arguments: list[str], expected: int) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -m pointsman "$@" {closed}', sys.executable, *arguments],
        capture_output=True, timeout=60, check=False, env={**os.environ, "POINTSMAN_REQUEST_TIMEOUT": "0.2"},
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (expected, b"")


@pytest.mark.parametrize(
    ("error", "expected", "said"),
    [
        ("errors.NotFoundError('gone')", Code.NOT_FOUND, b"pointsman: gone"),
        ("KeyboardInterrupt", Code.INTERRUPTED, b"pointsman: interrupted"),
        ("ZeroDivisionError('a bug')", 1, b"ZeroDivisionError: a bug"),
    ],
)
def test_closed_pipe_does_not_hide_an_error(error: str, expected: int, said: bytes) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        code, _, err = python(FAILS.format(error), stdout=writer, environment={"PYTHONUNBUFFERED": ""})
    finally:
        os.close(writer)

    assert (code, err.rstrip().splitlines()[-1:]) == (expected, [said])


@pytest.mark.parametrize(
    "environment", [{"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "cp1252"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}]
)
def test_sign_that_an_encoding_lacks_is_replaced(environment: dict[str, str]) -> None:
    code, out, err = python(SIGNS, environment=environment)

    assert (code, out, err) == (0, b"+ ` x ??" + os.linesep.encode(), b"")


def in_ascii(monkeypatch: pytest.MonkeyPatch) -> io.BytesIO:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    use_ascii_signs()
    return written


def test_any_other_character_is_a_question_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    written = in_ascii(monkeypatch)

    console().print("├ ✓ Grüße … 日本")
    sys.stdout.flush()

    assert written.getvalue() == b"| + Gr??e . ??\n"


def test_json_loses_nothing_in_an_encoding_that_lacks_some_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    written = in_ascii(monkeypatch)

    print_json({"answer": "Grüße ✓"})
    write_json("-", '{"answer": "Grüße ✓"}\n')
    sys.stdout.flush()

    assert [json.loads(line) for line in written.getvalue().splitlines()] == [{"answer": "Grüße ✓"}] * 2


def test_system_error_unrelated_to_output_keeps_its_traceback() -> None:
    def broken() -> Code:
        raise PermissionError(13, "not yours")

    with pytest.raises(PermissionError):
        exit_code_of(broken)


def test_rich_ends_no_command_on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "closed")

    monkeypatch.setattr(os, "dup2", lambda *_: None)  # both functions would discard the test's own output
    monkeypatch.setattr(os, "open", lambda *_: -1)

    assert exit_code_of(lambda: Console(file=Closed()).print("said")) == Code.OK
