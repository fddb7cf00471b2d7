"""An unprocessable message becomes a dead letter, its workflow ends once, and `pointsman dead` replays it."""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nats
import pytest
import pytest_asyncio
from pydantic import JsonValue
from support import factory
from support.broker import remove_streams
from support.crew import CREW, steps
from support.lines import documents_of
from support.processes import System, wait_for

from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.engine.process.consumers import consumer_name
from pointsman.settings import Settings
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import DeadLetter, Handoff, Result
from pointsman_schemas.log import PlanRejected, WorkflowEnded
from pointsman_schemas.strict_json import dump, parse

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    """Yield a system with a supervisor process and a worker process."""
    folder = tmp_path_factory.mktemp("failures")
    settings = Settings(url=broker.url, namespace=f"t{secrets.token_hex(4)}", ack_wait=2.0, max_body=1_048_576)
    async with System(folder, settings, CREW_JOURNAL=str(folder / "journal")) as system:
        await asyncio.gather(system.supervisor(CREW), system.worker(CREW))
        yield system
        assert all(service.alive for service in system.services)
    await remove_streams(settings)


def headers_of(name: str, event_type: str) -> dict[str, str]:
    return encode(Envelope(id=name, type=event_type, source="/test", time=datetime.now(UTC)))


async def letters_of(system: System, workflow: str, *, count: int = 1) -> list[DeadLetter]:
    """Wait until a workflow has `count` dead letters, and return them."""
    bus, subject = system.client.bus, system.client.subjects.dead_letters_for(workflow=workflow)

    async def look() -> list[DeadLetter]:
        letters = [parse(DeadLetter, stored.body) async for stored in bus.read("dead", subject)]
        return letters if len(letters) >= count else []

    return await wait_for(look, f"dead letter of {workflow}")


async def endings(system: System, workflow: str) -> int:
    return sum(isinstance(entry, WorkflowEnded) for entry in await system.client.entries(workflow))


@dataclass(frozen=True)
class Bad:
    """A message that cannot be processed: its body, the event type in its headers, and the expected kind of cause."""

    body: bytes
    kind: str
    event_type: str = ""


BAD_REQUESTS = {
    "not-json": Bad(b"not json", "undecodable"),
    "not-utf8": Bad(b'{"input": "\xff"}', "undecodable"),
    "wrong-type": Bad(b'{"input": 7}', "undecodable"),
    "empty": Bad(b"", "undecodable"),
    "too-deep": Bad(b'{"input": ' + b'{"a": ' * 300 + b"1" + b"}" * 301, "undecodable"),
    "nan": Bad(b'{"input": {"a": NaN}}', "undecodable"),
    "version-9": Bad(b'{"input": "x"}', "unknown_type", "io.pointsman.request.v9"),
    "oversize": Bad(b'{"input": "' + b"x" * 1_048_000 + b'"}', "oversize"),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
async def test_a_request_that_cannot_be_processed_fails_its_workflow_and_is_kept(system: System, name: str) -> None:
    bad, subjects = BAD_REQUESTS[name], system.client.subjects
    headers = headers_of(name, bad.event_type) if bad.event_type else {"Nats-Msg-Id": name}

    workflow = await _publish(system, subjects.request("crew", "anonymous"), bad.body, headers)
    outcome = await factory.workflow_of(system.client, workflow).outcome(20)
    (letter,) = await letters_of(system, workflow)

    assert outcome.status == "failed"
    assert "Could not help, because" in str(outcome.answer)
    assert (letter.cause.kind, letter.attempts, letter.subject) == (bad.kind, 1, subjects.request("crew", "anonymous"))
    assert letter.team == "crew"
    if name != "oversize":
        assert base64.b64decode(letter.body) == bad.body
    if bad.event_type:
        assert letter.headers == headers
    assert await endings(system, workflow) == 1


BAD_RESULTS = {
    "not-json": Bad(b"not json", "undecodable", Result.event_type),
    "wrong-fields": Bad(b'{"status": "fine"}', "undecodable", Result.event_type),
    "version-9": Bad(b"{}", "unknown_type", "io.pointsman.result.v9"),
    "about-another-task": Bad(b"", "undecodable", Result.event_type),
}


@pytest.mark.parametrize("name", BAD_RESULTS)
async def test_a_result_that_cannot_be_processed_fails_its_task_and_is_kept(
    system: System, name: str, tmp_path: Path
) -> None:
    bad, bus, subjects = BAD_RESULTS[name], system.client.bus, system.client.subjects
    released = tmp_path / "released"  # the worker stores its own result after the bad result
    workflow = await system.client.submit("crew", steps("t1", after=str(released)))
    now = datetime.now(UTC)
    other = Result(workflow_id="wf_other", task_id="t1", attempt=1, agent="worker", status="succeeded", started_at=now,
                   ended_at=now)  # fmt: skip
    body = bad.body or dump(other)
    place = await factory.return_to(bus, subjects.handoff("worker", "crew", workflow.id, "t1", 1))

    headers = headers_of(name, bad.event_type)
    await bus.publish(place, body, headers, expect=0)
    outcome = await workflow.outcome(20)
    released.touch()
    kept = {letter.origin: letter for letter in await letters_of(system, workflow.id, count=2)}

    assert outcome.status == "failed"
    assert "the result of worker cannot be read" in outcome.gaps[0].reason
    assert kept["crew"].cause.kind == bad.kind
    assert (kept["crew"].attempts, kept["crew"].headers) == (1, headers)
    assert base64.b64decode(kept["crew"].body) == body
    assert (kept["worker"].task_id, kept["worker"].cause.kind) == ("t1", "undecodable")
    assert await endings(system, workflow.id) == 1


async def test_failing_handler_is_dead_lettered_at_the_cap_with_its_handoff(system: System) -> None:
    workflow = await system.client.submit("crew", steps("t1", from_attempt=9))
    outcome = await workflow.outcome(20)
    (letter,) = await letters_of(system, workflow.id)
    handoff = parse(Handoff, base64.b64decode(letter.body))

    assert outcome.status == "failed"
    assert (letter.origin, letter.task_id, letter.attempts, letter.cause.kind) == ("worker", "t1", 2, "handler_error")
    assert letter.cause.message == "not before attempt 9"
    assert letter.subject == system.client.subjects.handoff("worker", "crew", workflow.id, "t1", 2)
    assert letter.headers["ce-type"] == Handoff.event_type
    assert handoff.input == {"say": "t1", "from_attempt": 9}
    assert len(runs(system, workflow.id)) == 2
    assert await endings(system, workflow.id) == 1


FATAL = """
import os
from pointsman import agent

@agent(name="worker", description="Ends its process")
async def worker(task: str) -> str:
    with open("runs", "a") as runs:
        runs.write(task + "\\n")
    os._exit(7)
"""


async def end_delivery(system: System, broker: EmbeddedBroker, workflow: str, number: int) -> None:
    """Return the delivery `number` of the only handoff to the broker, as the end of `ack_wait` does.

    With a short `ack_wait`, a delayed worker would get the handoff again before its function runs.
    """
    subjects = system.client.subjects
    stored = await system.client.bus.last("work", subjects.handoff("worker", "crew", workflow, "t1", 1))
    assert stored is not None
    consumer = f"{subjects.work_stream}.{consumer_name('worker')}"
    async with await nats.connect(broker.url) as connection:
        await connection.publish(f"$JS.ACK.{consumer}.{number}.{stored.sequence}.{number}.0.0", b"-NAK")


async def test_task_that_kills_its_workers_fails_at_the_cap(broker: EmbeddedBroker, tmp_path: Path) -> None:
    settings = Settings(url=broker.url, namespace=f"t{secrets.token_hex(4)}", max_deliveries=2)
    plan: dict[str, JsonValue] = {"tasks": [{"id": "t1", "agent": "worker", "intent": "do what kills", "input": "die"}]}
    async with System(tmp_path / "fatal", settings) as system:
        roles = system.write("roles.py", "from crew import planner, synthesizer\n")
        fatal = system.write("fatal.py", FATAL)
        system.environment["PYTHONPATH"] = f"{Path(CREW).parent}{os.pathsep}{system.environment.get('PYTHONPATH', '')}"
        *_, first = await asyncio.gather(system.supervisor(CREW), system.worker(roles), system.worker(fatal))
        workflow = await system.client.submit("crew", plan)
        codes = [await first.ended()]
        await end_delivery(system, broker, workflow.id, 1)
        codes.append(await (await system.start("worker", fatal)).ended())
        await end_delivery(system, broker, workflow.id, 2)
        last = await system.start("worker", fatal)
        outcome = await workflow.outcome(20)
        (letter,) = await letters_of(system, workflow.id)
        alive = last.alive
    await remove_streams(settings)

    assert (codes, alive) == ([7, 7], True)
    assert (system.folder / "runs").read_text().split() == ["die", "die"]
    assert outcome.status == "failed"
    assert "no worker of worker answered the handoff" in outcome.gaps[0].reason
    assert (letter.origin, letter.task_id, letter.cause.kind) == ("worker", "t1", "worker_crashed")


async def test_planner_that_names_an_unknown_agent_is_asked_twice(system: System) -> None:
    plan: dict[str, JsonValue] = {"tasks": [{"id": "t1", "agent": "absent", "intent": "do work without an agent"}]}
    workflow = await system.client.submit("crew", plan)
    outcome = await workflow.outcome(20)
    rejected = [entry for entry in await system.client.entries(workflow.id) if isinstance(entry, PlanRejected)]
    (letter,) = await letters_of(system, workflow.id)

    assert outcome.status == "failed"
    assert "no valid plan after 2 tries" in outcome.reason
    assert "absent" in outcome.reason
    assert len(rejected) == 2
    assert "absent" in rejected[-1].raw
    assert (letter.origin, letter.cause.kind) == ("planner", "invalid_plan")
    assert await endings(system, workflow.id) == 1


async def test_replayed_task_continues_its_running_workflow_under_the_same_key(system: System) -> None:
    mended, released = system.folder / "mended-1", system.folder / "released-1"
    failing = steps("t1", from_attempt=9, mended_by=str(mended))["tasks"]
    waiting = steps("t2", after=str(released))["tasks"]
    workflow = await system.client.submit("crew", {"tasks": [*failing, *waiting]})
    (letter,) = await letters_of(system, workflow.id)

    listed = await system.command("dead", "list", "--workflow", workflow.id, "--json")
    shown = await system.command("dead", "show", letter.id, "--json")
    mended.touch()
    replayed = await system.command("dead", "replay", letter.id, "--json")
    await wait_for(lambda: _has_ended(system, workflow.id, "t1"), "end of the replayed attempt")
    released.touch()
    outcome = await workflow.outcome(20)

    assert [each["id"] for each in listed.documents] == [letter.id]
    assert shown.documents[0]["cause"]["message"] == "not before attempt 9"
    assert shown.documents[0]["decoded"]["intent"] == "do t1"
    assert replayed.documents == [{"letter": letter.id, "action": "task", "workflow": workflow.id, "removed": True}]
    assert (outcome.status, outcome.answer, outcome.gaps) == ("completed", "t1 t2", ())
    ran = runs(system, workflow.id, "t1")
    (key,) = {line["key"] for line in ran}
    assert [line["attempt"] for line in ran] == [1, 2, 3]
    assert key.startswith(f"{workflow.id}.t1.")


async def test_finished_workflow_is_replayed_as_a_new_one_or_not_at_all(system: System) -> None:
    mended = system.folder / "mended-2"
    workflow = await system.client.submit("crew", steps("t1", from_attempt=9, mended_by=str(mended)))
    await workflow.outcome(20)
    (letter,) = await letters_of(system, workflow.id)

    refused = await system.command("dead", "replay", letter.id)
    mended.touch()
    renewed = await system.command("dead", "replay", letter.id, "--as-new", "--keep", "--json")
    discarded = await system.command("dead", "discard", letter.id, "--yes", "--json")
    gone = await system.command("dead", "show", letter.id)
    outcome = await (factory.workflow_of(system.client, renewed.documents[0]["workflow"])).outcome(20)

    assert refused.code == 1
    assert "has ended: failed" in refused.errors
    assert "--as-new" in refused.errors
    assert renewed.documents[0]["workflow"] != workflow.id
    assert (outcome.status, outcome.answer) == ("completed", "t1")
    assert discarded.documents == [{"letter": letter.id, "discarded": True}]
    assert gone.code == 3
    assert await endings(system, workflow.id) == 1


def runs(system: System, workflow: str, task: str = "t1", what: str = "start") -> list[dict[str, Any]]:
    """Return the recorded runs of a task."""
    lines = documents_of(system.folder / "journal")
    return [line for line in lines if (line["workflow"], line["task"], line["what"]) == (workflow, task, what)]


async def _has_ended(system: System, workflow: str, task: str) -> bool:
    return bool(runs(system, workflow, task, "end"))


async def _publish(system: System, subject: str, body: bytes, headers: dict[str, str]) -> str:
    """Publish a request as a foreign client does. Return the id of its workflow."""
    kept = {key: value for key, value in headers.items() if key != "Nats-Msg-Id"}
    return (await system.client.workflow_from_sequence(await system.client.bus.publish(subject, body, kept))).id
