"""`pointsman provision` creates streams and consumers, so other processes need no right to create them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.broker import TIMEOUT_S
from support.configured_server import configured_server

from pointsman.bus.jetstream.bus import connect
from pointsman.engine.process.consumers import agent_consumer, input_consumers, request_consumer
from pointsman.settings import Settings
from pointsman_schemas.subjects import Subjects

FILE = """
from pointsman import FanOut, Team, agent


@agent(name="echo", description="Repeats the task", max_in_flight=7)
async def echo(task: str) -> str:
    return task


team = Team(name="crew", agents=["echo"], refiner="other", strategy=FanOut(synthesizer=None))
"""
DENIED = ["STREAM.CREATE.>", *(f"CONSUMER.CREATE.*.{name}.>" for name in ("agent-echo", "agent-crew", "request-crew"))]
CONFIG = """
authorization { users: [
  { user: root, password: pw }
  { user: service, password: pw, permissions: { publish: { deny: DENIED } } }
] }
"""


async def start(port: int, user: str, *arguments: str, folder: Path, **environment: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pointsman", *arguments, cwd=folder, stdout=PIPE, stderr=PIPE,
        env={**os.environ, "POINTSMAN_URL": f"nats://{user}:pw@127.0.0.1:{port}", "POINTSMAN_NAMESPACE": "own",
             "POINTSMAN_LOG_FORMAT": "json", **environment},
    )  # fmt: skip


async def run(port: int, user: str, *arguments: str, folder: Path, **environment: str) -> tuple[int | None, str, str]:
    process = await start(port, user, *arguments, folder=folder, **environment)
    out, error = await asyncio.wait_for(process.communicate(), 6 * TIMEOUT_S)
    return process.returncode, out.decode(), error.decode()


@asynccontextmanager
async def server(folder: Path) -> AsyncIterator[int]:
    (folder / "crew.py").write_text(FILE)
    denied = json.dumps([f"$JS.API.{verb}" for verb in DENIED])
    async with configured_server(folder, CONFIG.replace("DENIED", denied)) as port:
        yield port


async def test_a_system_runs_on_what_was_provisioned(tmp_path: Path) -> None:
    subjects = Subjects("own")
    wanted = [request_consumer(subjects, "crew"), *input_consumers(subjects, "crew")]
    wanted += [agent_consumer(subjects, name) for name in ("crew", "echo", "other")]
    async with server(tmp_path) as port:
        code, out, error = await run(port, "root", "provision", "crew.py", "--json", folder=tmp_path)
        assert code == 0, error
        bus = await connect(Settings(url=f"nats://root:pw@127.0.0.1:{port}", namespace="own"), name="test", wait=5)
        await bus.set_up(create=False)
        infos = [await bus.api(f"CONSUMER.INFO.{bus.stream_name(each.stream)}.{each.name}") for each in wanted]
        services = [await start(port, "service", kind, "crew.py", folder=tmp_path) for kind in ("supervisor", "worker")]
        submitted = await run(port, "service", "submit", "crew", "hello", "--json", folder=tmp_path)
        after = [await bus.api(f"CONSUMER.INFO.{bus.stream_name(each.stream)}.{each.name}") for each in wanted]
        for process in services:
            process.send_signal(signal.SIGTERM)
        ended = [await asyncio.wait_for(process.communicate(), 3 * TIMEOUT_S) for process in services]
        await bus.close()

    assert {(each["name"], each["subject"]) for each in json.loads(out)["consumers"]} == {
        (each.name, each.subject) for each in wanted
    }
    assert [info["config"]["filter_subject"] for info in infos] == [each.subject for each in wanted]
    assert [info["config"]["max_ack_pending"] for info in infos[-2:]] == [7, 1000]
    assert [info["config"] for info in after] == [info["config"] for info in infos]
    assert submitted[0] == 0, (submitted, ended)
    assert json.loads(submitted[1])["status"] == "completed"
    assert [process.returncode for process in services] == [0, 0], ended


async def test_a_second_run_changes_nothing(tmp_path: Path) -> None:
    async with server(tmp_path) as port:
        await run(port, "root", "provision", "crew.py", folder=tmp_path)
        code, out, error = await run(port, "root", "provision", "--agent", "echo", folder=tmp_path)
        bus = await connect(Settings(url=f"nats://root:pw@127.0.0.1:{port}", namespace="own"), name="test", wait=5)
        await bus.set_up(create=False)
        each = agent_consumer(Subjects("own"), "echo")
        info = await bus.api(f"CONSUMER.INFO.{bus.stream_name(each.stream)}.{each.name}")
        await bus.close()

    assert code == 0, error
    assert out.splitlines()[0] == "The streams of the namespace own exist."
    assert info["config"]["max_ack_pending"] == 7


@pytest.mark.timeout(240)  # runs eleven processes in sequence
async def test_each_process_names_the_command_when_something_is_missing(tmp_path: Path) -> None:
    async with server(tmp_path) as port:
        without_streams = [
            await run(port, "service", *arguments, folder=tmp_path, POINTSMAN_PROVISION=provision)
            for arguments in (["worker", "crew.py"], ["supervisor", "crew.py"], ["submit", "crew", "hello"])
            for provision in ("true", "false")
        ]
        await run(port, "root", "provision", folder=tmp_path)
        without_consumers = [
            await run(port, "service", kind, "crew.py", folder=tmp_path, POINTSMAN_PROVISION=provision)
            for kind in ("worker", "supervisor")
            for provision in ("true", "false")
        ]

    for code, _, error in [*without_streams, *without_consumers]:
        last = error.splitlines()[-1]
        assert code == 2, error
        assert last.startswith("pointsman: ")
        assert "`pointsman provision`" in last
        assert "Traceback" not in error
