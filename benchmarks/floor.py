"""The least that a workflow's messages can cost: the same subjects, headers and bodies, sent by bare nats-py.

A supervisor and four agents, each a process with uvloop, publish what a real workflow published before, as fast as
they can: stored and acknowledged by the broker, pulled through durable consumers, acknowledged. There is no state but
a count of open dependencies, no log, no timer, no validation: nothing is even parsed.
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
from dataclasses import dataclass
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
from pointsman.ports import Bus, Stored
from pointsman.processes import end_with_parent
from pointsman_schemas.subjects import Subjects

__all__ = ["Floor", "record", "round_trips"]

_STREAM = "FLOOR"
_ASKED = 1000  # messages a pull asks for, and asks for more at half: no pull ever runs dry
_EXPIRES = 3600  # seconds; longer than any run
_PATIENCE = 60.0  # seconds one workflow may take before the run is given up

Sent = tuple[dict[str, str], bytes]


@dataclass(frozen=True, slots=True)
class Recording:
    """What one workflow of each shape published: headers and bodies by `request`, `handoff.TASK`, `result.TASK`,
    `outcome`; who has each task, and what each waits for."""

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
    """What the `workflows` (id by shape), each of them ended, have published, as a file for `Recording.load`."""
    namespace = subjects.namespace
    written: dict[str, dict[str, tuple[dict[str, str], str]]] = {}
    requests = {stored.headers["ce-id"]: stored async for stored in bus.read("work", f"{namespace}.request.*")}
    for shape, workflow in workflows.items():
        found = {"request": next(iter(requests.values()))}
        async for stored in bus.read("work", f"{namespace}.handoff.*.{workflow}.>"):
            found[f"handoff.{stored.subject.split('.')[4]}"] = stored
        async for stored in bus.read("work", f"{namespace}.inbox.*.{workflow}.result.>"):
            found[f"result.{stored.subject.split('.')[6]}"] = stored
        async for stored in bus.read("log", f"{namespace}.outcome.*.{workflow}"):
            found["outcome"] = stored
        written[shape] = {name: (_headers(stored), b64encode(stored.body).decode()) for name, stored in found.items()}
    return json.dumps(written).encode()


def _headers(stored: Stored) -> dict[str, str]:
    """Without the id: the broker would take the second workflow's messages for the first one's."""
    return {name: value for name, value in stored.headers.items() if name != "Nats-Msg-Id"}


class Floor:
    """The floor's processes and, here, its caller. `submit` publishes a request and waits for its outcome."""

    def __init__(self, url: str, children: Children, recording: Path, name: str = "floor") -> None:
        self._url = url
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
        async with _connected(self._url) as (client, stream):
            self._stream = stream
            await stream.add_stream(StreamConfig(name=_STREAM, subjects=["floor.>"]))
            filters = {"request": "request", "inbox": "inbox", "outcomes": "outcome", "raw": "raw"}
            for name, kind in {**filters, **{agent: f"handoff.{agent}" for agent in AGENTS}}.items():
                config = ConsumerConfig(
                    durable_name=name, filter_subject=f"floor.{kind}.>", ack_policy=AckPolicy.EXPLICIT
                )
                await stream.add_consumer(_STREAM, config)
            for role in ("supervisor", *AGENTS):
                await self._children.start(f"{self._name}-{role}", "benchmarks.floor", role, self._url, str(self._path))
            await _pull(client, "outcomes", self._heard)
            yield self

    async def stored(self) -> tuple[int, int]:
        """How many messages its stream holds, and in how many bytes."""
        state = (await self._stream.stream_info(_STREAM)).state
        return state.messages, state.bytes

    async def submit(self, shape: str) -> None:
        self._count += 1
        workflow = f"wf_{self._count}"
        self._waiting[workflow] = asyncio.get_running_loop().create_future()
        headers, body = self._recording.sent[shape]["request"]
        await self._stream.publish(f"floor.request.{shape}.{workflow}", body, headers=headers)
        await asyncio.wait_for(self._waiting[workflow], _PATIENCE)
        del self._waiting[workflow]

    async def _heard(self, message: Msg) -> None:
        await message.ack()
        self._waiting[message.subject.split(".")[3]].set_result(None)


async def round_trips(url: str, count: int) -> tuple[list[float], list[float]]:
    """Seconds from a publish to its acknowledgement and to its delivery to a pull, of 200 bytes, one at a time."""
    acknowledged: list[float] = []
    delivered: list[float] = []
    async with _connected(url) as (_, stream), _connected(url) as (other, _):
        came: asyncio.Queue[float] = asyncio.Queue()

        async def heard(message: Msg) -> None:
            came.put_nowait(perf_counter())
            await message.ack()

        await _pull(other, "raw", heard)
        for _ in range(count):
            began = perf_counter()
            await stream.publish("floor.raw.x", b"x" * 200)
            acknowledged.append(perf_counter() - began)
            delivered.append(await came.get() - began)
    return acknowledged, delivered


# The processes


async def _supervise(url: str, recording: Recording) -> None:
    open_needs: dict[str, dict[str, int]] = {}
    async with _connected(url) as (client, stream):

        async def hand_out(shape: str, workflow: str, tasks: Iterable[str]) -> None:
            sent, agents = recording.sent[shape], recording.agents[shape]
            await asyncio.gather(
                *(
                    stream.publish(
                        f"floor.handoff.{agents[task]}.{shape}.{workflow}.{task}",
                        sent[f"handoff.{task}"][1],
                        headers=sent[f"handoff.{task}"][0],
                    )
                    for task in tasks
                )
            )

        async def requested(message: Msg) -> None:
            _, _, shape, workflow = message.subject.split(".")
            open_needs[workflow] = {task: len(needs) for task, needs in recording.needs[shape].items()}
            await hand_out(shape, workflow, ["plan-1"])
            await message.ack()

        async def resulted(message: Msg) -> None:
            _, _, shape, workflow, done = message.subject.split(".")
            if done == "synthesis":
                headers, body = recording.sent[shape]["outcome"]
                del open_needs[workflow]
                await stream.publish(f"floor.outcome.{shape}.{workflow}", body, headers=headers)
            else:
                left = open_needs[workflow]
                ready = []
                for task, needs in recording.needs[shape].items():
                    if done in needs:
                        left[task] -= 1
                        if not left[task]:
                            ready.append(task)
                await hand_out(shape, workflow, ready)
            await message.ack()

        await _pull(client, "request", requested)
        await _pull(client, "inbox", resulted)
        await asyncio.Event().wait()


async def _work(agent: str, url: str, recording: Recording) -> None:
    async with _connected(url) as (client, stream):

        async def handed(message: Msg) -> None:
            _, _, _, shape, workflow, task = message.subject.split(".")
            headers, body = recording.sent[shape][f"result.{task}"]
            await stream.publish(f"floor.inbox.{shape}.{workflow}.{task}", body, headers=headers)
            await message.ack()

        await _pull(client, agent, handed)
        await asyncio.Event().wait()


async def _pull(client: Client, consumer: str, heard: Callable[[Msg], Awaitable[None]]) -> None:
    """Call `heard` for every message of a consumer, many at a time."""
    inbox, subject = client.new_inbox(), f"$JS.API.CONSUMER.MSG.NEXT.{_STREAM}.{consumer}"
    asked = 0
    running: set[asyncio.Future[None]] = set()

    async def refill() -> None:
        nonlocal asked
        if 2 * asked <= _ASKED:
            order = {"batch": _ASKED - asked, "expires": _EXPIRES * 1_000_000_000}
            asked = _ASKED
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
            os._exit(1)  # the run notices a process that is gone

    await client.subscribe(inbox, cb=arrived)
    await refill()


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[tuple[Client, JetStreamContext]]:
    client = await nats.connect(url)
    try:
        yield client, client.jetstream()
    finally:
        await client.close()


def main(role: str, url: str, recording: str) -> None:
    end_with_parent()
    recorded = Recording.load(Path(recording))
    run(_supervise(url, recorded) if role == "supervisor" else _work(role, url, recorded))


if __name__ == "__main__":
    main(*sys.argv[1:])
