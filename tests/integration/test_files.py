"""Files go from a caller to agents and back on a real broker. The memory for a file of 100 MB is measured."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from support import factory
from support.asgi import request
from support.docs import blocks_of
from support.factory import echo
from support.peak_memory import MeasuredProcess

from pointsman.authoring.agent import agent
from pointsman.authoring.context import Context
from pointsman.bus.jetstream.bus import JetStreamBus
from pointsman.errors import BodyLostError
from pointsman.settings import Settings
from pointsman.web.dashboard import Dashboard
from pointsman_schemas.team import Limits, Pipeline, Stage, Team

STAGES = Pipeline(stages=(Stage(agent="scan"), Stage(agent="book")))
DESK = Team(name="desk", strategy=STAGES, limits=Limits(deadline=40))
ROOT = Path(__file__).parents[2]
_MIB = 1024 * 1024
_FILE_BYTES = 100 * _MIB
_MAX_GROWTH_KIB = 48 * 1024
"""Limit of the additional memory for a file of 100 MiB, compared with a file of 1 MiB."""

_TEAM_FILE = """
from pointsman import Context, Limits, Pipeline, Stage, Team, agent


@agent(name="copy", description="Copies a file")
async def copy(request: str, context: Context) -> int:
    size = 0

    async def counted():
        nonlocal size
        async for piece in context.files["data.bin"].stream():
            size += len(piece)
            yield piece

    await context.files.add("copy.bin", counted())
    return size


team = Team(name="copies", strategy=Pipeline(stages=(Stage(agent="copy"),)), limits=Limits(file_bytes=200_000_000))
"""


@agent(name="scan", description="Returns a page for each file")
async def scan(request: str, context: Context) -> str:
    text = (await context.files["invoice.txt"].read()).decode()
    await context.files.add("page.txt", f"page of {text}".encode())
    return "scanned"


@agent(name="book", description="Books the page")
def book(request: str, context: Context) -> str:
    async def read() -> str:
        return (await context.files["page.txt"].read()).decode()

    return f"booked: {context.run_sync(read())}"


async def test_files_travel_from_the_command_line_to_agents_and_back(
    bus: JetStreamBus, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "invoice.txt").write_text("200 EUR")
    async with factory.team(DESK, [scan, book], on=settings) as client:
        submitted = await _run(settings, "submit", "desk", "book it", "--file", str(tmp_path / "invoice.txt"))
        (summary,) = await client.list("desk")
        listed = await _run(settings, "files", summary.id)
        saved = await _run(settings, "files", summary.id, "--save", str(tmp_path / "out"))
        shown = await _run(settings, "show", summary.id)
        outcome = await (await client.workflow(summary.id)).outcome(20)

        app = (await Dashboard.open(client, settings)).app
        (page,) = outcome.files
        path = f"/api/workflows/{summary.id}/files/{page.sha256}?name=page.txt"
        download = await request(app, "GET", path)
        part = await request(app, "GET", path, range="bytes=8-")
        beyond = await request(app, "GET", path, range="bytes=99-")
        absent = await request(app, "GET", f"/api/workflows/{summary.id}/files/{'0' * 64}")

    assert submitted.stdout.strip() == "booked: page of 200 EUR"
    assert listed.stdout.splitlines() == [
        "invoice.txt text/plain, 7 bytes, of request",
        "page.txt text/plain, 15 bytes, of scan",
    ]
    assert saved.stdout.splitlines() == [str(tmp_path / "out" / name) for name in ("invoice.txt", "page.txt")]
    assert (tmp_path / "out" / "page.txt").read_text() == "page of 200 EUR"
    # The output has references but no contents.
    assert "200 EUR" not in shown.stdout.replace("booked: page of 200 EUR", "")
    assert download.body == b"page of 200 EUR"
    assert download.headers["content-disposition"] == "attachment; filename*=UTF-8''page.txt"
    assert download.headers["x-content-type-options"] == "nosniff"
    assert (part.status, part.body) == (206, b"200 EUR")
    assert (beyond.status, beyond.headers["content-range"]) == (416, "bytes */15")
    assert absent.status == 404


async def test_retention_removes_a_file_with_the_messages_that_refer_to_it(
    bus: JetStreamBus, settings: Settings
) -> None:
    team = Team(name="desk", strategy=Pipeline(stages=(Stage(agent="a"),)))
    async with factory.team(team, [echo("a")], on=settings) as client:
        workflow = await client.submit("desk", "keep it", files=[("a.txt", b"content")])
        await workflow.outcome(20)
        (found,) = await client.files(workflow.id)

        assert [piece async for piece in client.read_file(found.file)] == [b"content"]
        objects = await bus.subjects("artifacts", client.subjects.objects)
        last = await bus.last("artifacts", objects[0])
        assert last is not None
        await bus.trim("artifacts", ">", last.sequence)  # like retention
        with pytest.raises(BodyLostError, match="is not in the object store"):
            await anext(client.read_file(found.file))


async def test_the_blocks_of_the_page_run(bus: JetStreamBus, settings: Settings, tmp_path: Path) -> None:
    (_, shell), (_, of_agent), (_, of_client) = blocks_of((ROOT / "docs" / "files.md").read_text())
    defined: dict[str, Any] = {}
    exec(of_agent, defined)
    exec(of_client, defined)
    team = Team(name="desk", strategy=Pipeline(stages=(Stage(agent="scan"),)))

    async with factory.team(team, [defined["scan"]], on=settings) as client:
        saved = await defined["book"](client, tmp_path)
        outcomes = [await (await client.workflow(each.id)).outcome(20) for each in await client.list("desk")]
        arguments = shell.splitlines()[0].removeprefix("pointsman ").replace('"Book the invoice"', "Book").split()
        arguments[-1] = str(tmp_path / "invoice.pdf")
        ran = await _run(settings, *arguments)

    assert saved == ["invoice.pdf", "invoice.pdf.page.txt"]
    assert [outcome.answer for outcome in outcomes] == [12]
    assert ran.stdout.splitlines()[0] == "12"


@pytest.mark.timeout(300)
async def test_a_hundred_megabytes_are_not_held_in_memory(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "team.py").write_text(_TEAM_FILE)
    small = await _peaks(settings, tmp_path, _MIB)
    large = await _peaks(settings, tmp_path, _FILE_BYTES)

    growth = {name: large[name] - small[name] for name in small}
    assert max(growth.values()) < _MAX_GROWTH_KIB, f"{growth} KiB more: {large} after {small}"


async def _peaks(settings: Settings, folder: Path, size: int) -> dict[str, int]:
    """Submit a file of `size` bytes, which an agent copies, and save both. Return each process's peak in KiB."""
    given, out = folder / f"{size}" / "data.bin", folder / f"{size}" / "out"
    digest = await asyncio.to_thread(_write, given, size)

    def start(name: str, *arguments: str) -> MeasuredProcess:
        return MeasuredProcess(settings, folder / f"{name}-{size}", *arguments, cwd=folder)

    supervisor, worker = start("supervisor", "supervisor", "team.py"), start("worker", "worker", "team.py")
    submit_peak, answer = await start("submit", "submit", "copies", f"copy {size}", "--file", str(given)).ended()
    workflow = json.loads((await _run(settings, "list", "--json", "--limit", "1")).stdout)["id"]
    save_peak, _ = await start("save", "files", workflow, "--save", str(out)).ended()
    for process in (worker, supervisor):
        process.terminate()
    worker_peak, _ = await worker.ended()
    await supervisor.ended()

    assert answer.strip() == str(size)
    for name in ("data.bin", "copy.bin"):
        assert await asyncio.to_thread(_digest, out / name) == digest
    return {"submit": submit_peak, "save": save_peak, "worker": worker_peak}


def _write(path: Path, size: int) -> str:
    path.parent.mkdir()
    with path.open("wb") as file:
        for _ in range(size // _MIB):
            file.write(os.urandom(_MIB))
    return _digest(path)


async def _run(settings: Settings, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pointsman", *arguments]
    placed = ["--url", settings.url, "--namespace", settings.namespace]
    run = await asyncio.to_thread(subprocess.run, [*command, *placed], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run


def _digest(path: Path) -> str:
    digest = sha256()
    with path.open("rb") as data:
        while piece := data.read(_MIB):
            digest.update(piece)
    return digest.hexdigest()


async def test_a_forgotten_workflow_leaves_no_file_and_others_keep_theirs(
    bus: JetStreamBus, settings: Settings
) -> None:
    files = [("invoice.txt", b"200 EUR")]
    async with factory.team(DESK, [scan, book], on=settings) as client:
        gone = await client.submit("desk", "one", files=files)
        await gone.outcome(20)
        stays = await client.submit("desk", "two", files=files)
        await stays.outcome(20)
        kept = await client.files(stays.id)
        forgotten = await client.files(gone.id)

        done = await client.operations.forget(gone.id)

        assert done.objects == 2
        for each in forgotten:
            with pytest.raises(BodyLostError, match="is not in the object store"):
                await anext(client.read_file(each.file))
        read = [b"".join([piece async for piece in client.read_file(each.file)]) for each in kept]
    assert read == [b"200 EUR", b"page of 200 EUR"]
