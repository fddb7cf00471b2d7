"""Commands end with documented codes and print errors in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from pointsman import errors
from pointsman.cli.render.output import (
    Code,
    code_for,
    console,
    escape_control,
    exit_code_of,
    one_line,
    print_error,
    print_hint,
    print_json,
    use_connection_options,
    with_connection_options,
    write_json,
)
from pointsman.engine.operations.dead_letter_replay import NotReplayableError
from pointsman.errors import ConfigurationError
from pointsman_schemas.events import Usage


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigurationError("x"), Code.USAGE),
        (errors.InvalidTokenError("x"), Code.USAGE),
        (errors.NotFoundError("x"), Code.NOT_FOUND),
        (errors.BusUnavailableError("x"), Code.UNREACHABLE),
        (errors.PublishOutcomeUnknownError("x"), Code.UNREACHABLE),
        (errors.ConflictError("x"), Code.FAILED),
        (NotReplayableError("x"), Code.FAILED),
        (errors.InvariantError("x"), None),
        (ValueError("x"), None),
    ],
)
def test_exit_code_follows_from_the_responsible_party(error: Exception, code: Code | None) -> None:
    assert code_for(error) == code


def run(body: object) -> int:
    def function() -> Code | None:
        if isinstance(body, BaseException):
            raise body
        return body  # type: ignore[return-value]

    return exit_code_of(function)


def test_result_of_a_command_is_its_exit_code() -> None:
    assert (run(Code.FAILED), run(None)) == (1, 0)


@pytest.mark.parametrize("stderr", [False, True])
def test_lines_in_a_pipe_are_plain_and_whole_although_colours_are_forced(
    stderr: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")

    console(stderr=stderr).print("[bold]wf_1[/bold] " + "x" * 500)

    assert "".join(capsys.readouterr()) == f"wf_1 {'x' * 500}\n"


def test_error_is_one_line_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(errors.NotFoundError("no such\nthing \x1b[31mhere")) == 3

    out, err = capsys.readouterr()
    assert (out, err) == ("", "pointsman: no such thing \\x1b[31mhere\n")


def test_printed_commands_have_the_connection_options_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        use_connection_options("nats://127.0.0.1:4300", "lab")
        print_error("see `pointsman show wf_1`, or `pointsman import f --namespace other`; `pointsman up` starts one")
        print_hint(console(stderr=True), with_connection_options("`pointsman watch wf_1` shows its events"))
        use_connection_options("nats://ada:secret@127.0.0.1:4300", None)
        print_error("see `pointsman list`")
    finally:
        use_connection_options(None, None)

    at = "--url nats://127.0.0.1:4300"
    assert capsys.readouterr().err.splitlines() == [
        f"pointsman: see `pointsman show wf_1 {at} --namespace lab`, or `pointsman import f --namespace other {at}`; "
        "`pointsman up` starts one",
        f"`pointsman watch wf_1 {at} --namespace lab` shows its events",
        "pointsman: see `pointsman list`",
    ]


def test_only_error_of_a_task_group_is_printed_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ExceptionGroup("group", [ExceptionGroup("inner", [errors.BusUnavailableError("away")])])) == 4

    assert capsys.readouterr().err == "pointsman: away\n"


def test_first_error_of_a_task_group_is_printed_unless_one_is_a_bug(
    capsys: pytest.CaptureFixture[str],
) -> None:
    away = errors.BusUnavailableError("away")

    assert (
        run(ExceptionGroup("group", [away, errors.NotFoundError("nowhere"), ExceptionGroup("inner", [away, away])]))
        == 4
    )
    assert capsys.readouterr().err == "pointsman: away\n"
    with pytest.raises(ExceptionGroup):
        run(ExceptionGroup("group", [away, ExceptionGroup("inner", [away, ZeroDivisionError()])]))


def test_ctrl_c_is_130() -> None:
    assert run(KeyboardInterrupt()) == 130


def test_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run(ZeroDivisionError())


def test_control_characters_cannot_reach_the_terminal() -> None:
    assert escape_control("a\x1b]0;title\x07\x9bm\nb\tc\u202e") == "a\\x1b]0;title\\x07\\x9bm\nb\tc\\x202e"


def test_line_has_a_bounded_length() -> None:
    assert one_line("a \n b" + "c" * 100, limit=10) == "a bcccc..."


def test_json_is_one_document_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"usage": Usage(calls=1), "none": None})

    assert capsys.readouterr().out == (
        '{"usage":{"calls":1,"input_tokens":0,"output_tokens":0,"cost":0.0},"none":null}\n'
    )


@pytest.mark.parametrize("existing", [None, 0o644])
def test_written_json_is_readable_by_its_owner_only(tmp_path: Path, existing: int | None) -> None:
    file = tmp_path / "workflow.json"
    if existing is not None:
        file.write_text("a longer text that was there before")
        file.chmod(existing)

    write_json(str(file), "{}\n")

    assert file.read_text() == "{}\n"
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("target", ["secret.txt", "missing.txt"])
def test_json_is_not_written_through_a_symbolic_link(tmp_path: Path, target: str) -> None:
    (tmp_path / "secret.txt").write_text("untouched")
    link = tmp_path / "workflow.json"
    link.symlink_to(tmp_path / target)

    with pytest.raises(ConfigurationError, match="is a symbolic link, which is not followed"):
        write_json(str(link), "{}\n")

    assert (tmp_path / "secret.txt").read_text() == "untouched"
    assert not (tmp_path / "missing.txt").exists()
