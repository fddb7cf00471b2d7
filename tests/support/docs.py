"""Run the code blocks of a document with the offline model.

Each line of a shell block is a separate process."""

from __future__ import annotations

import asyncio
import os
import re
import runpy
import shlex
import signal
import subprocess
import tomllib
from collections.abc import Sequence
from pathlib import Path

from pointsman.client.client import Client
from pointsman.settings import Settings
from support import ready
from support.ready import Ready
from support.waiting import until

__all__ = ["ROOT", "alive", "background", "blocks_of", "end", "run", "run_python"]

ROOT = Path(__file__).parents[2]
_CHANGED: dict[str, str | None] = {
    "OPENAI_API_KEY": None,
    "ANTHROPIC_API_KEY": None,
    "POINTSMAN_MODEL": "offline",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # the docs require pytest without plugins
}


def blocks_of(text: str) -> list[tuple[str, str]]:
    """Yield the language and the body of each block."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


async def run(line: str, folder: Path, settings: Settings) -> None:
    words = shlex.split(line)
    if words[0] == "make":  # only a dry run: `make test` would run this test again
        await asyncio.to_thread(subprocess.check_output, [*words, "-n"], cwd=ROOT, timeout=60)
        return
    if words[0] == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert words[1:] == ["install", ".[embedded,dashboard]"]
        assert {"embedded", "dashboard"} <= extras.keys()
        return
    if words == ["pointsman", "demo"]:
        return  # `test_demo` covers this command
    arguments = words[1:] if words[0] == "python" else ["-m", *words]
    done = await ready.run(arguments, environment=environment(settings), folder=folder, seconds=60)
    assert done.code == 0, f"{line}\n{done.output}{done.errors}"


async def run_python(name: str, blocks: list[tuple[str, str]], folder: Path, settings: Settings) -> None:
    """Run the file `name` if no other block runs it. A file that only defines things runs in this process."""
    stem = name.removesuffix(".py")
    used = re.compile(rf"\b(?:from {stem} import|{stem}:|{stem}\.py)")
    if any(used.search(body) for _, body in blocks if not body.startswith(f"# {name}\n")):
        return
    if "asyncio.run(" in (folder / name).read_text():
        await run(f"python {name}", folder, settings)
    else:
        runpy.run_path(str(folder / name))


async def background(line: str, folder: Path, settings: Settings) -> Ready:
    words = ["-m", *shlex.split(line)]
    with (folder / f"{re.sub(r'[^a-z]+', '-', line)}.log").open("wb") as log:
        return await ready.start(words, log, log, environment=environment(settings), folder=folder)


def environment(settings: Settings) -> dict[str, str]:
    changed = {**os.environ, **_CHANGED, "POINTSMAN_URL": settings.url}
    return {name: value for name, value in changed.items() if value is not None}


async def end(processes: Sequence[Ready]) -> None:
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        try:
            await asyncio.wait_for(process.wait(), 15)
        except TimeoutError:
            process.kill()
            await process.wait()


async def alive(client: Client, names: set[str]) -> None:
    """Wait until the agents and the teams `names` have announced their cards."""

    async def here() -> bool:
        return names <= {card.name for card in await client.bus.registry.cards()}

    await until(here, seconds=60)
