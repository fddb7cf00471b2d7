"""The command batch against a real broker: its record, Ctrl-C, and its memory."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.docs import blocks_of
from support.lines import documents_of
from support.peak_memory import MeasuredProcess
from support.sizes import SIZE, sized
from support.waiting import until

from pointsman.bus.jetstream.bus import JetStreamBus
from pointsman.client.client import Client
from pointsman.engine.log.requests import workflow_of_request
from pointsman.ports.bus import StoredMessage
from pointsman.settings import Settings
from pointsman_schemas.envelope import Envelope, decode, encode
from pointsman_schemas.events import Outcome, Request, Usage
from pointsman_schemas.strict_json import dump, parse
from pointsman_schemas.subjects import Subjects

ROOT = Path(__file__).parents[2]
_START_S = 30.0  # seconds until a process has started and processed its first rows
_MAX_GROWTH_KIB_PER_ROW = 1.6
"""Limit of memory for each additional row of a batch. It is less than a row with its result, so rows are not stored."""


class FakeTeam:
    """A team that answers each request at once, without a workflow. It holds requests with `hold` until `let_go`."""

    def __init__(self, bus: JetStreamBus, settings: Settings) -> None:
        self.bus = bus
        self.subjects = Subjects(settings.namespace)
        self.requests: list[str] = []
        self.let_go = asyncio.Event()

    async def answer(self, stored: StoredMessage) -> None:
        envelope, body = decode(stored.headers, stored.body)
        request = str(parse(Request, body).input)
        self.requests.append(envelope.id if envelope else "")
        if "hold" in request:
            await self.let_go.wait()
        workflow, now, team = workflow_of_request(stored), datetime.now(UTC), stored.subject.split(".")[2]
        outcome = Outcome(
            workflow_id=workflow, team=team, status="failed" if "bad" in request else "completed", answer=request,
            reason="it is bad" if "bad" in request else "", correlation_id="c", trace_id="a" * 32, started_at=now,
            ended_at=now, elapsed=0, sequential=0, usage=Usage(calls=1, cost=0.25),
        )  # fmt: skip
        headers = encode(
            Envelope(id=f"{workflow}-outcome", type=Outcome.event_type, source="/fake", time=now, subject=workflow)
        )
        await self.bus.publish(self.subjects.outcome(team, workflow), dump(outcome), headers)


@asynccontextmanager
async def fake_team(bus: JetStreamBus, settings: Settings) -> AsyncIterator[FakeTeam]:
    team = FakeTeam(bus, settings)
    tasks: set[asyncio.Task[None]] = set()

    async def on_request(stored: StoredMessage) -> None:
        task = asyncio.ensure_future(team.answer(stored))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async with await bus.listen(f"{settings.namespace}.request.>", on_request):
        yield team
    for task in tasks:
        task.cancel()


WAIT_S = 60.0  # seconds until a command must have ended, even on a busy machine


def started(settings: Settings, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pointsman", "batch", "desk", *arguments]
    placed = ["--url", settings.url, "--namespace", settings.namespace]
    # Restore SIGINT, because a shell that runs the tests in the background ignores SIGINT for all its children.
    return subprocess.Popen(
        [*command, *placed],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


async def finished(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    try:
        out, err = await asyncio.to_thread(process.communicate, timeout=WAIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out.decode(), err.decode()


async def test_rows_become_results_and_errors_are_reported_by_row(
    bus: JetStreamBus, settings: Settings, tmp_path: Path
) -> None:
    file = tmp_path / "requests.csv"
    file.write_text("id,question\n1,where?\n2,bad\n3,\n")

    async with fake_team(bus, settings):
        code, out, err = await finished(started(settings, str(file), "--map", "question"))

    assert code == 1
    rows = {each["row"]: each for each in map(json.loads, out.splitlines())}
    assert (rows[1]["status"], rows[1]["answer"], rows[2]["reason"]) == ("completed", "where?", "it is bad")
    assert rows[3]["status"] == "not_sent"
    assert "row 2 is failed: it is bad (wf_" in err
    assert 'row 3 was not sent: the request is ""; a text or an object is expected' in err
    assert "3 of 3 rows have ended, 1 completed, $0.5000" in err


async def test_ctrl_c_and_the_same_command_do_no_row_twice(
    bus: JetStreamBus, settings: Settings, tmp_path: Path
) -> None:
    file, out = tmp_path / "requests.jsonl", tmp_path / "results.jsonl"
    file.write_text("".join(f'"row {number}{" hold" if number in (4, 5) else ""}"\n' for number in range(1, 9)))
    command = str(file), "--out", str(out), "--concurrency", "2"

    async with fake_team(bus, settings) as team:
        first = started(settings, *command)
        await until(lambda: _is_true(len(documents_of(out)) == 3 and len(team.requests) == 5), seconds=_START_S)
        first.send_signal(signal.SIGINT)
        code, _, err = await finished(first)
        assert code == 130
        assert "3 of 8 rows have ended, 3 completed, $0.7500; the same command does the remaining 5" in err

        second = started(settings, *command)
        await until(lambda: _is_true(len(team.requests) >= 5), seconds=_START_S)
        team.let_go.set()
        assert (await finished(second))[0] == 0

        third = await finished(started(settings, *command))

    assert sorted(each["row"] for each in documents_of(out)) == list(range(1, 9))
    assert {each["status"] for each in documents_of(out)} == {"completed"}
    assert sorted(set(team.requests)) == sorted(each["request_id"] for each in documents_of(out))
    assert len({each["workflow_id"] for each in documents_of(out)}) == 8
    assert third[0] == 0
    assert "8 of 8 rows have ended, 8 completed, $2.0000" in third[2]


async def test_the_blocks_of_the_page_run(bus: JetStreamBus, settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "questions.csv").write_text("id,question\n1,where?\n2,when?\n")
    (_, shell), (_, python) = blocks_of((ROOT / "docs" / "batches.md").read_text())
    environment = {
        **os.environ,
        "POINTSMAN_URL": settings.url,
        "POINTSMAN_NAMESPACE": settings.namespace,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    defined: dict[str, Any] = {}
    exec(python, defined)

    async with fake_team(bus, settings):
        run = await asyncio.create_subprocess_shell(shell, cwd=tmp_path, env=environment)
        assert await run.wait() == 0
        answers = await defined["summarize"](Client(bus, namespace=settings.namespace), ["one", "two"])

    assert [each["answer"] for each in documents_of(tmp_path / "results.jsonl")].count("when?") == 1
    assert answers == {1: "one", 2: "two"}


async def _is_true(value: bool) -> bool:
    return value


@sized
@pytest.mark.timeout(600)
async def test_thousands_of_rows_need_the_memory_of_two_hundred(
    bus: JetStreamBus, settings: Settings, tmp_path: Path
) -> None:
    """Measures 2,500 rows by default, and 10,000 with `make cases`."""
    async with fake_team(bus, settings):
        few = await _peak_kib(settings, tmp_path / "few.csv", 200)
        many = await _peak_kib(settings, tmp_path / "many.csv", SIZE.rows)

    assert many - few < SIZE.rows * _MAX_GROWTH_KIB_PER_ROW, f"200 rows: {few} KiB; {SIZE.rows} rows: {many} KiB"


async def _peak_kib(settings: Settings, file: Path, rows: int) -> int:
    """Run a batch and return the peak of its resident memory in KiB."""
    with file.open("w") as lines:
        lines.write("question\n")
        lines.writelines(f"what is {number}? {'x' * 500}\n" for number in range(rows))
    out = file.with_suffix(".jsonl")
    arguments = ("batch", "desk", str(file), "--out", str(out), "--concurrency", "50")
    peak, _ = await MeasuredProcess(settings, file.with_suffix(".peak"), *arguments, cwd=file.parent).ended()
    with out.open() as lines:
        assert sum(1 for _ in lines) == rows
    return peak
