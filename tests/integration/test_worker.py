"""On a real broker, a worker process is killed, drained or blocked. No work is lost or repeated."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
from support.handoffs import SupervisorDouble
from support.lines import lines_of
from support.waiting import quickly, until

from pointsman.bus.jetstream.bus import JetStreamBus
from pointsman.settings import Settings

PROGRAM = """
import asyncio, os, sys, time
from pointsman.authoring.agent import agent
from pointsman.bus.jetstream.bus import connect
from pointsman.authoring.context import Context
from pointsman.engine.process.signals import run_until_signal
from pointsman.engine.worker.engine import Worker
from pointsman.settings import Settings

def note(what, context):
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(f"{what} {context.task_id} {os.getpid()}\\n")

@agent(name="sleeper", description="Sleeps")
async def sleeper(seconds: float, context: Context) -> str:
    note("start", context)
    await asyncio.sleep(seconds)
    note("end", context)
    return "slept"

@agent(name="blocker", description="Blocks its thread")
def blocker(seconds: float, context: Context) -> str:
    note("start", context)
    time.sleep(seconds)
    note("end", context)
    return "blocked"

@agent(name="rude", description="Blocks its loop")
async def rude(seconds: float, context: Context) -> str:
    note("start", context)
    time.sleep(seconds)
    note("end", context)
    return "blocked the loop"

async def main():
    settings = Settings.load()
    bus = await connect(settings, name="worker", wait=10.0)
    await bus.set_up()
    worker = Worker(bus, [sleeper, blocker, rude], settings, own_loop=True)

    async def note_stop(stop):
        await stop.wait()
        with open(os.environ["NOTES"], "a") as notes:
            notes.write("stop\\n")

    async def run(stop):
        noting = asyncio.create_task(note_stop(stop))
        await worker.run(stop)
        await noting

    try:
        return await run_until_signal(run, worker.hand_back)
    finally:
        await bus.close()

sys.exit(asyncio.run(main()))
"""

StartWorker = Callable[..., Awaitable[asyncio.subprocess.Process]]


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes"
    path.touch()
    return path


@pytest.fixture
async def start(settings: Settings, bus: JetStreamBus, notes: Path) -> AsyncIterator[StartWorker]:
    """Yield a function that starts a worker and waits until it takes handoffs. All workers end after the test."""
    started: list[asyncio.subprocess.Process] = []

    async def start_one(grace: float = 2.0, ack_wait: float = 2.0) -> asyncio.subprocess.Process:
        known = {card.instance for card in await bus.registry.cards()}
        environment = {
            **os.environ, "NOTES": str(notes), "POINTSMAN_URL": settings.url, "POINTSMAN_NAMESPACE": settings.namespace,
            "POINTSMAN_ACK_WAIT": str(ack_wait), "POINTSMAN_HEARTBEAT": "0.5", "POINTSMAN_SHUTDOWN_GRACE": str(grace),
        }  # fmt: skip
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, env=environment)
        started.append(process)

        async def announced() -> bool:
            assert process.returncode is None, "the worker ended during its start"
            return len({card.instance for card in await bus.registry.cards()} - known) > 0

        await until(announced, seconds=30)
        return process

    yield start_one
    for process in started:
        if process.returncode is None:
            process.kill()
            await process.wait()


def lines(notes: Path, what: str) -> list[str]:
    return [line for line in lines_of(notes) if line.startswith(what)]


async def _no_cards(bus: JetStreamBus) -> bool:
    return not await bus.registry.cards()


async def has_started(notes: Path, number: int = 1) -> bool:
    return len(lines(notes, "start")) >= number


async def test_work_longer_than_the_ack_deadline_runs_once(
    start: StartWorker, bus: JetStreamBus, settings: Settings, notes: Path
) -> None:
    desk = SupervisorDouble(bus, settings.namespace)
    for _ in range(3):
        await start(ack_wait=4.0)  # a worker that stands still for two seconds extends the deadline in time

    given = [await desk.publish_handoff(name, 5.0, task=f"T-{name}") for name in ("sleeper", "blocker", "rude")]
    results = [await desk.result(handoff, within=30) for handoff in given]

    assert [(result.output, result.attempt) for result in results] == [
        ("slept", 1), ("blocked", 1), ("blocked the loop", 1)]  # fmt: skip
    assert len(lines(notes, "start")) == 3

    async def all_settled() -> bool:
        return all([await desk.settled(name) for name in ("sleeper", "blocker", "rude")])

    await until(all_settled)
    for name in ("sleeper", "blocker", "rude"):
        information = await bus.api(f"CONSUMER.INFO.{desk.subjects.work_stream}.agent-{name}")
        assert information["delivered"]["consumer_seq"] == 1  # each handoff was delivered once


async def test_the_first_signal_lets_running_work_finish(
    start: StartWorker, bus: JetStreamBus, settings: Settings, notes: Path
) -> None:
    desk = SupervisorDouble(bus, settings.namespace)
    process = await start(grace=10)

    handoff = await desk.publish_handoff("sleeper", 3.0)
    await until(lambda: has_started(notes))
    process.send_signal(signal.SIGTERM)
    code = await asyncio.wait_for(process.wait(), 10)
    result = await desk.find_result(handoff)

    assert code == 0
    assert result is not None
    assert (result.output, result.attempt) == ("slept", 1)
    await until(partial(_no_cards, bus))


async def test_work_longer_than_the_grace_is_handed_to_another_worker(
    start: StartWorker, bus: JetStreamBus, settings: Settings, notes: Path
) -> None:
    desk = SupervisorDouble(bus, settings.namespace)
    process = await start(grace=1)

    for number, name in enumerate(("sleeper", "blocker", "rude"), 1):
        await desk.publish_handoff(name, 40.0, task=f"T-{name}")  # longer than the start of the other worker
        await until(partial(has_started, notes, number))
    await start()
    process.send_signal(signal.SIGTERM)
    # The grace of 1 s and some seconds, although one handler blocks its event loop for 40 s.
    code = await quickly(process.wait(), 5)
    # The handoffs return late, because the rude handler delays the worker's end.
    await until(lambda: has_started(notes, 4), seconds=20)

    assert code == 0


async def test_second_signal_leaves_at_once_and_hands_work_back(
    start: StartWorker, bus: JetStreamBus, settings: Settings, notes: Path
) -> None:
    desk = SupervisorDouble(bus, settings.namespace)
    process = await start(grace=30, ack_wait=60)

    await desk.publish_handoff("blocker", 20.0)
    await until(lambda: has_started(notes))
    process.send_signal(signal.SIGTERM)
    await until(lambda: lines(notes, "stop"))  # because two signals at the same time count as one
    process.send_signal(signal.SIGTERM)
    code = await quickly(process.wait(), 8)  # less than the grace of 30 s and the 20 s of work

    assert code == 143
    await start(ack_wait=60)
    # The handoff was returned at once, not redelivered after a minute.
    await until(lambda: has_started(notes, 2), seconds=10)
