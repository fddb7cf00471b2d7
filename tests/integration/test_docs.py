"""Every code block of the README runs, in its order, in one place, against one running system.

A Python block is saved under the name in its first line and run, unless something else runs it. A shell block is run
line by line; a line that ends in `&` goes on in the background. What would build an environment is checked, not run:
`make` targets must exist, and what `pip` installs must be an extra of this project.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.system import until

from pointsman.bus.embedded import EmbeddedBroker
from pointsman.client import Client, connect
from pointsman.settings import Settings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


@pytest.fixture
async def settings(tmp_path: Path) -> AsyncIterator[Settings]:
    """A broker with the default namespace, for this test alone."""
    async with EmbeddedBroker(tmp_path / "broker") as broker:
        yield Settings(url=broker.url)


@pytest.fixture
async def client(settings: Settings, tmp_path: Path) -> AsyncIterator[Client]:
    """A client of a system with the processes that `pointsman up` starts."""
    up = [
        _background(f"pointsman {part}", tmp_path, settings)
        for part in (
            "supervisor pointsman_agents.customer_service",
            *(f"worker pointsman_agents.{role}" for role in ("planner", "synthesizer")),
            *(f"worker pointsman_agents.customer_service.{name}" for name in ("billing", "technical", "account")),
        )
    ]
    try:
        async with connect(settings=settings) as connected:
            await _alive(connected, {"planner", "synthesizer", "billing", "technical", "account"})
            yield connected
    finally:
        _end(up)


@pytest.mark.timeout(180)
async def test_every_block_of_the_readme_runs(client: Client, settings: Settings, tmp_path: Path) -> None:
    background: list[subprocess.Popen[bytes]] = []
    ran = 0
    shell = "\n".join(body for language, body in BLOCKS if language == "sh")
    try:
        for language, body in BLOCKS:
            if language == "text":
                continue
            if language == "python":
                name = body.splitlines()[0].removeprefix("# ")
                (tmp_path / name).write_text(body)
                if name not in shell:
                    await _run(f"{sys.executable} {name}", tmp_path, settings)
            else:
                assert language == "sh", f"nobody runs a block of {language}"
                for line in body.splitlines():
                    if line.endswith("&"):
                        background.append(_background(line[:-1], tmp_path, settings))
                    elif line.startswith("pointsman") and background:
                        await _alive(client, {"translator"})
                        await _run(line, tmp_path, settings)
                    else:
                        await _run(line, tmp_path, settings)
            ran += 1
        await _alive(client, {"translator"})
        workflow = await client.submit("helpdesk", "Please give me a translation into another language: hello world")
        outcome = await workflow.outcome(30)
    finally:
        _end(background)

    assert ran == 8
    assert "translator" in {task.agent for task in outcome.tasks}


def test_the_readme_names_every_setting_with_its_default() -> None:
    rows = dict(re.findall(r"^\| (`POINTSMAN_[^|]*) \|([^|]*)\|", README, re.MULTILINE))
    shown = {name: default for names, default in rows.items() for name in re.findall(r"POINTSMAN_\w+", names)}

    for name, field in Settings.model_fields.items():
        default = "" if field.default is None else f"`{field.default:g}`" if isinstance(field.default, float) else None
        shown_as = str(field.default).lower() if isinstance(field.default, bool) else field.default
        expected = f"`{shown_as}`" if default is None else default
        assert shown.pop(f"POINTSMAN_{name.upper()}").strip() == expected, name
    assert not shown


async def _run(line: str, folder: Path, settings: Settings) -> None:
    words = shlex.split(line)
    if words[0] == "make":
        words = ["make", "-n", "-C", str(ROOT), *words[1:]]  # what it would do; doing it is what runs this test
    if words[0] == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert words[1:] == ["install", ".[embedded,dashboard]"]
        assert {"embedded", "dashboard"} <= extras.keys()
        return
    process = await asyncio.create_subprocess_exec(
        *_command(words),
        cwd=folder,
        env=_environment(settings),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, f"{line}\n{output.decode()}"


def _background(line: str, folder: Path, settings: Settings) -> subprocess.Popen[bytes]:
    log = (folder / f"{re.sub(r'[^a-z]+', '-', line)}.log").open("wb")
    with log:
        return subprocess.Popen(
            _command(shlex.split(line)), cwd=folder, env=_environment(settings), stdout=log, stderr=log
        )


def _command(words: list[str]) -> list[str]:
    return [sys.executable, "-m", *words] if words[0] == "pointsman" else words


def _environment(settings: Settings) -> dict[str, str]:
    hidden = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
    inherited = {name: value for name, value in os.environ.items() if name not in hidden}
    return {**inherited, "POINTSMAN_URL": settings.url, "POINTSMAN_MODEL": "offline"}


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)


async def _alive(client: Client, names: set[str]) -> None:
    async def here() -> bool:
        return names <= {card.name for card in await client.agents()}

    await until(here, seconds=60)
