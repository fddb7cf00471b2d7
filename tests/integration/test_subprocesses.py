"""When a task is cancelled, its child processes and all their children end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support import factory
from support.handoffs import SupervisorDouble
from support.lines import lines_of
from support.processes import System, wait_for
from support.waiting import in_time, quickly

from pointsman.authoring.agent import Agent, agent
from pointsman.authoring.context import Context
from pointsman.bus.jetstream.bus import JetStreamBus
from pointsman.bus.memory.bus import MemoryBus
from pointsman.settings import Settings
from pointsman.testing.clock import VirtualClock
from pointsman.util.process_groups import wait_until_ended
from pointsman_schemas.events import Cancellation
from pointsman_schemas.strict_json import dump

pytestmark = pytest.mark.timeout(120)

TIME_LIMIT_S = 30.0  # of a task, in virtual time, so that no slow start of a command exceeds the limit

STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
with open(sys.argv[1], "a") as pids:
    pids.write(f"{os.getpid()}\\n")
time.sleep(60)
"""
"""A process and its child that both ignore SIGTERM."""

RUNNER = f"""
import sys
from pointsman import Context, agent

@agent(name="worker", description="Runs a command")
async def worker(path: str, context: Context) -> None:
    await context.run_process(sys.executable, "-c", {STUBBORN!r}, path)
"""


@pytest.fixture(autouse=True)
async def everything_ends_before_the_loop_does() -> AsyncIterator[None]:
    yield
    await wait_until_ended()


def pids(path: Path) -> list[int]:
    return [int(line) for line in lines_of(path)]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


async def both_run(path: Path) -> bool:
    return len(pids(path)) == 2


async def gone(them: list[int]) -> bool:
    return not any(alive(pid) for pid in them)


async def all_gone(path: Path) -> bool:
    return await gone(pids(path))


async def test_a_command_gives_its_output_its_errors_and_its_code() -> None:
    script = "import sys; sys.stdout.write(sys.stdin.read().upper()); sys.stderr.write('oh'); sys.exit(3)"

    done = await Context.for_test().run_process(sys.executable, "-c", script, input=b"hello")

    assert (done.code, done.output, done.errors) == (3, b"HELLO", b"oh")


async def test_a_command_that_is_not_there_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        await Context.for_test().run_process("/no/such/command")


async def test_background_processes_of_a_command_end_with_it(tmp_path: Path) -> None:
    path = tmp_path / "pids"
    script = f"""
import os, time
if child := os.fork():
    print(child, file=open({str(path)!r}, "w"))
else:
    os.close(1), os.close(2)
    time.sleep(60)
"""

    done = await Context.for_test().run_process(sys.executable, "-c", script)

    assert done.code == 0
    await wait_for(lambda: all_gone(path), "end of the process", seconds=10)


@pytest.mark.parametrize("cancels", [1, 2])
async def test_a_cancelled_command_is_gone_with_its_children(tmp_path: Path, cancels: int) -> None:
    path = tmp_path / "pids"
    running = asyncio.create_task(Context.for_test().run_process(sys.executable, "-c", STUBBORN, str(path)))
    await wait_for(lambda: both_run(path), "process and its child")

    for _ in range(cancels):
        running.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await running

    await quickly(wait_for(lambda: all_gone(path), "end of both"), 5)


async def test_command_cancelled_during_its_start_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, started, start = tmp_path / "pids", asyncio.Event(), asyncio.create_subprocess_exec

    async def slow(*command: Any, **options: Any) -> asyncio.subprocess.Process:
        process = await start(*command, **options)
        await started.wait()  # the process runs, but `create_subprocess_exec` has not returned yet
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", slow)
    running = asyncio.create_task(Context.for_test().run_process(sys.executable, "-c", STUBBORN, str(path)))
    await wait_for(lambda: both_run(path), "process and its child")

    running.cancel()
    await asyncio.sleep(0)
    started.set()
    with pytest.raises(asyncio.CancelledError):
        await running

    await quickly(wait_for(lambda: all_gone(path), "end of both"), 5)


@agent(name="worker", description="Runs a command", timeout=TIME_LIMIT_S)
async def patient(path: str, context: Context) -> None:
    await context.run_process(sys.executable, "-c", STUBBORN, path)


@agent(name="blocker", description="Runs a command from a plain function", timeout=TIME_LIMIT_S)
def blocking(path: str, context: Context) -> None:
    context.run_sync(context.run_process(sys.executable, "-c", STUBBORN, path))


@pytest.mark.parametrize("one", [patient, blocking], ids=["async", "plain"])
@pytest.mark.parametrize("how", ["cancelled", "timed out", "left"])
async def test_stopped_handler_leaves_no_process(tmp_path: Path, one: Agent, how: str) -> None:
    bus, path, name, clock = MemoryBus(), tmp_path / "pids", one.card.name, VirtualClock()
    desk = SupervisorDouble(bus, clock=clock)
    worker = factory.worker(bus, one, settings=Settings(shutdown_grace=0.1), clock=clock)

    async with factory.running(worker, clock=clock) as stop:
        handoff = await desk.publish_handoff(name, str(path))
        await wait_for(lambda: both_run(path), "process and its child")
        if how == "cancelled":
            cancellation = Cancellation(tasks=(handoff.task_id,))
            await bus.broadcast(desk.subjects.cancelled("team", handoff.workflow_id), dump(cancellation), {})
        elif how == "timed out":
            await in_time(clock, desk.result(handoff), step=1.0)
        else:
            stop.set()
        ending = wait_for(lambda: all_gone(path), "end of both", seconds=10)
        await in_time(clock, ending, step=0.001)  # the time of the shutdown passes, but not the time limit of the task


async def test_a_worker_that_leaves_takes_its_processes_along_however_it_leaves(
    settings: Settings, bus: JetStreamBus, tmp_path: Path
) -> None:
    desk, first, second = SupervisorDouble(bus, settings.namespace), tmp_path / "first", tmp_path / "second"
    async with System(tmp_path / "processes", settings, POINTSMAN_SHUTDOWN_GRACE="0.2") as system:
        runner = system.write("runner.py", RUNNER)
        leaving = await system.start("worker", runner)
        await desk.publish_handoff("worker", str(first))
        await wait_for(lambda: both_run(first), "process and its child", seconds=45)
        begun = pids(first)
        system.environment["POINTSMAN_SHUTDOWN_GRACE"] = "60"  # so that only the second signal ends the other worker
        staying = await system.start("worker", runner)
        code = await leaving.stop()
        await quickly(wait_for(lambda: gone(begun), "end of both"), 3)

        await staying.logged("worker_started")
        await desk.publish_handoff("worker", str(second), task="T2")
        await wait_for(lambda: both_run(second), "process and its child", seconds=45)
        os.kill(staying.pid, signal.SIGTERM)
        await staying.logged("stopping")
        os.kill(staying.pid, signal.SIGTERM)
        killed = await staying.ended()
        await quickly(wait_for(lambda: all_gone(second), "end of both"), 3)

    assert (code, killed) == (0, 128 + signal.SIGTERM)


async def test_a_command_gets_no_secret_of_its_worker_unless_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command gets the worker's variables. It gets model keys, logins and collector headers only if it names them."""
    own = {
        "OPENAI_API_KEY": "k1",
        "ANTHROPIC_AUTH_TOKEN": "k2",
        "POINTSMAN_PASSWORD": "k3",
        "POINTSMAN_URL": "nats://u:k4@broker:4222",
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=k5",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "authorization=k6",
    }
    for name, value in {**own, "REGION": "north", "OPENAI_BASE_URL": "http://127.0.0.1:1"}.items():
        monkeypatch.setenv(name, value)
    script = "import json, os; print(json.dumps(dict(os.environ)))"

    plain = json.loads((await Context.for_test().run_process(sys.executable, "-c", script)).output)
    asking = await Context.for_test().run_process(sys.executable, "-c", script, secrets=["OPENAI_API_KEY"])

    assert not own.keys() & plain.keys()
    assert (plain["REGION"], plain["OPENAI_BASE_URL"]) == ("north", "http://127.0.0.1:1")
    assert own.keys() & json.loads(asking.output).keys() == {"OPENAI_API_KEY"}
