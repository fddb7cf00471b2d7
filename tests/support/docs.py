"""Running the code blocks of a document: each line of a shell block is a process of its own, with the offline model."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

from pointsman.client import Client
from pointsman.settings import Settings
from support.system import until

__all__ = ["ROOT", "alive", "background", "blocks_of", "end", "run"]

ROOT = Path(__file__).parents[2]


def blocks_of(text: str) -> list[tuple[str, str]]:
    """The language and the body of each block."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


async def run(line: str, folder: Path, settings: Settings) -> None:
    words = shlex.split(line)
    if words[0] == "make":
        words = ["make", "-n", "-C", str(ROOT), *words[1:]]  # what it would do; doing it is what runs this test
    if words[0] == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert words[1:] == ["install", ".[embedded,dashboard]"]
        assert {"embedded", "dashboard"} <= extras.keys()
        return
    process = await asyncio.create_subprocess_exec(
        *command(words),
        cwd=folder,
        env=environment(settings),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, f"{line}\n{output.decode()}"


def background(line: str, folder: Path, settings: Settings) -> subprocess.Popen[bytes]:
    log = (folder / f"{re.sub(r'[^a-z]+', '-', line)}.log").open("wb")
    with log:
        return subprocess.Popen(
            command(shlex.split(line)), cwd=folder, env=environment(settings), stdout=log, stderr=log
        )


def command(words: list[str]) -> list[str]:
    return [sys.executable, "-m", *words] if words[0] == "pointsman" else words


def environment(settings: Settings) -> dict[str, str]:
    hidden = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
    inherited = {name: value for name, value in os.environ.items() if name not in hidden}
    return {**inherited, "POINTSMAN_URL": settings.url, "POINTSMAN_MODEL": "offline"}


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)


async def alive(client: Client, names: set[str]) -> None:
    async def here() -> bool:
        return names <= {card.name for card in await client.agents()}

    await until(here, seconds=60)
