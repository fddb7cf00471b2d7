"""The usual arguments of `supervisor` and `worker` are parsed without Typer, with the same result."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from pointsman.cli.commands import serve
from pointsman.cli.declared import app
from pointsman.cli.plain import fast_command
from pointsman.cli.render.output import Code


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was to be run, instead of running it."""
    calls: list[Any] = []

    def record(name: str) -> Any:
        def instead(target: Any, **options: Any) -> Code:
            calls.append((name, target, options))
            return Code.FAILED

        return instead

    for name in ("supervisor", "worker"):
        monkeypatch.setattr(serve, name, record(name))
    return calls


@pytest.mark.parametrize(
    "arguments",
    [
        ["worker", "team:a"],
        ["worker", "team:a", "other.py:b", "planner", "--with-parent"],
        ["worker", "--url", "nats://a:4222", "team:a", "--namespace=mine", "b"],
        ["worker", "a", "--url=nats://a:4222,nats://b:4222", "--namespace", "n", "--namespace", "m"],
        ["worker", "a", "--url=", "--with-parent", "--with-parent"],
        ["supervisor", "team.py"],
        ["supervisor", "--with-parent", "team:TEAM", "--url", "nats://a:4222"],
    ],
)
def test_plain_arguments_parse_as_typer_parses_them(called: list[Any], arguments: list[str]) -> None:
    run = fast_command(arguments)
    assert run is not None

    code = run()
    done = CliRunner().invoke(app, arguments)

    assert len(called) == 2
    assert called[0] == called[1]
    assert code == done.exit_code == Code.FAILED


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--help"],
        ["--version"],
        ["list"],
        ["worker"],
        ["worker", "--help"],
        ["worker", "a", "-h"],
        ["worker", "a", "--url"],
        ["worker", "a", "--url", "--with-parent"],
        ["worker", "a", "--ulr", "nats://a:4222"],
        ["worker", "a", "--with-parent=yes"],
        ["worker", "--", "a"],
        ["supervisor"],
        ["supervisor", "a", "b"],
        ["--version", "worker", "a"],
    ],
)
def test_all_else_is_left_to_typer(arguments: list[str]) -> None:
    assert fast_command(arguments) is None
