"""Run the floor: the lowest possible cost of a workflow's messages, sent with nats-py alone.

A supervisor and four agents, each a process with uvloop, publish the recorded messages of a real workflow as fast as
they can, with the same subjects, headers and bodies. The broker stores and acknowledges each message, and durable
consumers pull and acknowledge each message. The only state is a count of open dependencies. There is no log, no timer,
no validation and no parsing.

With a log, the floor is the lowest possible cost of the protocol. Each commit is stored by compare-and-set before its
messages are sent. Inputs that arrive in the meantime share one commit. Bodies are parsed, commits are written as JSON,
and a timer is armed. Inputs are still not interpreted and not validated.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig

from benchmarks.machine import Children
from benchmarks.team import AGENTS, PLANS
from pointsman.app import run
from pointsman.ports.bus import Bus, StoredMessage
from pointsman.util.child_processes import exit_with_parent
from pointsman_schemas.subjects import Subjects

__all__ = ["Floor", "record", "round_trips"]

_EXPECTED = "Nats-Expected-Last-Subject-Sequence"
_PULL_BATCH = 1000  # messages of a pull request; after half of them, the next request is sent
_PULL_EXPIRES_S = 3600  # longer than any run
_WORKFLOW_TIMEOUT_S = 60.0  # the run fails if a workflow takes longer

Sent = tuple[dict[str, str], bytes]


@dataclass(frozen=True, slots=True)
class Recording:
    """The messages of one workflow of each shape.

    Attributes:
        sent: For each shape: headers and bodies, by the names `request`, `handoff.TASK`, `result.TASK`, `outcome`,
            `timer` and `commit.NUMBER`.
        agents: The agent of each task, by shape and task.
        needs: The dependencies of each task, by shape and task.
    """

    sent: dict[str, dict[str, Sent]]
    agents: dict[str, dict[str, str]]
    needs: dict[str, dict[str, tuple[str, ...]]]

    @classmethod
    def load(cls, path: Path) -> Recording:
        written = json.loads(path.read_bytes())
        sent = {
            shape: {name: (headers, b64decode(body)) for name, (headers, body) in messages.items()}
            for shape, messages in written.items()
        }
        work = {shape: {task.id: task for task in plan.tasks} for shape, plan in PLANS.items()}
        return cls(
            sent,
            {
                shape: {"plan-1": "planner", "synthesis": "synthesizer", **{n: t.agent for n, t in tasks.items()}}
                for shape, tasks in work.items()
            },
            {
                shape: {n: t.depends_on or ("plan-1",) for n, t in tasks.items()} | {"synthesis": tuple(tasks)}
                for shape, tasks in work.items()
            },
        )


async def record(bus: Bus, subjects: Subjects, workflows: dict[str, str]) -> bytes:
    """Return the messages of the ended `workflows`, one id for each shape, as a file for `Recording.load`."""
    namespace = subjects.namespace
    written: dict[str, dict[str, tuple[dict[str, str], str]]] = {}
    requests = {stored.headers["ce-id"]: stored async for stored in bus.read("requests", f"{namespace}.request.*.*")}
    for shape, workflow in workflows.items():
        found = {"request": next(iter(requests.values()))}
        async for stored in bus.read("work", f"{namespace}.handoff.*.*.{workflow}.>"):
            found[f"handoff.{stored.subject.split('.')[5]}"] = stored
        async for stored in bus.read("results", f"{namespace}.result.*.*.{workflow}.>"):
            found[f"result.{stored.subject.split('.')[5]}"] = stored
        async for stored in bus.read("log", f"{namespace}.outcome.*.{workflow}"):
            found["outcome"] = stored
        async for stored in bus.read("work", f"{namespace}.schedule.*.{workflow}.>"):
            found["timer"] = stored
        commits = [stored async for stored in bus.read("log", f"{namespace}.log.*.{workflow}")]
        found |= {f"commit.{number}": stored for number, stored in enumerate(commits)}
        written[shape] = {name: (_headers(stored), b64encode(stored.body).decode()) for name, stored in found.items()}
    return json.dumps(written).encode()


def _headers(stored: StoredMessage) -> dict[str, str]:
    # The message id is omitted, because the broker would drop the second workflow's messages as duplicates. Schedules
    # are omitted, because they would fire later.
    return {
        name: value
        for name, value in stored.headers.items()
        if name != "Nats-Msg-Id" and not name.startswith("Nats-Schedule")
    }


class Floor:
    """The processes of the floor: a supervisor and four agents. The caller of the workflows is this process.

    Args:
        url: The URL of the broker.
        children: The starter of the processes.
        recording: The file from `record`.
        name: The prefix of subjects, streams and processes.
        logged: True if the supervisor keeps a log.
    """

    def __init__(
        self, url: str, children: Children, recording: Path, name: str = "floor", *, logged: bool = False
    ) -> None:
        self._url = url
        self._logged = logged
        self._name = name
        self._children = children
        self._path = recording
        self._recording = Recording.load(recording)
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._count = 0

    @property
    def processes(self) -> dict[str, int]:
        """Process ids by part."""
        return {part: self._children.pids[f"{self._name}-{part}"] for part in ("supervisor", *AGENTS)}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Floor]:
        name = self._name
        async with _connected(self._url) as (client, stream):
            self._stream = stream
            work = [f"{name}.{kind}.>" for kind in ("request", "handoff", "inbox", "schedule")]
            log = [f"{name}.{kind}.>" for kind in ("log", "outcome")]
            await stream.add_stream(StreamConfig(name=name, subjects=work))
            await stream.add_stream(StreamConfig(name=f"{name}-log", subjects=log))
            kinds = {"request": "request", "inbox": "inbox", **{agent: f"handoff.{agent}" for agent in AGENTS}}
            for consumer, kind in kinds.items():
                await _consume(stream, name, consumer, f"{name}.{kind}.>")
            await _consume(stream, f"{name}-log", "outcomes", f"{name}.outcome.>")
            for role in ("supervisor", *AGENTS):
                part = f"logged-{role}" if self._logged and role == "supervisor" else role
                await self._children.start(f"{name}-{role}", "benchmarks.floor", part, self._url, str(self._path), name)
            await _pull(client, f"{name}-log", "outcomes", self._on_outcome)
            yield self

    async def stored(self) -> tuple[int, int]:
        """Return the number and the bytes of the messages in the streams of the floor."""
        states = [(await self._stream.stream_info(name)).state for name in (self._name, f"{self._name}-log")]
        return sum(state.messages for state in states), sum(state.bytes for state in states)

    async def submit(self, shape: str) -> None:
        """Publish the request of a workflow of this shape, and wait for its outcome."""
        self._count += 1
        workflow = f"wf_{self._count}"
        self._waiting[workflow] = asyncio.get_running_loop().create_future()
        headers, body = self._recording.sent[shape]["request"]
        await self._stream.publish(f"{self._name}.request.{shape}.{workflow}", body, headers=headers)
        await asyncio.wait_for(self._waiting[workflow], _WORKFLOW_TIMEOUT_S)
        del self._waiting[workflow]

    async def _on_outcome(self, message: Msg) -> None:
        await message.ack()
        self._waiting[message.subject.split(".")[3]].set_result(None)


async def round_trips(url: str, count: int) -> tuple[list[float], list[float]]:
    """Publish messages of 200 bytes one at a time. Return the seconds to each acknowledgement and to each delivery."""
    acknowledged: list[float] = []
    delivered: list[float] = []
    async with _connected(url) as (_, stream), _connected(url) as (other, _):
        await stream.add_stream(StreamConfig(name="raw", subjects=["raw.>"]))
        await _consume(stream, "raw", "raw", "raw.>")
        came: asyncio.Queue[float] = asyncio.Queue()

        async def heard(message: Msg) -> None:
            came.put_nowait(perf_counter())
            await message.ack()

        await _pull(other, "raw", "raw", heard)
        for _ in range(count):
            began = perf_counter()
            await stream.publish("raw.x", b"x" * 200)
            acknowledged.append(perf_counter() - began)
            delivered.append(await came.get() - began)
    return acknowledged, delivered


# The processes


class _Sender:
    """Sender of the recorded messages of a workflow, on subjects that begin with `name`."""

    def __init__(self, stream: JetStreamContext, recording: Recording, name: str) -> None:
        self._stream = stream
        self._recording = recording
        self._name = name
        self._commits = {
            shape: [(headers, json.loads(body)) for what, (headers, body) in sent.items() if what.startswith("commit.")]
            for shape, sent in recording.sent.items()
        }

    async def hand_out(self, shape: str, workflow: str, tasks: Iterable[str]) -> None:
        """Publish the handoffs of all `tasks` concurrently."""
        agents = self._recording.agents[shape]
        sends = [self.send(f"handoff.{task}", f"handoff.{agents[task]}", shape, workflow, task) for task in tasks]
        await asyncio.gather(*sends)

    async def send(self, what: str, kind: str, shape: str, *rest: str) -> None:
        headers, body = self._recording.sent[shape][what]
        await self._stream.publish(".".join((self._name, kind, shape, *rest)), body, headers=headers)

    async def commit(self, shape: str, workflow: str, number: int, after: int) -> int:
        """Store a commit after the sequence `after` of the log, and return the commit's sequence."""
        known = self._commits[shape]
        headers, body = known[min(number, len(known) - 1)]
        subject, expected = f"{self._name}.log.{shape}.{workflow}", {**headers, _EXPECTED: str(after)}
        return (await self._stream.publish(subject, json.dumps(body).encode(), headers=expected)).seq


@dataclass(slots=True)
class _Workflow:
    left: dict[str, int]
    """Number of open dependencies, by task. Tasks without dependencies are omitted."""
    came: list[tuple[str, Msg]] = field(default_factory=list)
    """Inputs of the next commit, each a succeeded task with its message."""
    busy: bool = False
    commits: int = 0
    sequence: int = 0


async def _supervise(url: str, recording: Recording, name: str, *, logged: bool) -> None:
    workflows: dict[str, _Workflow] = {}
    async with _connected(url) as (client, stream):
        sender = _Sender(stream, recording, name)

        async def heard(message: Msg) -> None:
            """Process a request or a result. A message whose subject names no task is a request."""
            _, _, shape, id, *done = message.subject.split(".")
            if not done:
                needs = recording.needs[shape].items()
                workflows[id] = _Workflow({task: len(tasks) for task, tasks in needs})
            workflow = workflows[id]
            workflow.came.append((done[0] if done else "", message))
            if not logged:
                await take(workflow, shape, id)
            elif not workflow.busy:  # otherwise the running loop takes this message
                workflow.busy = True
                while workflow.came:
                    await take(workflow, shape, id)
                workflow.busy = False

        async def take(workflow: _Workflow, shape: str, id: str) -> None:
            came, workflow.came = workflow.came, []
            due = [task for done, _ in came for task in settled(workflow, shape, done)]
            if logged:
                for _, message in came:
                    json.loads(message.data)
                workflow.sequence = await sender.commit(shape, id, workflow.commits, workflow.sequence)
                workflow.commits += 1
                if workflow.commits == 1:
                    await asyncio.gather(sender.send("timer", "schedule", shape, id), sender.hand_out(shape, id, due))
                    due = []
            if any(done == "synthesis" for done, _ in came):
                del workflows[id]
                await sender.send("outcome", "outcome", shape, id)
            elif due:
                await sender.hand_out(shape, id, due)
            for _, message in came:
                await message.ack()

        def settled(workflow: _Workflow, shape: str, done: str) -> Iterable[str]:
            """Yield the tasks that can start because `done` has succeeded."""
            if not done:
                yield "plan-1"
            for task, needs in recording.needs[shape].items():
                if done in needs:
                    workflow.left[task] -= 1
                    if not workflow.left[task]:
                        yield task

        await _pull(client, name, "request", heard)
        await _pull(client, name, "inbox", heard)
        await asyncio.Event().wait()


async def _work(agent: str, url: str, recording: Recording, name: str) -> None:
    async with _connected(url) as (client, stream):
        sender = _Sender(stream, recording, name)

        async def handed(message: Msg) -> None:
            _, _, _, shape, workflow, task = message.subject.split(".")
            await sender.send(f"result.{task}", "inbox", shape, workflow, task)
            await message.ack()

        await _pull(client, name, agent, handed)
        await asyncio.Event().wait()


async def _consume(stream: JetStreamContext, name: str, consumer: str, subjects: str) -> None:
    """Create a durable consumer of the stream `name`."""
    config = ConsumerConfig(durable_name=consumer, filter_subject=subjects, ack_policy=AckPolicy.EXPLICIT)
    await stream.add_consumer(name, config)


async def _pull(client: Client, stream: str, consumer: str, heard: Callable[[Msg], Awaitable[None]]) -> None:
    """Call `heard` for every message of a consumer, for many messages in parallel."""
    inbox, subject = client.new_inbox(), f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
    asked = 0
    running: set[asyncio.Future[None]] = set()

    async def refill() -> None:
        nonlocal asked
        if 2 * asked <= _PULL_BATCH:
            order = {"batch": _PULL_BATCH - asked, "expires": _PULL_EXPIRES_S * 1_000_000_000}
            asked = _PULL_BATCH
            await client.publish(subject, json.dumps(order).encode(), reply=inbox)

    async def arrived(message: Msg) -> None:
        nonlocal asked
        asked -= 1
        task = asyncio.ensure_future(heard(message))
        running.add(task)
        task.add_done_callback(ended)
        await refill()

    def ended(task: asyncio.Future[None]) -> None:
        running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            traceback.print_exception(error)
            os._exit(1)  # end the whole process, because the caller detects only an ended process

    await client.subscribe(inbox, cb=arrived)
    await refill()


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[tuple[Client, JetStreamContext]]:
    client = await nats.connect(url)
    try:
        yield client, client.jetstream()
    finally:
        await client.close()


def main(role: str, url: str, path: str, name: str) -> None:
    exit_with_parent()
    recording = Recording.load(Path(path))
    if role.endswith("supervisor"):
        run(_supervise(url, recording, name, logged=role.startswith("logged")))
    else:
        run(_work(role, url, recording, name))


if __name__ == "__main__":
    main(*sys.argv[1:])
