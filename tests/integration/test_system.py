"""Processes and brokers that are killed: every workflow still reaches its one outcome."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.broker import remove_streams
from support.crew import CREW, planner, steps, synthesizer, worker
from support.processes import System, found
from support.system import running

from pointsman.bus.embedded import EmbeddedBroker
from pointsman.client import Workflow
from pointsman.engine.history import commit_of
from pointsman.settings import Settings
from pointsman_schemas.log import TaskDispatched, TaskSucceeded, WorkflowEnded

pytestmark = pytest.mark.timeout(180)


def journal(path: Path) -> list[dict[str, Any]]:
    """What the agents of the crew have written down so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def check(system: System, workflow: Workflow) -> None:
    """Assert what must hold of every log: one terminal entry, the last; nothing dispatched or accepted twice."""
    entries = await system.client.entries(workflow.id)
    assert [entry for entry in entries if isinstance(entry, WorkflowEnded)] == list(entries[-1:])
    assert _repeated((entry.task_id, entry.attempt) for entry in entries if isinstance(entry, TaskDispatched)) == []
    assert _repeated(entry.task_id for entry in entries if isinstance(entry, TaskSucceeded)) == []


def _repeated(values: Any) -> list[Any]:
    return [value for value, count in Counter(values).items() if count > 1]


async def test_what_a_killed_worker_was_doing_is_done_by_another_and_counted_once(
    settings: Settings, tmp_path: Path
) -> None:
    settings = settings.model_copy(update={"ack_wait": 1.0})
    book = tmp_path / "journal"
    async with System(tmp_path, settings, CREW_JOURNAL=str(book)) as system:
        _, _, *workers = await asyncio.gather(
            system.supervisor(CREW),
            system.worker(f"{CREW}:planner", f"{CREW}:synthesizer"),
            *(system.worker(f"{CREW}:worker") for _ in range(2)),
        )
        workflow = await system.client.submit("crew", steps("a", "b", "c", "d", seconds=1.5))

        async def both_at_work() -> bool:
            return len({line["pid"] for line in journal(book)}) == 2

        await found(both_at_work, "task begun by each worker")
        await workers[0].kill()
        outcome = await workflow.outcome(30)
        await check(system, workflow)
    await remove_streams(settings)

    begun = Counter(line["task"] for line in journal(book) if line["what"] == "start")
    ended = Counter(line["task"] for line in journal(book) if line["what"] == "end")
    assert (outcome.status, outcome.answer) == ("completed", "a b c d")
    assert {task.attempts for task in outcome.tasks} == {1}
    assert set(ended.values()) == {1}
    assert set(begun.values()) == {1, 2}
    assert {line["pid"] for line in journal(book) if line["what"] == "end"} == {workers[1].pid}


FAILING = {
    "tasks": [{"id": "x", "agent": "nobody", "intent": "cannot be planned"}],
    "repaired": {
        "tasks": [
            {"id": "t1", "agent": "worker", "intent": "succeed", "input": {"say": "one"}},
            {"id": "t2", "agent": "worker", "intent": "succeed later", "input": {"say": "two", "from_attempt": 2}},
            {"id": "t3", "agent": "worker", "intent": "fail", "input": {"say": "three", "from_attempt": 9}},
            {"id": "t4", "agent": "worker", "intent": "be skipped", "input": {"say": "four"}, "depends_on": ["t3"]},
        ]
    },
}
"""A plan that is refused, an attempt that fails, a task that fails for good and one that is skipped for it."""


async def test_a_supervisor_may_be_killed_at_every_kind_of_entry(settings: Settings, tmp_path: Path) -> None:
    settings = settings.model_copy(update={"ack_wait": 1.0})
    requests = {
        "parallel": steps("a", "b", "c"),
        "serial": steps("a", "b", "c", serial=True),
        "failing": FAILING,
    }
    expected = {
        "parallel": ("completed", "a b c"),
        "serial": ("completed", "a b c"),
        "failing": ("partial", "one two (t3 is missing) (t4 is missing)"),
    }
    killed: list[tuple[str, str]] = []
    async with running(settings, None, [planner, synthesizer, worker]), System(tmp_path, settings) as system:
        supervisor = await system.supervisor(CREW)
        workflows = {name: await system.client.submit("crew", request) for name, request in requests.items()}
        names = {workflow.id: name for name, workflow in workflows.items()}
        ended: set[str] = set()
        async for stored in system.client.bus.follow("log", [system.client.subjects.logs_of("crew")]):
            commit = commit_of(stored)
            name = names[stored.subject.rpartition(".")[2]]
            kinds = {(name, entry.kind) for entry in commit.entries} - set(killed)
            if kinds:
                await supervisor.kill()
                killed += kinds
                supervisor = await system.supervisor(CREW)
            ended |= {name for entry in commit.entries if isinstance(entry, WorkflowEnded)}
            if len(ended) == len(requests):
                break
        outcomes = {name: await workflow.outcome(30) for name, workflow in workflows.items()}
        for workflow in workflows.values():
            await check(system, workflow)
        deaths = len(system.services) - 1
    await remove_streams(settings)

    assert {name: (outcome.status, outcome.answer) for name, outcome in outcomes.items()} == expected
    assert {kind for _, kind in killed} >= {
        "workflow_started", "task_added", "task_dispatched", "plan_rejected", "plan_accepted", "attempt_failed",
        "retry_scheduled", "task_succeeded", "task_failed", "task_skipped", "workflow_ended",
    }  # fmt: skip
    assert deaths >= 8


async def test_a_broker_that_is_killed_again_and_again_loses_no_workflow(settings: Settings, tmp_path: Path) -> None:
    store = tmp_path / "broker"
    broker = EmbeddedBroker(store)
    await broker.start()
    settings = settings.model_copy(update={"url": broker.url, "ack_wait": 1.0, "request_timeout": 2.0})
    port = int(broker.url.rpartition(":")[2])
    try:
        async with System(tmp_path / "processes", settings) as system:
            services = await asyncio.gather(system.supervisor(CREW), system.worker(CREW))
            workflows = [
                await system.client.submit("crew", steps("a", "b", "c", serial=True, seconds=0.3)) for _ in range(20)
            ]

            for pause in (0.1, 0.5):
                await asyncio.sleep(pause)  # how far the workflows have come is chance, and is meant to be
                broker = await _crash(broker, store, port)
            outcomes = await asyncio.gather(*(workflow.outcome(60) for workflow in workflows))
            for workflow in workflows:
                await check(system, workflow)

            assert all(service.alive for service in services)
            for service in services:
                assert len(service.lines("bus_disconnected")) == len(service.lines("bus_reconnected")) == 2
                assert len(service.lines(level="warning")) < 200
    finally:
        await broker.stop()

    assert {(outcome.status, outcome.answer) for outcome in outcomes} == {("completed", "a b c")}


async def _crash(broker: EmbeddedBroker, store: Path, port: int) -> EmbeddedBroker:
    """SIGKILL, and the next one on the same port and store."""
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGKILL)
    await broker.stop()
    following = EmbeddedBroker(store, port=port)
    await following.start()
    return following


def test_nothing_installed_can_build_an_object_from_text() -> None:
    forbidden = re.compile(
        r"\b(?:import|from)\s+(?:pickle|marshal|shelve|dill|jsonpickle)\b|\byaml\.(?:unsafe_)?load\(|(?<![\w.])(?:eval|exec)\("
    )
    root = Path(__file__).parents[2]
    sources = [path for place in ("schemas", "runtime", "agents") for path in (root / place).rglob("*.py")]

    found = [f"{path.name}: {match[0]}" for path in sources for match in forbidden.finditer(path.read_text())]

    assert len(sources) > 50
    assert found == []
