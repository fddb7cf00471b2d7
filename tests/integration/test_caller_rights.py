"""A caller needs only rights to its requests, its controls and the outcomes of its team to submit, wait and cancel."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from support.broker import TIMEOUT_S
from support.permission_server import PermissionServer, Rights, permission_server
from support.waiting import until

from pointsman import connect
from pointsman.bus.jetstream.bus import connect as connect_bus
from pointsman.settings import Settings
from pointsman_schemas.subjects import Subjects

SUBJECTS = Subjects("own")
OUTCOMES = SUBJECTS.team_outcomes("crew")
CALLER = Rights(
    publish=["own.request.crew.>", "own.control.crew.>", f"$JS.API.DIRECT.GET.{SUBJECTS.log_stream}.{OUTCOMES}"],
    subscribe=["_INBOX.ada.>", OUTCOMES, "own.delta.crew.>"],
)
FILE = """
import asyncio

from pointsman import FanOut, Team, agent


@agent(name="echo", description="Repeats the task")
async def echo(task: str) -> str:
    await asyncio.sleep(0 if "fast" in task else 60)
    return task


team = Team(name="crew", agents=["echo"], strategy=FanOut(synthesizer=None))
"""


async def start(url: str, *arguments: str, folder: Path, **environment: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pointsman", *arguments, cwd=folder, stdin=DEVNULL, stdout=PIPE, stderr=PIPE,
        env={**os.environ, "POINTSMAN_URL": url, "POINTSMAN_NAMESPACE": "own", "POINTSMAN_LOG_FORMAT": "json",
             **environment},
    )  # fmt: skip


@asynccontextmanager
async def system(folder: Path) -> AsyncIterator[PermissionServer]:
    """Run a team as `root` on a server that also has the caller `ada`."""
    (folder / "crew.py").write_text(FILE)
    async with permission_server(folder, {"root": None, "ada": CALLER}) as server:
        root = await connect_bus(Settings(url=server.url("root"), namespace="own"), name="root", wait=TIMEOUT_S)
        await root.set_up()
        await root.close()
        services = [
            await start(server.url("root"), kind, "crew.py", folder=folder) for kind in ("supervisor", "worker")
        ]
        try:
            yield server
        finally:
            for process in services:
                process.kill()
                await process.communicate()


async def test_a_caller_submits_waits_and_cancels(tmp_path: Path) -> None:
    async with system(tmp_path) as server:
        settings = Settings(
            url=server.url("ada"), namespace="own", inbox_prefix="_INBOX.ada", provision=False, shutdown_grace=0.5
        )
        async with connect(settings=settings) as client:
            fast = await client.submit("crew", "fast", request_id="first")
            outcome = await fast.outcome(3 * TIMEOUT_S)
            slow = await client.submit("crew", "slow")
            nothing = await slow.cancel("enough")
            cancelled = await slow.outcome(TIMEOUT_S)
            ended = await slow.cancel("again")

    assert (outcome.status, outcome.answer) == ("completed", "fast")
    assert nothing is None
    assert cancelled.status == "cancelled"
    assert ended == cancelled
    refused = server.violations("ada")  # logs and cards, which a caller does not need
    assert all(SUBJECTS.log_stream in line or SUBJECTS.agents_bucket in line for line in refused)


async def test_the_command_submits_without_the_right_to_read_logs(tmp_path: Path) -> None:
    environment = {"POINTSMAN_INBOX_PREFIX": "_INBOX.ada", "POINTSMAN_PROVISION": "false"}
    async with system(tmp_path) as server:

        async def submit(*arguments: str) -> tuple[int | None, str, str]:
            process = await start(server.url("ada"), "submit", "crew", *arguments, folder=tmp_path, **environment)
            out, error = await asyncio.wait_for(process.communicate(), 3 * TIMEOUT_S)
            return process.returncode, out.decode(), error.decode()

        answered = await submit("fast")
        sent = await submit("fast", "--no-wait")
        waiting = await submit("slow", "--timeout", "5")  # hints are printed after 3 seconds
        refused = await until(lambda: server.violations("ada"))

    assert answered[0] == 0, answered
    assert answered[1].strip() == "fast"
    assert sent[0] == 0, sent
    assert sent[2] == ""
    assert waiting[0] == 1, waiting
    assert "permission" not in waiting[2].lower()
    assert all(SUBJECTS.log_stream in line or SUBJECTS.agents_bucket in line for line in refused)
