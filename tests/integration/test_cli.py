"""The command line prints the true state of a running system."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support import factory
from support.broker import remove_streams
from support.factory import echo, planner_of, synthesizer
from support.otlp import OtlpCollector, orphans, roots
from support.waiting import until
from typer.testing import CliRunner

from pointsman.authoring.agent import Agent, agent
from pointsman.bus.jetstream.bus import JetStreamBus
from pointsman.cli.app import app
from pointsman.client.client import Client
from pointsman.errors import TaskError
from pointsman.settings import Settings
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import AttemptError, DeadLetter
from pointsman_schemas.strict_json import dump
from pointsman_schemas.team import Limits, RetryPolicy, Team

TEAM = Team(name="crew", limits=Limits(deadline=30), retry=RetryPolicy(backoff=0.05, attempts=1))
TASKS = ({"id": "t1", "agent": "a", "intent": "do this"}, {"id": "t2", "agent": "b", "intent": "do that"})
CREW = (planner_of(*TASKS), synthesizer, echo("a"), echo("b"))


def breaking() -> Agent:
    """Return an agent that always fails."""

    @agent(name="a", description="Has no luck")
    async def unlucky(request: str) -> str:
        raise TaskError("out of bolts")

    return unlucky


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one command."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass(frozen=True, slots=True)
class Shell:
    """Runs `pointsman` commands in this test's namespace, one after another, because they share standard output."""

    settings: Settings

    async def __call__(self, *arguments: str, input: bytes = b"") -> Run:
        placed = [*arguments, "--url", self.settings.url, "--namespace", self.settings.namespace]
        # A thread, because a command starts its own event loop.
        result = await asyncio.to_thread(CliRunner().invoke, app, placed, input=input)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Run(result.exit_code, result.stdout, result.stderr)

    async def json(self, *arguments: str, input: bytes = b"") -> Run:
        return await self(*arguments, "--json", input=input)


@pytest.fixture
def shell(bus: object, settings: Settings) -> Shell:
    return Shell(settings)


async def test_submit_prints_the_answer_and_nothing_else_on_standard_output(shell: Shell) -> None:
    async with factory.team(TEAM, CREW, on=shell.settings):
        run = await shell("submit", "crew", "hello")

    assert (run.code, run.out) == (0, "joined\n")
    assert "completed in" in run.err


async def test_every_view_of_a_workflow_shows_the_same_one(shell: Shell) -> None:
    async with factory.team(TEAM, CREW, on=shell.settings):
        submitted = await shell.json("submit", "crew", "-", "--watch", input=b"hello\n")
        workflow = submitted.lines[0]["log"]["workflow_id"]
        listed = await shell.json("list", "--team", "crew")
        shown = await shell.json("show", workflow)
        watched = await shell.json("watch", workflow)
        traced = await shell.json("trace", workflow)
        cancelled = await shell("cancel", workflow)

    assert submitted.lines == watched.lines
    assert [(line["workflow_id"], line["status"]) for line in listed.lines] == [(workflow, "completed")]
    assert listed.lines[0]["id"] == workflow
    show = shown.lines[0]
    assert [task["id"] for task in show["plan"]["tasks"]] == ["t1", "t2"]
    assert (show["request"], show["outcome"]["answer"]) == ("hello", "joined")
    assert show["entries"] == [line["log"] for line in watched.lines if "log" in line]
    names = [child["name"] for child in traced.lines[0]["children"][0]["children"]]
    assert sorted(names) == ["invoke_agent a", "invoke_agent b", "plan planner", "synthesize synthesizer"]
    assert cancelled.code == 1
    assert "already ended: completed" in cancelled.err


async def test_followed_trace_is_drawn_once_without_a_terminal(shell: Shell) -> None:
    async with factory.team(TEAM, CREW, on=shell.settings):
        workflow = (await shell.json("submit", "crew", "hello", "--no-wait")).lines[0]["workflow_id"]
        run = await shell("trace", workflow, "--follow")

    assert run.code == 0
    assert run.out.count("invoke_workflow crew") == 1
    assert "\x1b" not in run.out


async def test_a_collector_takes_the_file_that_trace_writes(shell: Shell) -> None:
    async with factory.team(TEAM, CREW, on=shell.settings), OtlpCollector() as collector:
        outcome = (await shell.json("submit", "crew", "hello")).lines[0]
        written = await shell("trace", outcome["workflow_id"], "--otlp", "-")
        sent = urllib.request.Request(
            f"{collector.endpoint}/v1/traces", written.out.encode(), {"Content-Type": "application/json"}
        )
        with await asyncio.to_thread(urllib.request.urlopen, sent) as answer:
            assert answer.status == 200
        spans = await collector.spans(until=lambda spans: len(spans) >= 9)

    assert {span.trace_id for span in spans} == {outcome["trace_id"]}
    assert {span.name for span in spans} >= {"invoke_workflow crew", "invoke_agent a", "plan planner"}
    assert [span.name for span in roots(spans)] == ["invoke_workflow crew"]
    assert orphans(spans) == []


async def test_a_workflow_is_exported_and_opened_in_another_namespace(shell: Shell, tmp_path: Path) -> None:
    file, elsewhere = str(tmp_path / "workflow.json"), f"{shell.settings.namespace}x"
    async with factory.team(TEAM, CREW, on=shell.settings):
        workflow = (await shell.json("submit", "crew", "hello")).lines[0]["workflow_id"]
        exported = await shell.json("export", workflow, file)
    other = Shell(shell.settings.model_copy(update={"namespace": elsewhere}))
    imported = await other.json("import", file)
    again = await other("import", file)
    shown = await other("show", workflow)
    await remove_streams(other.settings)

    assert exported.lines[0]["messages"] > imported.lines[0]["messages"] > 3
    assert (again.code, "already" in again.err) == (1, True)
    assert "joined" in shown.out


async def test_human_output_has_no_json_and_no_control_characters(shell: Shell) -> None:
    async with factory.team(TEAM, CREW, on=shell.settings):
        workflow = (await shell.json("submit", "crew", "\x1b[31mred")).lines[0]["workflow_id"]
        commands = (["watch", workflow], ["show", workflow], ["trace", workflow], ["list"])
        runs = [await shell(*command) for command in commands]

    assert [run.code for run in runs] == [0, 0, 0, 0]
    assert all("\x1b" not in run.out for run in runs)
    assert "\\x1b[31mred" in runs[1].out


async def test_a_workflow_that_did_not_complete_ends_submit_with_1(shell: Shell) -> None:
    async with factory.team(TEAM, [planner_of(TASKS[0]), synthesizer, breaking()], on=shell.settings):
        run = await shell("submit", "crew", "hello")

    assert run.code == 1
    assert "t1 (a)" in run.err


async def test_failed_workflow_is_resumed_and_watched_to_its_second_end(shell: Shell) -> None:
    async with factory.team(TEAM, [planner_of(TASKS[0]), synthesizer, breaking()], on=shell.settings):
        failed = await shell("submit", "crew", "hello")
        (listed,) = (await shell.json("list")).lines
        workflow = listed["workflow_id"]
    assert re.search(f"`pointsman resume {workflow} --url .*` does the failed tasks again", failed.err)

    async with factory.team(TEAM, [planner_of(TASKS[0]), synthesizer, echo("a")], on=shell.settings):
        resumed = await shell("resume", workflow[:12], "--reason", "mended")
        watched = await shell.json("watch", workflow)
        again = await shell("resume", workflow)
        shown = await shell.json("show", workflow)

    assert (resumed.code, resumed.out.splitlines()[0]) == (
        0,
        f"Workflow {workflow} continues in round 2; done again: t1.",
    )
    assert [line["log"]["outcome"]["round"] for line in watched.lines if "outcome" in line.get("log", {})] == [1, 2]
    assert (again.code, "ended as completed" in again.err) == (1, True)
    assert (shown.lines[0]["status"], shown.lines[0]["outcome"]["round"]) == ("completed", 2)


async def test_waiting_no_longer_than_asked_ends_with_1_and_the_way_back(shell: Shell) -> None:
    run = await shell("submit", "absent", "hello", "--timeout", "0.2")

    assert run.code == 1
    assert "pointsman watch wf_" in run.err
    assert "no supervisor of team absent" in run.err
    assert "pointsman doctor absent" in run.err
    assert "no team is called absent. Known teams: none" in run.err


async def test_dead_letter_of_a_request_explains_its_replay(shell: Shell) -> None:
    async with factory.team(TEAM, CREW, on=shell.settings) as client:
        await client.bus.publish(client.subjects.request("crew", "anonymous"), b"{", {})
        await until(lambda: client.bus.last("dead", client.subjects.dead_letters))
        (letter,) = (await shell.json("dead", "list")).lines
        told = await shell("dead", "show", letter["id"])
        replayed = await shell.json("dead", "replay", letter["id"])
        await until(lambda: client.bus.last("log", client.subjects.outcome("crew", replayed.lines[0]["workflow"])))
        await until(client.operations.dead_letters)  # the letter is stored after the outcome
        (again,) = (await shell.json("dead", "list")).lines

    said = " ".join(told.out.split())
    assert re.search(f"`pointsman dead replay {letter['id']} .*` sends the request again unchanged, as a new", said)
    assert "--as-new" not in said
    assert (replayed.code, replayed.lines[0]["action"]) == (0, "request")
    assert again["id"] != letter["id"]


@pytest.mark.parametrize("command", [("list",), ("show", "wf_1"), ("dead", "list"), ("agents",), ("doctor",)])
async def test_reading_a_missing_namespace_does_not_create_it(shell: Shell, command: tuple[str, ...]) -> None:
    other = Shell(shell.settings.model_copy(update={"namespace": shell.settings.namespace + "x"}))

    first, second = await other(*command), await other(*command)

    for run in (first, second):
        assert run.code == (1 if command == ("doctor",) else 3)
        assert "there is no namespace" in (run.out + run.err)
        assert shell.settings.namespace in (run.out + run.err).replace(other.settings.namespace, "")


async def test_similar_namespaces_are_named_first(bus: JetStreamBus, settings: Settings) -> None:
    for number in range(12):
        await bus.api(
            f"STREAM.CREATE.{settings.namespace}_{number}",
            {"name": f"{settings.namespace}_{number}", "subjects": [f"0{number}{settings.namespace}.handoff.x"]},
        )
    missing = Shell(settings.model_copy(update={"namespace": f"{settings.namespace}x"}))

    run = await missing("list")
    for number in range(12):
        await bus.api(f"STREAM.DELETE.{settings.namespace}_{number}")

    named = run.err.partition("existing namespaces: ")[2]
    assert named.startswith(settings.namespace)
    assert re.search(r"^([^,]+, ){9}[^,]+ and \d+ more$", named.strip())


async def test_discard_asks_first_and_then_removes(shell: Shell, settings: Settings) -> None:
    async with factory.team((), on=settings) as client:
        await bury(client, "d1", "d2")
        silent = await shell("dead", "discard", "--origin", "a")
        declined = await shell("dead", "discard", "--origin", "a", input=b"n\n")
        agreed = await shell("dead", "discard", "d1", input=b"y\n")
        quiet = await shell.json("dead", "discard", "d2", "--yes")
        nothing = await shell("dead", "discard", "--origin", "a", "--yes")
        left = await shell("dead", "list")

    assert [silent.code, declined.code, agreed.code, quiet.code, nothing.code] == [2, 1, 0, 0, 3]
    assert "--yes" in silent.err
    assert quiet.lines == [{"letter": "d2", "discarded": True}]
    assert left.out == "No dead letters.\n"


async def test_dead_letters_are_selected_by_filters_and_each_is_reported(shell: Shell) -> None:
    async with factory.team((), on=shell.settings) as client:
        await bury(client, "old1", "old2", age=timedelta(hours=3))
        await bury(client, "new1", "new2", "new3", cause="oversize")
        listed = await shell.json("dead", "list", "--until", "2h")
        by_cause = await shell.json("dead", "list", "--cause", "oversize", "--since", "1h", "--limit", "2")
        refused = await shell("dead", "replay", "--all", "--yes")
        unclear = await shell("dead", "discard", "--since", "yesterday", "--yes")
        asked = await shell("dead", "discard", "--until", "2h", input=b"n\n")
        aged = await shell("dead", "discard", "--until", "2h", "--yes")
        rest = await shell.json("dead", "discard", "--all", "--yes")
        none = await shell("dead", "discard", "--all", "--yes")

    assert [line["id"] for line in listed.lines] == ["old1", "old2"]
    assert [line["id"] for line in by_cause.lines] == ["new1", "new2"]
    assert refused.code == 1
    assert refused.out == "5 refused of 5\n"
    assert "2h" in unclear.err
    assert "Discard 2 dead letters permanently?" in asked.err
    assert aged.out.endswith("2 discarded of 2\n")
    assert rest.lines == [{"letter": f"new{number}", "discarded": True} for number in (1, 2, 3)]
    assert [unclear.code, asked.code, aged.code, none.code] == [2, 1, 0, 3]


async def bury(client: Client, *names: str, cause: str = "undecodable", age: timedelta = timedelta()) -> None:
    for name in names:
        letter = DeadLetter(
            id=name, origin="a", cause=AttemptError(kind=cause, message="?"), attempts=1,
            at=datetime.now(UTC) - age, subject="s", body=base64.b64encode(b"?").decode(),
        )  # fmt: skip
        envelope = Envelope(id=name, type=DeadLetter.event_type, source="test", time=datetime.now(UTC))
        await client.bus.publish(client.subjects.dead_letter("a", None, name), dump(letter), encode(envelope))


async def attempts(client: Client, workflow: str, task: str, count: int) -> bool:
    async def there() -> bool:
        tasks: Sequence[Any] = (await client.trace(workflow)).children[0].children
        return any(
            node.task_id == task and len(node.children) >= count and node.status == "succeeded" for node in tasks
        )

    await until(there)
    return True
