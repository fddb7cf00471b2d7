"""Reported faults of other systems with values, times, traces and memory growth."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import os
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from rich.console import Console, RenderableType
from support import factory
from support.caches import empty_caches
from support.crew import planner, steps, synthesizer, team, worker
from support.proxy import Proxy
from support.sizes import SIZE, sized
from support.spans import exporting
from support.waiting import until

from pointsman.authoring.agent import agent
from pointsman.authoring.context import Context
from pointsman.authoring.tools import tool
from pointsman.bus.jetstream.bus import JetStreamBus
from pointsman.bus.jetstream.stream_config import stream_configs
from pointsman.cli.render.tree import render_tree
from pointsman.client.client import Client
from pointsman.engine.process.consumers import agent_consumer, input_consumers, request_consumer
from pointsman.errors import TaskError
from pointsman.settings import Settings
from pointsman.telemetry import traces
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import Outcome, Result
from pointsman_schemas.strict_json import as_json_value, dump
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.team import PlanAndExecute, Team

pytestmark = pytest.mark.timeout(SIZE.patience)

alone = Team(name="crew", strategy=PlanAndExecute(synthesizer=None), limits=team.limits)
"""The crew without a synthesizer: the only result is the answer."""


# Times

BERLIN = ZoneInfo("Europe/Berlin")
INSTANTS = {
    "before the hour is repeated": datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN),
    "after the hour is repeated": datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1),
    "in the hour that is left out": datetime(2026, 3, 29, 2, 30, tzinfo=BERLIN),
    "an offset with seconds": datetime(1900, 1, 1, tzinfo=ZoneInfo("Europe/Amsterdam")),
    "year 1": datetime(1, 1, 1, tzinfo=UTC),
    "year 9999": datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    "microseconds": datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC),
}


@pytest.mark.parametrize("instant", INSTANTS.values(), ids=INSTANTS)
def test_a_time_is_carried_as_text_that_is_the_same_instant(instant: datetime) -> None:
    text = as_json_value(instant)

    assert isinstance(text, str)
    assert datetime.fromisoformat(text).timestamp() == instant.timestamp()
    assert datetime.fromisoformat(text).utcoffset() == instant.utcoffset()


def at(offset: int, *moment: int) -> str:
    return datetime(*moment, tzinfo=timezone(timedelta(hours=offset))).isoformat()  # type: ignore[arg-type,misc]


TIMES = {  # start and end of the attempt in a result, and True if the times are readable
    "in the first year": (at(0, 1, 1, 1), at(0, 1, 1, 2), True),
    "before the first year in UTC": (at(14, 1, 1, 1), at(14, 1, 1, 1, 1), True),
    "after the last year in UTC": (at(-14, 9999, 12, 31, 23), at(-14, 9999, 12, 31, 23, 59), True),
    "from the first to the last": (at(0, 1, 1, 1), at(0, 9999, 12, 31), True),
    "backwards": (at(0, 2026, 1, 2), at(0, 2026, 1, 1), False),
    "over the repeated hour": ("2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00", True),
    "without a zone": ("2026-10-25T02:30:00", "2026-10-25T02:31:00", False),
    "in a leap second": ("2016-12-31T23:59:60Z", "2017-01-01T00:00:00Z", False),
    "on no day": ("2026-02-30T00:00:00Z", "2026-02-30T00:00:00Z", False),
}


def drawn(view: RenderableType) -> str:
    paper = Console(file=io.StringIO(), width=120)
    paper.print(view)
    assert isinstance(paper.file, io.StringIO)
    return paper.file.getvalue()


async def test_workflow_ends_whatever_times_a_result_carries(settings: Settings) -> None:
    async with factory.team(team, [planner, synthesizer], on=settings) as client:
        bus, subjects = client.bus, client.subjects

        @agent(name="absent", description="Is here in name only")
        async def absent() -> None: ...

        await bus.registry.announce(absent.card.model_copy(update={"instance": "absent"}))

        async def ask(name: str) -> tuple[Outcome, str]:
            began, ended, _ = TIMES[name]
            (task,) = steps("t1")["tasks"]
            workflow = await client.submit("crew", {"tasks": [task | {"agent": "absent"}]})
            place = await factory.return_to(bus, subjects.handoff("absent", "crew", workflow.id, "t1", 1))
            now = datetime.now(UTC)
            result = Result(
                workflow_id=workflow.id, task_id="t1", attempt=1, agent="absent", status="succeeded", output=name,
                started_at=now, ended_at=now,
            )  # fmt: skip
            body = json.loads(dump(result)) | {"started_at": began, "ended_at": ended}
            envelope = Envelope(id=name, type=Result.event_type, source="/test", time=now, subject=workflow.id)
            await bus.publish(place, json.dumps(body).encode(), encode(envelope), expect=0)
            outcome = await workflow.outcome(20)
            return outcome, drawn(render_tree(await client.trace(workflow.id), datetime.now(UTC)))

        found = dict(zip(TIMES, await asyncio.gather(*map(ask, TIMES)), strict=True))

    for name, (_, _, readable) in TIMES.items():
        outcome, lines = found[name]
        assert outcome.status == ("completed" if readable else "failed"), (name, outcome)
        assert outcome.answer == name if readable else "cannot be read" in outcome.gaps[0].reason
        assert json.loads(dump(outcome))["sequential"] >= 0
        assert "absent" in lines


# Values

HELD = {
    "2**63": str(2**63),
    "2**200": str(2**200),
    "minus 2**200": str(-(2**200)),
    "a float": "1.7976931348623157e308",
    "50 levels": "[" * 50 + "]" * 50,
    "text": json.dumps("\u0000 \u2028 𝄞 </input>"),
    "an empty key": '{"": {"": null}}',
}
REFUSED = {
    "NaN": "NaN",
    "Infinity": "-Infinity",
    "1e400": "1e400",
    "10**5000": "1" + "0" * 5000,
    "200 levels": "[" * 200 + "]" * 200,
    "10,000 levels": "[" * 10_000 + "]" * 10_000,
    "half a character": '"\\ud800"',
    "half a character as key": '{"\\udfff": 1}',
    "a bare word": "undefined",
}


async def test_value_keeps_every_digit_or_is_refused(settings: Settings) -> None:
    def asking(value: str) -> bytes:
        request = {"input": {"tasks": [steps("t1")["tasks"][0] | {"input": {"say": "VALUE"}}]}}
        return json.dumps(request).replace('"VALUE"', value).encode()

    async with factory.team(alone, [planner, worker], on=settings) as client:

        async def ask(value: str) -> tuple[Outcome, bytes]:
            place = client.subjects.request("crew", "anonymous")
            sequence = await client.bus.publish(place, asking(value), {})
            workflow = await client.workflow_from_sequence(sequence)
            outcome = await workflow.outcome(30)
            log = [stored.body async for stored in client.bus.read("log", client.subjects.log("crew", workflow.id))]
            return outcome, b"[" + b",".join(log) + b"]"

        held = dict(zip(HELD, await asyncio.gather(*map(ask, HELD.values())), strict=True))
        refused = dict(zip(REFUSED, await asyncio.gather(*map(ask, REFUSED.values())), strict=True))

    def unknown(word: str) -> Any:
        raise AssertionError(f"the log contains the number {word}, which JSON does not allow")

    for name, (outcome, log) in held.items():
        assert outcome.status == "completed", (name, outcome)
        assert outcome.answer == json.loads(HELD[name])
        json.loads(log, parse_constant=unknown)
    for name, (outcome, log) in refused.items():
        assert outcome.status == "failed", (name, outcome)
        assert "JSON" in outcome.reason or "valid Request" in outcome.reason or "nested" in outcome.reason, outcome
        json.loads(log, parse_constant=unknown)


# Traces

CALLERS_TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    with exporting() as exporter:
        yield exporter


@tool
async def numbers() -> int:
    """Leave an asynchronous generator early."""

    async def count() -> AsyncIterator[int]:
        with traces.span("in a generator"):
            yield 1
            yield 2

    async for number in count():
        return number
    return 0


@tool
async def ten() -> int:
    """Does ten things at a time, each in two."""

    async def one(number: int) -> int:
        with traces.span("in a gather"):
            await asyncio.gather(asyncio.sleep(0), asyncio.to_thread(deeper))
            return number

    def deeper() -> None:
        with traces.span("in a thread of a gather"):
            pass

    return sum(await asyncio.gather(*(one(number) for number in range(10))))


@tool
def blocking() -> str:
    """Work in a thread."""
    with traces.span("in a thread"):
        return threading.current_thread().name


@pytest.mark.parametrize("sampled", [True, False])
async def test_spans_of_a_tool_stay_in_the_callers_trace_at_every_attempt(
    settings: Settings, spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture, sampled: bool
) -> None:
    handed_back = asyncio.Event()

    @agent(name="juggler", description="Uses tools of every kind")
    async def juggler(context: Context) -> str:
        await asyncio.gather(context.call(numbers), context.call(ten), context.call(blocking))
        if context.attempt == 1:
            raise TaskError("not yet", retryable=True)
        if not handed_back.is_set():
            handed_back.set()
            await asyncio.Event().wait()  # the worker stops and returns the handoff
        return "done"

    settings = settings.model_copy(update={"grace": 0.1})
    headers = {"traceparent": f"00-{CALLERS_TRACE}-b7ad6b7169203331-0{int(sampled)}"}
    plan = {"tasks": [{"id": "t1", "agent": "juggler", "intent": "juggle"}]}
    async with factory.team(alone, [planner], on=settings) as client:
        place = client.subjects.request("crew", "anonymous")
        async with factory.team((), [juggler], on=settings):
            sequence = await client.bus.publish(place, json.dumps({"input": plan}).encode(), headers)
            workflow = await client.workflow_from_sequence(sequence)
            async with asyncio.timeout(20):
                await handed_back.wait()
        async with factory.team((), [juggler], on=settings):
            outcome = await workflow.outcome(20)
    gc.collect()
    await asyncio.sleep(0)  # the event loop closes abandoned generators

    finished = spans.get_finished_spans()
    assert (outcome.status, outcome.trace_id) == ("completed", CALLERS_TRACE)
    assert [record for record in caplog.records if "detach" in record.getMessage()] == []
    if not sampled:
        assert finished == ()
        return
    named: dict[str, list[ReadableSpan]] = {}
    for span in finished:
        named.setdefault(span.name, []).append(span)
    ids = {span.context.span_id for span in finished if span.context} | {0xB7AD6B7169203331}
    assert {f"{span.context.trace_id:032x}" for span in finished if span.context} == {CALLERS_TRACE}
    assert [span.name for span in finished if span.parent is None or span.parent.span_id not in ids] == []
    runs = 3  # the first attempt, the second attempt until its worker stopped, and the second attempt again
    processed = named[f"process {settings.namespace}.handoff.juggler"]
    assert [dict(span.attributes or {})["pointsman.attempt"] for span in processed] == [1, 2]  # one span each
    assert {name: len(named[name]) for name in ("in a gather", "in a thread", "in a generator")} == {
        "in a gather": 10 * runs, "in a thread": runs, "in a generator": runs,
    }  # fmt: skip
    assert len(named["in a thread of a gather"]) == 10 * runs
    assert {span.parent.span_id for span in named["in a thread of a gather"] if span.parent} == {
        span.context.span_id for span in named["in a gather"] if span.context
    }


# Growth

_FOREIGN = [tracemalloc.Filter(False, "*/pydantic/*")]
"""pydantic caches the newest 16,384 short texts. The cache grows until it has about 1 MB."""


@dataclass(frozen=True)
class Size:
    """Return the memory that this process and its broker hold."""

    objects: int
    memory: int
    threads: int
    files: int
    tasks: int
    consumers: int

    @classmethod
    async def now(cls, bus: JetStreamBus, settings: Settings, tasks_before: int | None = None) -> Size:
        await _forget_cancelled_timers()
        empty_caches()
        tasks, samples = len(asyncio.all_tasks()), 0
        # Heartbeats and readers are short tasks: take the smallest number, and wait up to 20 s for the number before.
        while samples < 20 or (tasks_before is not None and tasks > tasks_before and samples < 400):
            await asyncio.sleep(0.05)
            tasks, samples = min(tasks, len(asyncio.all_tasks())), samples + 1
        return cls(
            objects=sum(str(type(each).__module__).startswith("pointsman") for each in gc.get_objects()),
            memory=sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces(_FOREIGN).traces),
            threads=threading.active_count(),
            files=len(os.listdir("/proc/self/fd")),
            tasks=tasks,
            consumers=sum(not name.startswith("reader") for name in await _consumers(bus, settings)),
        )


async def _consumers(bus: JetStreamBus, settings: Settings) -> list[str]:
    names = list[str]()
    for config in stream_configs(Subjects(settings.namespace), settings):
        names += (await bus.api(f"CONSUMER.NAMES.{config['name']}"))["consumers"] or ()
    return names


async def _readers(bus: JetStreamBus, settings: Settings) -> int:
    return sum(name.startswith("reader") for name in await _consumers(bus, settings))


async def _forget_cancelled_timers() -> None:
    """Make asyncio drop cancelled timers, which it keeps until they number 100 and are half of all timers."""
    loop = asyncio.get_running_loop()
    for _ in range(1000):
        loop.call_later(3600, int).cancel()
    await asyncio.sleep(0)


@sized
async def test_ended_workflows_leave_nothing_behind(settings: Settings, bus: JetStreamBus) -> None:
    @agent(name="blocking", description="Works in a thread of its own")
    def blocks(work: dict[str, Any]) -> Any:
        time.sleep(0.01)
        return work["say"]

    def request(number: int) -> dict[str, Any]:
        again, long = number % 20 == 7, number % 10 == 3
        tasks = steps("a", from_attempt=2 if again else 1, seconds=60 if long else 0)["tasks"] + steps("b")["tasks"]
        return {"tasks": [tasks[0], tasks[1] | {"agent": "blocking"}]}

    async def one(client: Client, number: int) -> str:
        workflow = await client.submit("crew", request(number))
        if number % 10 == 3:
            async for _ in workflow.events():  # the workflow has started
                break
            await asyncio.sleep(number % 7 / 100)
            await workflow.cancel("a test's")
        return (await workflow.outcome(SIZE.patience)).status

    async def batch(
        client: Client, size: int = SIZE.growth, *, tasks: int | None = None
    ) -> tuple[Size, Counter[str], float]:
        ended, began, few = Counter[str](), time.process_time(), asyncio.Semaphore(SIZE.together)

        async def admitted(number: int) -> None:
            async with few:
                ended[await one(client, number)] += 1

        await asyncio.gather(*map(admitted, range(size)))
        await until(lambda: _at_rest(bus), seconds=20)
        took = time.process_time() - began
        return await Size.now(bus, settings, tasks), ended, took

    async with Proxy("127.0.0.1", int(settings.url.rpartition(":")[2])) as proxy:
        # Use the proxy only if needed, because the proxy keeps pieces of up to 64 kB in memory.
        url = proxy.url if SIZE.slow else settings.url
        # A long heartbeat, because a process that counts its objects sends no heartbeats for some time.
        settings = settings.model_copy(update={"heartbeat": 5.0, "url": url})
        async with factory.team(team, [planner, synthesizer, worker, blocks], on=settings) as client:
            proxy.delay = SIZE.slow
            tracemalloc.start()
            try:
                await batch(client, SIZE.growth // 4)  # fill caches and open connections
                before, _, at_first = await batch(client)
                readers = await _readers(bus, settings)
                after, ended, at_last = await batch(client, tasks=before.tasks)
                async with asyncio.timeout(20):  # the broker removes a reader's consumer 2 s after its last use
                    while await _readers(bus, settings) > readers:
                        await asyncio.sleep(0.1)
            finally:
                tracemalloc.stop()
            proxy.delay = 0.0

    print(f"{before}\n{after}\nCPU: {at_first:.1f} s, {at_last:.1f} s")  # noqa: T201 - docs/faults.md has it from here
    assert ended == {"completed": SIZE.growth * 9 // 10, "cancelled": SIZE.growth // 10}
    assert (after.threads, after.consumers) == (before.threads, before.consumers)
    assert after.files <= before.files
    assert after.tasks <= before.tasks
    assert after.objects - before.objects < SIZE.growth / 2
    assert (after.memory - before.memory) / SIZE.growth < SIZE.forgotten


async def _at_rest(bus: JetStreamBus) -> bool:
    subjects = Subjects(bus._settings.namespace)
    consumers = [request_consumer(subjects, "crew"), *input_consumers(subjects, "crew")]
    consumers += [agent_consumer(subjects, name) for name in ("worker", "blocking")]
    depths = [await bus.depth(consumer.name, consumer.stream) for consumer in consumers]
    return all(depth is not None and depth.pending == depth.in_flight == 0 for depth in depths)
