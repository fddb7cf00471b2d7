"""Every workflow reaches exactly one outcome, although processes and brokers are killed."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from support import factory
from support.broker import remove_streams
from support.crew import CREW, planner, steps, synthesizer, team, worker
from support.processes import System, wait_for
from support.sizes import SIZE, sized
from support.waiting import measured_stalls

from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.client.client import Client, Workflow
from pointsman.engine.log.reader import read_commit
from pointsman.engine.process.consumers import agent_consumer, input_consumers
from pointsman.errors import NotFoundError
from pointsman.settings import Settings
from pointsman_schemas.events import Outcome
from pointsman_schemas.log import Entry, PlanAccepted, TaskDispatched, TaskSucceeded, WorkflowEnded, WorkflowStarted
from pointsman_schemas.team import PlanAndExecute, Team

pytestmark = pytest.mark.timeout(max(180, SIZE.patience))


async def check(system: System, workflow: Workflow) -> None:
    """Assert that the only terminal entry of a log is its last entry, and that no attempt or result occurs twice."""
    entries = await system.client.entries(workflow.id)
    assert [entry for entry in entries if isinstance(entry, WorkflowEnded)] == list(entries[-1:])
    assert _repeated((entry.task_id, entry.attempt) for entry in entries if isinstance(entry, TaskDispatched)) == []
    assert _repeated(entry.task_id for entry in entries if isinstance(entry, TaskSucceeded)) == []


def _repeated(values: Any) -> list[Any]:
    return [value for value, count in Counter(values).items() if count > 1]


FAILING = {
    "tasks": [{"id": "x", "agent": "absent", "intent": "cannot be planned"}],
    "repaired": {
        "tasks": [
            {"id": "t1", "agent": "worker", "intent": "succeed", "input": {"say": "one"}},
            {"id": "t2", "agent": "worker", "intent": "succeed later", "input": {"say": "two", "from_attempt": 2}},
            {"id": "t3", "agent": "worker", "intent": "fail", "input": {"say": "three", "from_attempt": 9}},
            {"id": "t4", "agent": "worker", "intent": "be skipped", "input": {"say": "four"}, "depends_on": ["t3"]},
        ]
    },
}
"""A refused plan, a failed attempt, a failed task and a skipped task."""


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
    seen: set[tuple[str, str]] = set()  # workflow and kind of each entry before the newest kill
    ended: set[str] = set()
    deaths = died_at = 0
    async with factory.team((), [planner, synthesizer, worker], on=settings), System(tmp_path, settings) as system:
        with measured_stalls() as stalls:
            bus, logs = system.client.bus, system.client.subjects.team_logs("crew")
            supervisor = await system.supervisor(CREW)
            workflows = {name: await system.client.submit("crew", request) for name, request in requests.items()}
            names = {workflow.id: name for name, workflow in workflows.items()}
            async for stored in bus.follow("log", [logs]):
                name = names[stored.subject.rpartition(".")[2]]
                kinds = {(name, entry.kind) for entry in read_commit(stored).entries}
                if not kinds <= seen and stored.sequence > died_at:
                    await supervisor.kill()
                    newest = await bus.last("log", logs)
                    deaths, died_at = deaths + 1, newest.sequence if newest else 0
                    supervisor = await system.supervisor(CREW)
                seen |= kinds
                ended |= {name for _, kind in kinds if kind == "workflow_ended"}
                if len(ended) == len(requests):
                    break
            outcomes = {name: await workflow.outcome(30) for name, workflow in workflows.items()}
            for workflow in workflows.values():
                await check(system, workflow)
    await remove_streams(settings)

    assert {name: (outcome.status, outcome.answer) for name, outcome in outcomes.items()} == expected
    assert {kind for _, kind in seen} >= {
        "workflow_started", "task_added", "task_dispatched", "plan_rejected", "plan_accepted", "attempt_failed",
        "retry_scheduled", "task_succeeded", "task_failed", "task_skipped", "workflow_ended",
    }  # fmt: skip
    # Usually 7. If the test stands still, the supervisor commits ahead, so each second of that may cost a kill.
    assert deaths >= 6 - sum(stalls)


MOMENTS: dict[str, type[Any]] = {"begun": WorkflowStarted, "planned": PlanAccepted, "half done": TaskSucceeded}


async def test_fifty_cancels_end_a_workflow_as_one_does(settings: Settings) -> None:
    async with factory.team(team, [planner, synthesizer, worker], on=settings) as client:

        async def cancelled(moment: str, count: int) -> tuple[Outcome, list[Outcome | None], Sequence[Entry]]:
            request = {"tasks": [*steps("a")["tasks"], *steps("b", seconds=60)["tasks"]]}
            workflow = await client.submit("crew", request)
            async for event in workflow.events():
                if isinstance(event, MOMENTS[moment]) and getattr(event, "task_id", "a") == "a":
                    break
            replies = await asyncio.gather(*(workflow.cancel("enough") for _ in range(count)))
            return await workflow.outcome(10), replies, await client.entries(workflow.id)

        found_out = await asyncio.gather(*(cancelled(moment, count) for moment in MOMENTS for count in (1, 2, 50)))
        finished = await client.submit("crew", steps("a"))
        outcome = await finished.outcome(10)
        before = await client.entries(finished.id)
        answers = [await finished.cancel() for _ in range(2)]
        with pytest.raises(NotFoundError, match="wf_unknown"):
            await client.workflow("wf_unknown")
        await wait_for(lambda: _idle(client, "worker"), "rest for supervisor and worker")

        assert await client.entries(finished.id) == before
    assert answers == [outcome, outcome]
    for ended, replies, entries in found_out:
        assert (ended.status, ended.reason) == ("cancelled", f"cancelled by {client.user}: enough")
        assert all(reply in (None, ended) for reply in replies)
        assert [entry for entry in entries if isinstance(entry, WorkflowEnded)] == list(entries[-1:])


async def _idle(client: Client, agent: str) -> bool:
    subjects = client.subjects
    consumers = (*input_consumers(subjects, "crew"), agent_consumer(subjects, agent))
    depths = [await client.bus.depth(consumer.name, consumer.stream) for consumer in consumers]
    return all(depth is not None and depth.pending == depth.in_flight == 0 for depth in depths)


@sized
@pytest.mark.parametrize(("tenants", "teams"), [(4, 5), (1, 5), (1, 1)], ids=["tenants", "teams", "callers alone"])
async def test_the_same_ids_from_many_callers_cross_no_answers(
    broker: EmbeddedBroker, namespace: str, tenants: int, teams: int
) -> None:
    """Twenty callers use five teams in each of four namespaces, five teams in one namespace, or one team."""
    spaces = [Settings(url=broker.url, namespace=f"{namespace}{letter}") for letter in "abcd"[:tenants]]
    every = [Team(name=f"team-{number}", strategy=PlanAndExecute(synthesizer=None)) for number in range(teams)]
    ids, callers = [str(number) for number in range(1, SIZE.ids + 1)], 20 // tenants

    async def ask(caller: Client, name: str, request_id: str) -> tuple[str, Any, Any]:
        nonce = secrets.token_hex(8)
        request = steps(request_id)["tasks"][0] | {"input": {"say": nonce}}
        first, again = [await caller.submit(name, {"tasks": [request]}, request_id=request_id) for _ in range(2)]
        assert first.id == again.id
        outcome = await first.outcome(SIZE.patience)
        return nonce, outcome.answer, outcome.correlation_id

    async def serve(settings: Settings) -> list[tuple[str, Any, Any]]:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(factory.team((), [planner, worker], on=settings))
            for each in every:
                await stack.enter_async_context(factory.team(each, on=settings))
            asking = []
            for number in range(callers):
                caller = Client(client.bus, namespace=settings.namespace)
                caller.source = caller.subjects.source("client", f"caller-{number}")
                asking += [ask(caller, every[number % teams].name, name) for name in ids]
            return await asyncio.gather(*asking)

    answers = [answer for tenant in await asyncio.gather(*map(serve, spaces)) for answer in tenant]
    for settings in spaces:
        await remove_streams(settings)

    assert len(answers) == 20 * len(ids)
    assert [said for _, said, _ in answers] == [nonce for nonce, _, _ in answers]
    assert Counter(correlation for _, _, correlation in answers) == dict.fromkeys(ids, 20)
