"""Wrong usage is reported at once with exit code 2 and loads nothing heavy."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from inspect import getdoc

import pytest
from typer.testing import CliRunner

from pointsman.cli.app import COMMANDS as COMMAND_TABLE
from pointsman.cli.app import Entry, Group, app, load_function
from pointsman.settings import Settings

COMMANDS = [
    "demo", "up", "supervisor", "worker", "submit", "watch", "list", "show", "trace", "cancel", "agents", "doctor",
    "dashboard", "export", "import", "replay", "questions", "answer", "approve", "reject", "eval", "mcp",
    "provision",
]  # fmt: skip
LETTERS = ["list", "show", "replay", "discard"]
NOWHERE = ["--url", "nats://127.0.0.1:1"]


def run(*arguments: str, input: str | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, arguments, input=input)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("arguments", [[name] for name in COMMANDS] + [["dead", name] for name in LETTERS])
def test_every_command_has_help_and_speaks_json_unless_it_serves(arguments: list[str]) -> None:
    code, out, _ = run(*arguments, "--help")

    assert code == 0
    assert ("--json" in out) == (arguments[0] not in ("supervisor", "worker", "dashboard", "mcp"))


@pytest.mark.parametrize("arguments", [(), ("dead",)])
def test_help_describes_each_command_in_full(arguments: tuple[str, ...]) -> None:
    lines = run(*arguments, "--help")[1].partition("Commands:")[2].splitlines()

    names = {line.split()[0] for line in lines if line.startswith("  ")}
    assert names >= set(LETTERS if arguments else COMMANDS)
    assert not [line for line in lines if line.endswith("...")]


def test_first_sentence_about_each_command_fits_a_terminal_of_80_columns() -> None:
    def too_long(table: Mapping[str, Entry | Group]) -> list[str]:
        room = 78 - 6 - max(map(len, table))  # the width of the column for sentences in the help
        found = [each.summary for each in table.values() if len(each.summary.split(". ")[0]) > room]
        return found + [
            each for group in table.values() if isinstance(group, Group) for each in too_long(group.commands)
        ]

    assert too_long(COMMAND_TABLE) == []


def test_help_names_the_exit_codes() -> None:
    assert "3 not found" in run("--help")[1]


def test_worker_gets_each_team_that_shares_its_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[list[str], list[str]]] = []

    async def work(targets: list[str], settings: Settings, *, teams: list[str]) -> int:
        seen.append((targets, list(teams)))
        return 0

    monkeypatch.setattr("pointsman.app.work", work)

    assert run("worker", "a.py", "b.py", "--team", "crew", "--team", "office")[0] == 0
    assert run("worker", "a.py")[0] == 0
    assert seen == [(["a.py", "b.py"], ["crew", "office"]), (["a.py"], [])]


def test_version_is_the_installed_version() -> None:
    assert run("--version") == (0, version("pointsman") + "\n", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["submit"],
        ["submit", "crew"],
        ["submit", "crew", ""],
        ["submit", "crew", "text", "--input-json", "{}"],
        ["submit", "crew", "--input-json", "{broken"],
        ["submit", "crew", "--input-json", "[1]"],
        ["submit", "crew", "--input-json", '{"a": NaN}'],
        ["submit", "crew", "two", "words"],
        ["submit", "crew", "text", "--timeout", "0"],
        ["submit", "crew", "text", "--timeout", "-1"],
        ["submit", "crew", "text", "--deadline", "0"],
        ["up", "--port", "99999"],
        ["dashboard", "--token", "short", *NOWHERE],
        ["dashboard", "--host", "0.0.0.0", *NOWHERE],
        ["list", "--url", "http://127.0.0.1:8400"],
        ["list", "--limit", "0"],
        ["supervisor", "no.such.module"],
        ["worker", "no_such_file.py"],
        ["doctor", "no.such.module"],
        ["list", "--namespace", "not a name"],
        ["dead", "replay"],
        ["dead", "discard", "--yes"],
        ["dead", "replay", "some-id", "--workflow", "wf_1"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2_before_any_call(arguments: list[str]) -> None:
    code, _, err = run(*arguments)

    assert code == 2
    assert err


@pytest.mark.parametrize("command", ["doctor", "list", "agents", "up"])
def test_unreadable_setting_ends_with_code_2_and_one_line(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_MODEL_LIMITS", "foo")

    code, out, err = run(command)

    assert (code, out) == (2, "")
    assert err.startswith("pointsman: POINTSMAN_MODEL_LIMITS is 'foo': not JSON")
    assert err.count("\n") == 1


def test_empty_pipe_is_no_request() -> None:
    assert run("submit", "crew", "-", input="  \n")[0] == 2


def test_unquoted_request_is_shown_in_quotes() -> None:
    assert run("submit", "crew", "hello", "the", "world's")[2] == (
        """pointsman: TEXT is 3 words; put the text in quotes: pointsman submit crew 'hello the world'"'"'s'\n"""
    )


def test_unquoted_request_with_a_leading_dash_is_shown_after_a_double_dash() -> None:
    assert run("submit", "crew", "--", "-5", "degrees?")[2] == (
        "pointsman: TEXT is 2 words; put the text in quotes, and options before --: "
        "pointsman submit crew -- '-5 degrees?'\n"
    )


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["submit", "crew", "-text that begins so"], "submit ... -- TEXT"),
        (["submit", "crew", "--text that begins so"], "submit ... -- TEXT"),
        (["submit", "crew", "-5 degrees"], "submit ... -- TEXT"),
        (["export", "wf_1", "-5"], "export ... -- FILE"),
        (["dead", "replay", "-5"], "dead replay ... -- ID"),
    ],
)
def test_unknown_option_like_text_is_shown_after_a_double_dash(arguments: list[str], shown: str) -> None:
    code, _, err = run(*arguments)

    assert code == 2
    assert "if this is text that begins with a dash, put it last, after --" in err
    assert err.endswith(f"{shown}\n")


@pytest.mark.parametrize("arguments", [["list", "-5"], ["show", "wf_1", "--jsn"]], ids=" ".join)
def test_mistyped_option_is_not_taken_for_text(arguments: list[str]) -> None:
    code, _, err = run(*arguments)

    assert code == 2
    assert "after --" not in err


@pytest.mark.parametrize("arguments", [["submit", "crew", "-"], ["submit", "crew", "--input-json", "-"]])
def test_empty_pipe_is_an_error(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments, input=b"abc\xff\x00")

    assert result.exit_code == 2
    assert result.stderr.startswith("pointsman: standard input is not UTF-8: byte 3 is 0xff")


def test_byte_order_mark_before_a_text_is_removed() -> None:
    result = CliRunner().invoke(app, ["submit", "crew", "--input-json", "-"], input=b"\xef\xbb\xbf[1]")

    assert result.stderr == "pointsman: --input-json is [1]; give a JSON object\n"


@pytest.mark.parametrize("arguments", [["list"], ["agents"], ["submit", "crew", "x"], ["dead", "list"], ["show", "wf"]])
def test_missing_broker_ends_with_code_4_and_one_line(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POINTSMAN_REQUEST_TIMEOUT", "0.2")

    code, out, err = run(*arguments, *NOWHERE)

    assert (code, out) == (4, "")
    assert err.startswith("pointsman: ")
    assert err.count("\n") == 1
    assert "POINTSMAN_URL" in err
    assert "`pointsman up`" in err


def test_port_in_use_is_reported_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.getsockname()[1]
        code, out, err = run("up", "--port", str(number))

    assert (code, out) == (2, "")
    assert err == f"pointsman: port {number} is in use; give another --port, or 0 for a free port\n"


def test_doctor_reports_what_is_wrong_and_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_REQUEST_TIMEOUT", "0.2")
    monkeypatch.setenv("POINTSMAN_MODEL", "openai:some-model")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)

    code, out, _ = run("doctor", "--json", *NOWHERE)

    checks = {check["name"]: check for check in map(json.loads, out.splitlines())}
    assert code == 1
    assert {name: check["ok"] for name, check in checks.items()} == {
        "model": False, "telemetry": True, "broker": False,
    }  # fmt: skip
    assert "OPENAI_API_KEY" in checks["model"]["advice"]


def test_model_without_a_provider_fails_with_the_valid_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_REQUEST_TIMEOUT", "0.2")
    monkeypatch.setenv("POINTSMAN_MODEL", "gpt")

    model = json.loads(run("doctor", "--json", *NOWHERE)[1].splitlines()[0])

    assert (model["name"], model["ok"]) == ("model", False)
    assert "'gpt'" in model["finding"]
    assert "openai:NAME, anthropic:NAME or offline" in model["advice"]


@pytest.mark.parametrize("endpoint", ["localhost:4318", "http://[::1", "http://localhost:otel"])
def test_endpoint_that_is_no_url_fails_and_is_shown(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_REQUEST_TIMEOUT", "0.2")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)

    telemetry = json.loads(run("doctor", "--json", *NOWHERE)[1].splitlines()[1])

    assert (telemetry["name"], telemetry["ok"]) == ("telemetry", False)
    assert telemetry["finding"] == f"the endpoint is {endpoint!r}"
    assert "http://127.0.0.1:4318" in telemetry["advice"]


@pytest.mark.parametrize("name", [*COMMANDS, *(f"dead {name}" for name in LETTERS)])
def test_table_has_the_first_line_of_each_docstring(name: str) -> None:
    entry = entry_of(name)

    assert (getdoc(load_function(entry)) or "").splitlines()[0] == entry.summary


def entry_of(name: str) -> Entry:
    table: Mapping[str, Entry | Group] = COMMAND_TABLE
    *groups, command = name.split()
    for group in groups:
        table = table[group].commands  # type: ignore[union-attr]
    entry = table[command]
    assert isinstance(entry, Entry)
    return entry


@pytest.mark.parametrize(
    ("arguments", "imported"),
    [
        ([], []),
        (["--help"], []),
        (["dead", "--help"], []),
        (["lst"], []),
        (["list", "--help"], ["workflows"]),
        (["eval", "--help"], ["evaluate"]),
        (["worker"], ["serve"]),
    ],
)
def test_only_the_module_of_the_called_command_is_imported(arguments: list[str], imported: list[str]) -> None:
    code = f"""
import sys
sys.argv = ["pointsman", *{arguments}]
from pointsman.cli.app import main
try:
    main()
except SystemExit:
    prefix = "pointsman.cli.commands."
    print(*(name.removeprefix(prefix) for name in sys.modules if name.startswith(prefix)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)

    assert done.stderr.splitlines()[-1].split() == imported
