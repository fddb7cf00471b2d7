"""`pointsman chat` in a real terminal shows an answer while it is written. Ctrl-C cancels only the turn."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from support import factory
from support.waiting import until

from pointsman.authoring.agent import agent
from pointsman.authoring.context import Context
from pointsman.settings import Settings
from pointsman_schemas.team import Pipeline, Stage, Team

TEAM = Team(name="crew", strategy=Pipeline(stages=(Stage(agent="a"),)))
WAIT_S = 40.0  # the command starts as a process


@dataclass(slots=True)
class Terminal:
    """A terminal in which a command runs."""

    keyboard: int
    process: asyncio.subprocess.Process
    screen: str = ""

    def read(self) -> None:
        with suppress(OSError):  # the command has ended
            self.screen += os.read(self.keyboard, 65_536).decode(errors="replace")

    def type(self, keys: str) -> None:
        os.write(self.keyboard, keys.encode())

    async def shows(self, text: str, times: int = 1) -> None:
        try:
            await until(lambda: self.screen.count(text) >= times, seconds=WAIT_S)
        except TimeoutError:
            raise AssertionError(f"the terminal shows no {text!r}: {self.screen}") from None


@asynccontextmanager
async def chat(settings: Settings, *options: str) -> AsyncIterator[Terminal]:
    keyboard, screen = pty.openpty()
    loop = asyncio.get_running_loop()
    plain = {"TERM": "dumb", "COLUMNS": "100", "POINTSMAN_URL": settings.url, "POINTSMAN_NAMESPACE": settings.namespace}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pointsman", "chat", "crew", *options, stdin=screen, stdout=screen, stderr=screen,
        env={**os.environ, **plain}, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # for Ctrl-C
    )  # fmt: skip
    os.close(screen)
    terminal = Terminal(keyboard, process)
    loop.add_reader(keyboard, terminal.read)
    try:
        yield terminal
        terminal.type("\x04")
        async with asyncio.timeout(WAIT_S):
            assert await process.wait() == 0, terminal.screen
        terminal.read()  # the last lines, which the loop might not have read before the exit
    finally:
        loop.remove_reader(keyboard)
        os.close(keyboard)
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_chat_shows_an_answer_while_it_is_written_and_continues_after_ctrl_c(settings: Settings) -> None:
    go = asyncio.Event()

    @agent(name="a", description="Writes until it may stop")
    async def write(request: str, context: Context) -> str:
        while not (request == "first" and go.is_set()) and request != "third":
            context.stream_text(f"I write about {request}.\n")
            await asyncio.sleep(0.05)
        earlier = [turn.request for turn in context.history.turns] if context.history else []
        return f"The end of {request} after {earlier}."

    async with factory.team(TEAM, [write], on=settings):
        async with chat(settings) as terminal:
            await terminal.shows("> ")
            terminal.type("first\n")
            await terminal.shows("I write about first.")
            assert "The end" not in terminal.screen
            go.set()
            await terminal.shows("The end of first after [].")
            await terminal.shows("> ", times=2)
            terminal.type("slow\n")
            await terminal.shows("I write about slow.")
            terminal.type("\x03")
            await terminal.shows("cancelled")
            await terminal.shows("> ", times=3)
        found = re.search(r"--thread\s+(\S+?)`", terminal.screen)
        assert found is not None, terminal.screen

        async with chat(settings, "--thread", found[1]) as continued:
            await continued.shows("> first")
            await continued.shows("> slow")
            await continued.shows("> ", times=3)
            continued.type("third\n")
            await continued.shows("The end of third after ['first', 'slow'].")
