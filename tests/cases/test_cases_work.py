"""Reported faults of other systems with the work itself: hung, cancelled, refused, repeated and nested work."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue
from support import factory
from support.adapters import KEY, openai
from support.broker import remove_streams
from support.checker import problems
from support.cluster import free_ports
from support.crew import CREW, planner, steps, synthesizer, team, worker
from support.lines import documents_of, lines_of
from support.processes import Service, System, wait_for
from support.providers import Answer, FakeProvider
from support.sizes import SIZE, sized
from support.waiting import measured_stalls, quickly, until

from pointsman.authoring.agent import agent
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.client.client import Client
from pointsman.errors import ModelError
from pointsman.llm.anthropic import AnthropicModel
from pointsman.llm.openai import OpenAIModel
from pointsman.ports.model import Model, ModelRequest, Turn
from pointsman.settings import Settings
from pointsman_schemas.card import Role
from pointsman_schemas.events import Outcome
from pointsman_schemas.log import AttemptFailed, TaskDispatched, WorkflowEnded
from pointsman_schemas.plan import Plan
from pointsman_schemas.role_io import PlannerInput, Synthesis, SynthesizerInput
from pointsman_schemas.team import Limits, PlanAndExecute, RetryPolicy, Team

pytestmark = pytest.mark.timeout(max(120, SIZE.patience))


async def test_frozen_and_killed_workers_are_replaced_within_two_ack_deadlines(
    settings: Settings, tmp_path: Path
) -> None:
    """A frozen worker keeps its connection and sends nothing. After it continues, its late messages have no effect."""
    settings = settings.model_copy(update={"deliveries": 10})
    book, gate = tmp_path / "journal", tmp_path / "gate"
    most = 2 * settings.ack_wait + 1.0

    async def begun(workflow: str, task: str, count: int) -> list[int]:
        lines = [line for line in documents_of(book) if line["what"] == "start"]
        pids = [line["pid"] for line in lines if (line["workflow"], line["task"]) == (workflow, task)]
        return pids if len(pids) >= count else []

    crew = System(tmp_path, settings, CREW_JOURNAL=str(book))
    async with factory.team(team, [planner, synthesizer], on=settings) as client, crew as system:
        workers = await asyncio.gather(*(system.worker(f"{CREW}:worker") for _ in range(2)))
        by_pid = {service.pid: service for service in workers}

        frozen = await client.submit("crew", steps("a", after=str(gate)))
        [pid] = await wait_for(lambda: begun(frozen.id, "a", 1), "start of the first task")
        os.kill(pid, signal.SIGSTOP)
        [_, other] = await quickly(wait_for(lambda: begun(frozen.id, "a", 2), "second start"), most)
        gate.touch()
        first = await frozen.outcome(20)
        meanwhile = await (await client.submit("crew", steps("x", "y"))).outcome(30)
        os.kill(pid, signal.SIGCONT)

        gate.unlink()
        killed = await client.submit("crew", steps("b", after=str(gate)))
        [victim] = await wait_for(lambda: begun(killed.id, "b", 1), "start of the second task")
        await by_pid[victim].kill()
        [_, heir] = await quickly(wait_for(lambda: begun(killed.id, "b", 2), "second start"), most)
        gate.touch()
        second = await killed.outcome(20)
        wrong = await problems(client.bus, client.subjects, "crew", [frozen.id, killed.id])
    await remove_streams(settings)

    assert other != pid
    assert heir != victim
    assert [(outcome.status, outcome.answer) for outcome in (first, meanwhile, second)] == [
        ("completed", "a"), ("completed", "x y"), ("completed", "b")]  # fmt: skip
    assert {task.attempts for outcome in (first, second) for task in outcome.tasks} == {1}
    assert wrong == []


STUBBORN = """
import asyncio, os, time
from pointsman import Context, agent

def note(name):
    with open(name, "a") as file:
        file.write(f"{os.getpid()}\\n")

@agent(name="waits", description="Waits", concurrency=1)
async def waits(seconds: float) -> str:
    note("waits")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        with open("stopped", "a") as file:
            file.write(f"{time.monotonic()}\\n")
        raise
    return "done"

@agent(name="blocks", description="Blocks a thread", concurrency=1)
def blocks(seconds: float) -> str:
    note("blocks")
    time.sleep(seconds)
    return "done"

@agent(name="spawns", description="Starts a process that starts another", concurrency=1)
async def spawns(seconds: float, context: Context) -> str:
    await context.run_process("sh", "-c", f"sleep {seconds} & echo $! >>spawns; wait")
    return "done"

@agent(name="refuses", description="Swallows cancellation", concurrency=1)
async def refuses(seconds: float) -> str:
    note("refuses")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            pass
    return "done"
"""


async def test_cancelled_workflow_ends_at_once_whatever_its_agents_do(settings: Settings, tmp_path: Path) -> None:
    kinds = ["waits", "blocks", "spawns", "refuses"]
    async with factory.team(team, [planner, synthesizer], on=settings) as client, System(tmp_path, settings) as system:
        service = await system.worker(system.write("stubborn.py", STUBBORN))

        def request(kind: str, seconds: float) -> dict[str, Any]:
            return {"tasks": [{"id": "t", "agent": kind, "intent": "take long", "input": seconds}]}

        async def cancelled(kind: str) -> tuple[Outcome, float, float]:
            workflow = await client.submit("crew", request(kind, 25.0))
            asked = 0.0
            async for event in workflow.events():
                if isinstance(event, TaskDispatched) and event.task_id == "t":
                    await until(lambda: lines_of(tmp_path / kind))  # the function runs
                    asked = time.monotonic()
                    await workflow.cancel("enough")
            took = time.monotonic() - asked  # until the stream of events has ended
            return await workflow.outcome(5), took, asked

        with measured_stalls() as stalls:
            endings = await asyncio.gather(*map(cancelled, kinds))
        after = await asyncio.gather(*(system.ask("crew", request(kind, 0.01)) for kind in kinds))
        abandoned = await service.logged("handler_abandoned")
        left = await service.logged("thread_orphaned")
        children = [int(line) for line in lines_of(tmp_path / "spawns")]
        [stopped] = map(float, lines_of(tmp_path / "stopped"))
    await remove_streams(settings)

    assert {outcome.status for outcome, _, _ in endings} == {"cancelled"}
    assert max(took for _, took, _ in endings) < 1.5 + sum(stalls)
    # All processes of a machine have the same clock.
    assert 0 < stopped - endings[kinds.index("waits")][2] < 1.0 + sum(stalls)
    assert {outcome.status for outcome in after} == {"completed"}  # cancelled work released the agent's only slot
    assert abandoned["agent"] == "refuses"
    assert (left["function"], left["agent"]) == ("blocks", "blocks")
    assert not [pid for pid in children if _runs(pid)]


def _runs(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    return False


async def test_fifty_cancels_at_a_failure_or_a_restart_end_a_workflow_once(settings: Settings) -> None:
    again = Team(name="crew", limits=Limits(deadline=60), retry=RetryPolicy(backoff=0.05, attempts=10))
    failing = {"tasks": [*steps("a", from_attempt=99)["tasks"], *steps("b", seconds=60)["tasks"]]}
    async with factory.team((), [planner, synthesizer, worker], on=settings) as client:
        async with factory.team(again, on=settings):
            at_failure = await client.submit("crew", failing)
            async for event in at_failure.events():
                if isinstance(event, AttemptFailed):
                    break
            replies = await asyncio.gather(*(at_failure.cancel("enough") for _ in range(50)))
            ended = await at_failure.outcome(10)
            at_restart = await client.submit("crew", steps("a", seconds=60))
            async for event in at_restart.events():
                if isinstance(event, TaskDispatched) and event.task_id == "a":
                    break
        cancelling = asyncio.gather(*(at_restart.cancel("enough") for _ in range(50)))
        async with factory.team(again, on=settings, supervisors=2):
            replies += await cancelling
            restarted = await at_restart.outcome(10)
        logs = [await client.entries(workflow.id) for workflow in (at_failure, at_restart)]
    await remove_streams(settings)

    assert {(outcome.status, outcome.reason) for outcome in (ended, restarted)} == {
        ("cancelled", "cancelled by anonymous: enough")
    }
    assert all(reply in (None, ended, restarted) for reply in replies)
    for entries in logs:
        assert [entry for entry in entries if isinstance(entry, WorkflowEnded)] == list(entries[-1:])


ROLES: dict[str, dict[str, Any]] = {
    "llm-planner": {"role": Role.PLAN, "input": PlannerInput, "output": Plan},
    "llm-worker": {"role": Role.WORK},
    "llm-synthesizer": {"role": Role.SYNTHESIZE, "input": SynthesizerInput, "output": Synthesis},
}


async def test_provider_refusal_is_one_call_and_an_outage_a_bounded_number(settings: Settings) -> None:
    """Count the agent's tries over all attempts, for a planner, a worker and a synthesizer."""
    settings = settings.model_copy(update={"ack_wait": 30.0})  # long: a redelivery would count as a second try
    strategies = {
        "llm-planner": PlanAndExecute(planner="llm-planner", synthesizer=None),
        "llm-worker": PlanAndExecute(synthesizer=None),
        "llm-synthesizer": PlanAndExecute(synthesizer="llm-synthesizer"),
    }
    limits, retry = Limits(deadline=60, task_timeout=30), RetryPolicy(attempts=2, backoff=0.05)
    teams = {
        name: Team(name=f"team-{name}", limits=limits, retry=retry, strategy=strategy)
        for name, strategy in strategies.items()
    }
    refused, passing = (400, 401, 403, 404, 422), (408, 409, 500)
    async with AsyncExitStack() as stack:
        provider = await stack.enter_async_context(FakeProvider())
        model = openai(provider)
        llms = [
            LLMAgent(name=name, description="Asks", instructions="Do it.", model=model, **how)
            for name, how in ROLES.items()
        ]
        client = await stack.enter_async_context(factory.team((), [*llms, planner, worker], on=settings))
        for each in teams.values():
            await stack.enter_async_context(factory.team(each, on=settings))

        async def tried(name: str, status: int) -> tuple[Outcome, int]:
            marker = f"marker-{name}-{status}."
            provider.when(marker, Answer(f"Incorrect API key provided: {KEY}", status=status))
            agent = "llm-worker" if name == "llm-worker" else "worker"
            task: JsonValue = {"id": "t", "agent": agent, "intent": marker, "input": {"say": marker}}
            outcome = await (await client.submit(teams[name].name, {"tasks": [task]})).outcome(50)
            return outcome, sum(marker in call.prompt for call in provider.calls)

        pairs = [(name, status) for name in ROLES for status in (*refused, *passing)]
        endings = dict(zip(pairs, await asyncio.gather(*(tried(*pair) for pair in pairs)), strict=True))
        await model.close()
    await remove_streams(settings)

    for (name, status), (outcome, calls) in endings.items():
        said = outcome.model_dump_json()
        written = name == "llm-synthesizer" and status in passing  # the outcome has results without an answer
        assert outcome.status == ("partial" if written else "failed"), (name, status)
        assert f"answered {status}" in said, (name, status)
        assert "0123456789" not in said
        assert calls == 1 if status in refused else 1 < calls <= 6, (name, status, calls)


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_model_that_trickles_its_answer_is_abandoned_in_time(provider: str) -> None:
    callers: list[asyncio.Task[None] | None] = []

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        callers.append(asyncio.current_task())
        with suppress(OSError, EOFError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n")
            while not writer.is_closing():
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.1)
        writer.close()

    server = await asyncio.start_server(trickle, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    model: Model = (
        OpenAIModel("gpt-4.1", api_key=KEY, base_url=url, timeout=0.5)
        if provider == "openai"
        else AnthropicModel("claude-haiku-4-5", api_key=KEY, base_url=url, timeout=0.5)
    )
    with pytest.raises(ModelError, match="timed out") as caught:
        async with asyncio.timeout(20):
            await model.complete(ModelRequest(model="", instructions="Be brief.", turns=(Turn("user", "hello"),)))
    await model.close()
    server.close()
    await asyncio.wait([caller for caller in callers if caller is not None], timeout=10)

    assert caught.value.retryable
    assert len(callers) == 1


async def test_a_supervisor_s_successor_needs_nothing_but_the_broker(settings: Settings, tmp_path: Path) -> None:
    """A supervisor is killed while workflows run. It leaves no file behind, and its successor with another home folder
    reaches the same answer."""
    settings = settings.model_copy(update={"ack_wait": 1.0})
    gate = tmp_path / "gate"
    requests = [steps("a", "b", "c", serial=serial, after=str(gate)) for serial in (False, True)]

    async def elsewhere(number: int) -> AsyncIterator[Service]:
        """Run a supervisor with its own home folder. Assert at the end that the folder is empty."""
        folder = tmp_path / f"home-{number}"
        folder.mkdir()
        places = {"HOME": str(folder), "TMPDIR": str(folder), "XDG_CACHE_HOME": str(folder)}
        async with System(tmp_path / f"system-{number}", settings, **places) as system:
            yield await system.supervisor(CREW)
        files = [path.name for path in system.folder.iterdir() if path.suffix != ".log"]
        assert (list(folder.iterdir()), files) == ([], [])

    async with factory.team((), [planner, synthesizer, worker], on=settings) as client:
        async with asynccontextmanager(elsewhere)(1) as supervisor:
            workflows = [await client.submit("crew", request) for request in requests]
            for subject in [client.subjects.handoff("worker", "crew", workflow.id, "a", 1) for workflow in workflows]:
                await wait_for(partial(client.bus.last, "work", subject), "task that waits")
            await supervisor.kill()
            gate.touch()
        async with asynccontextmanager(elsewhere)(2):
            outcomes = [await workflow.outcome(30) for workflow in workflows]
        wrong = await problems(client.bus, client.subjects, "crew", [workflow.id for workflow in workflows])
    await remove_streams(settings)

    assert {(outcome.status, outcome.answer) for outcome in outcomes} == {("completed", "a b c")}
    assert wrong == []


@asynccontextmanager
async def _collector(manner: str) -> AsyncIterator[str]:
    """An OTLP endpoint that refuses connections, hangs, is overloaded, or takes three seconds for each answer."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(OSError, EOFError):  # the test may end while this handler waits
            while await reader.read(65_536):
                if manner == "is slow":
                    await asyncio.sleep(3)
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                    await writer.drain()
                    break
                if manner == "is overloaded":
                    writer.write(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                    await writer.drain()
                    break

    if manner == "refuses":
        yield f"http://127.0.0.1:{free_ports(1)[0]}"
        return
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@sized
@pytest.mark.parametrize("manner", ["refuses", "hangs", "is overloaded", "is slow"])
async def test_no_process_is_delayed_by_its_collector(settings: Settings, tmp_path: Path, manner: str) -> None:
    """All processes do their work, use little memory and stop in time."""
    async with AsyncExitStack() as stack:
        endpoint = await stack.enter_async_context(_collector(manner))
        system = System(tmp_path, settings, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint)
        await stack.enter_async_context(system)
        services = await asyncio.gather(system.supervisor(CREW), system.worker(CREW))
        few = asyncio.Semaphore(20)

        async def ended() -> str:
            async with few:
                return (await system.ask("crew", steps("a", "b"), seconds=60)).status

        await asyncio.gather(*(ended() for _ in range(SIZE.unexported)))
        before = [_memory(service.pid) for service in services]
        statuses = await asyncio.gather(*(ended() for _ in range(SIZE.unexported)))
        grown = [_memory(service.pid) - size for service, size in zip(services, before, strict=True)]

        async def left(service: Service) -> float:
            asked = time.monotonic()
            assert await service.stop(seconds=15) == 0
            return time.monotonic() - asked

        with measured_stalls() as stalls:
            took = await asyncio.gather(*map(left, services))
        lost = [sum(line["count"] for line in service.lines("spans_lost")) for service in services]
        loud = [len(service.lines(level="warning")) for service in services]
    await remove_streams(settings)

    said = ", ".join(f"{size / 1e6:.1f} MB" for size in grown), ", ".join(f"{seconds:.1f} s" for seconds in took), lost
    print(manner, *said)  # noqa: T201 - docs/faults.md has it from here
    assert Counter(statuses) == {"completed": SIZE.unexported}
    assert max(grown) < 4_000_000
    assert max(took) < 5.0 + sum(stalls)  # 4 s of this are the limit for the last export
    assert manner == "is slow" or min(lost) >= SIZE.unexported  # the slow collector may accept all spans
    assert max(loud) < 20


def _memory(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    return int(re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[0]) * 1024


async def test_request_from_a_step_under_its_workflows_id_is_another_workflow(settings: Settings) -> None:
    inner = Team(name="inner", strategy=PlanAndExecute(synthesizer=None))
    asked: list[Client] = []

    @agent(name="nester", description="Asks another team under the id it was given")
    async def nester(work: dict[str, Any]) -> Any:
        nested = await asked[0].submit("inner", steps(work["say"]), request_id=work["id"])
        return (await nested.outcome(30)).answer

    async def ask(client: Client, number: int) -> Any:
        task: JsonValue = {
            "id": "t1",
            "agent": "nester",
            "intent": "ask",
            "input": {"say": f"nonce-{number}", "id": str(number)},
        }
        workflow = await client.submit("crew", {"tasks": [task]}, request_id=str(number))
        return (await workflow.outcome(30)).answer

    async with (
        factory.team(team, [planner, synthesizer, worker, nester], on=settings) as client,
        factory.team(inner, on=settings),
    ):
        asked.append(client)
        answers = await asyncio.gather(*(ask(client, number) for number in range(10)))

    assert answers == [f"nonce-{number}" for number in range(10)]
