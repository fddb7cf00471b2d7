"""Every code block of the README and of the pages about questions, schedules and threads runs with one system.

A Python block is saved under the name in its first line. It is run if no other block runs it. A shell block is run
line by line, and a line that ends with `&` runs in the background. A block waits itself for the things that it needs.
Commands that build an environment are only checked: `make` targets must exist, and `pip` must install extras of this
project. `pointsman demo` is not run here, because `test_demo` runs it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import runpy
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support import factory
from support.docs import ROOT, alive, background, blocks_of, end, run, run_python
from support.factory import planner_of, synthesizer
from support.ready import Ready
from support.waiting import until
from typer.core import TyperGroup
from typer.main import get_command

from pointsman.authoring.agent import agent
from pointsman.authoring.context import Context
from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.cli.app import app
from pointsman.client.client import Client, connect
from pointsman.settings import Settings
from pointsman_schemas.team import Limits, Pipeline, RetryPolicy, Stage, Team

README = (ROOT / "README.md").read_text()
BLOCKS = blocks_of(README)


@pytest.fixture
async def settings(tmp_path: Path) -> AsyncIterator[Settings]:
    """Yield settings of a broker that only this test uses, with the default namespace."""
    async with EmbeddedBroker(tmp_path / "broker") as broker:
        yield Settings(url=broker.url)


@pytest.fixture
async def client(settings: Settings, tmp_path: Path) -> AsyncIterator[Client]:
    """Run a system like `pointsman up`, with all agents in one process, and yield a client."""
    workers = [f"pointsman_agents.{role}" for role in ("planner", "synthesizer")]
    workers += [f"pointsman_agents.customer_service.{name}" for name in ("billing", "technical", "account")]
    commands = ("supervisor pointsman_agents.customer_service", f"worker {' '.join(workers)}")
    up = [await background(f"pointsman {command}", tmp_path, settings) for command in commands]
    try:
        async with connect(settings=settings) as connected:
            await alive(connected, {"customer-service", "planner", "synthesizer", "billing", "technical", "account"})
            yield connected
    finally:
        await end(up)


AWAY = """
import asyncio, sys
import nats


async def main() -> None:
    async with await nats.connect(sys.argv[1]) as connection:
        subject, stream = "pointsman.outcome.customer-service.*", "POINTSMAN_LOG"
        outcomes = await connection.jetstream().pull_subscribe(subject, "shop", stream)
        if sys.argv[2:]:
            (missed,) = await outcomes.fetch(1, timeout=10)
            print(missed.data.decode())


asyncio.run(main())
"""


async def test_a_system_that_was_away_reads_the_outcomes_that_came_meanwhile(
    client: Client, settings: Settings
) -> None:
    """The block runs in a separate process that only uses nats-py."""

    async def shop(*arguments: str) -> str:
        command = [sys.executable, "-c", AWAY, settings.url, *arguments]
        return await asyncio.to_thread(subprocess.check_output, command, text=True, timeout=30)

    await shop()
    workflow = await client.submit("customer-service", "I was charged twice")
    outcome = await workflow.outcome(30)

    assert json.loads(await shop("read"))["answer"] == outcome.answer


@pytest.mark.timeout(180)
async def test_every_block_of_the_readme_runs(client: Client, settings: Settings, tmp_path: Path) -> None:
    started: list[Ready] = []
    ran = 0
    try:
        for language, body in BLOCKS:
            if language == "text":
                continue
            if language == "python":
                name = body.splitlines()[0].removeprefix("# ")
                (tmp_path / name).write_text(body)
                await run_python(name, BLOCKS, tmp_path, settings)
            else:
                assert language == "sh", f"blocks in {language} are not supported, so this block is not tested"
                for line in body.splitlines():
                    if line.endswith("&"):
                        started.append(await background(line[:-1], tmp_path, settings))
                    else:
                        await run(line, tmp_path, settings)
            ran += 1
        workflow = await client.submit("helpdesk", "Please give me a translation into another language: hello world")
        outcome = await workflow.outcome(30)
    finally:
        await end(started)

    assert ran == 8
    assert "translator" in {task.agent for task in outcome.tasks}


async def test_the_blocks_of_the_questions_run_where_something_waits_for_each_answer(
    settings: Settings, tmp_path: Path
) -> None:
    blocks = blocks_of((ROOT / "docs" / "questions.md").read_text())
    (commands,) = (body for language, body in blocks if language == "sh")
    defined: dict[str, Any] = {}
    for language, body in blocks:
        if language == "python":
            (tmp_path / "page.py").write_text(body)
            defined |= runpy.run_path(str(tmp_path / "page.py"))
    paid: list[int] = []

    @agent(name="payer", description="Pays", approval="required")
    async def pay(request: dict[str, int]) -> str:
        paid.append(request["amount"])
        return "paid"

    @agent(name="chooser", description="Asks for the choice")
    async def choose(request: str, context: Context) -> str:
        return await context.ask("Which one?")

    plan = planner_of({"id": "pay", "agent": "payer", "intent": "pay the bill", "input": {"amount": 100}})
    desks = [
        Team(name="choices", strategy=Pipeline(stages=(Stage(agent="chooser"),))),
        Team(name="transfers", strategy=Pipeline(stages=(Stage(agent="transfer"),))),
    ]
    agents = [plan, synthesizer, pay, choose, defined["transfer"]]
    async with factory.team([Team(name="bank"), *desks], agents, on=settings) as client:
        submitted = [("choices", "choose"), ("transfers", "the fee"), *[("bank", "pay the bill")] * 3]
        workflows = []
        for count, (team, given) in enumerate(submitted, 1):
            workflows.append(await client.submit(team, given))

            async def asked(count: int = count) -> bool:
                return len(await client.operations.questions()) == count

            await until(asked)
        for line in commands.splitlines():
            waiting = await client.operations.questions()
            await run(re.sub(r"\bID\b", waiting[0].id if waiting else "", line), tmp_path, settings)
        await until(client.operations.questions)  # the transfer also asks a question, for the time
        (last,) = await client.operations.questions()
        await client.operations.answer(last.id, "today")
        outcomes = [await workflow.outcome(30) for workflow in workflows]

    assert sorted(paid) == [90, 100]
    assert [each.answer for each in outcomes[:2]] == ["the second one", "the fee: to 17 in EUR, today"]
    assert sorted(each.status for each in outcomes[2:]) == ["completed", "completed", "failed"]


async def test_the_blocks_of_the_threads_run(client: Client, settings: Settings, tmp_path: Path) -> None:
    (_, talk), (_, commands) = blocks_of((ROOT / "docs" / "threads.md").read_text())
    (tmp_path / "talk.py").write_text(talk)

    await run("python talk.py", tmp_path, settings)
    thread = await factory.ended_thread(client, 2)
    for line in commands.splitlines():
        await run(line.replace("THREAD", thread.thread), tmp_path, settings)
    (left,) = await client.operations.threads()

    assert [each.outcome for each in thread.turns] == ["completed", "completed"]
    assert (left.turns, left.deleted_by) == ((), left.caller)


async def test_the_blocks_of_the_messages_reach_an_agent_at_work(settings: Settings, tmp_path: Path) -> None:
    (_, command), (_, program), (_, function) = blocks_of((ROOT / "docs" / "messages.md").read_text())
    (tmp_path / "tell.py").write_text(program)
    (tmp_path / "page.py").write_text(function)
    collect = runpy.run_path(str(tmp_path / "page.py"))["collect"]
    started, told = asyncio.Event(), asyncio.Event()

    @agent(name="a", description="Waits for the messages of the page")
    async def wait(request: str, context: Context) -> list[str]:
        started.set()
        await told.wait()
        return [message.text for message in await context.messages()]

    team = Team(name="crew", strategy=Pipeline(stages=(Stage(agent="a"),)))
    async with factory.team(team, [wait], on=settings) as client:
        workflow = await client.submit("crew", "invoices")
        await started.wait()
        await run(command.replace(" ID ", f" {workflow.id} "), tmp_path, settings)
        await run(f"python tell.py {workflow.id}", tmp_path, settings)
        told.set()
        outcome = await workflow.outcome(30)
    stopped = await run_agent(collect, Context.for_test("bills", messages=["go on", "stop"]))
    finished = await run_agent(collect, Context.for_test("bills"))

    assert outcome.answer == ["Only the invoices of March, please.", "And write the answer in French."]
    assert (stopped, finished) == ([], ["bills of January", "bills of February", "bills of March"])


async def run_agent(chosen: Any, context: Context) -> Any:
    return await chosen.run(context.handoff, context)


async def test_the_blocks_of_the_schedules_run(client: Client, settings: Settings, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "schedules.md").read_text()
    page = re.sub(r'"[0-9]+ [0-9]+ [^"]+"', '"0 9 1 1 *"', page)  # once a year, so no schedule fires during the test
    (_, commands), (_, nightly), (_, audit), _ = blocks_of(page)
    (tmp_path / "nightly.py").write_text(nightly)
    (tmp_path / "invoice.pdf").write_bytes(b"%PDF-1.7")

    for line in [*commands.splitlines(), audit]:
        await run(line, tmp_path, settings)
    await run("python nightly.py", tmp_path, settings)
    found = await client.list("customer-service")
    later, monthly = await client.schedules.list()

    assert [each.correlation_id.rpartition("/")[0] for each in found] == ["schedule/nightly", "schedule/report"]
    assert later.spec is not None
    assert later.spec.at is not None
    assert monthly.spec is not None
    assert [file.name for file in monthly.spec.request.files] == ["invoice.pdf"]


def test_no_document_has_a_block_that_no_test_runs() -> None:
    """Other tests run the blocks of the guide, the runbook, the gateway, webhooks, security and the strategies."""
    documents = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in documents}

    unseen = [name for name, text in texts.items()
              if len(re.findall(r"^\s*(?:```|~~~)", text, re.MULTILINE)) != 2 * len(blocks_of(text))]  # fmt: skip
    languages = {name: {language for language, _ in blocks_of(text)} - {"text"} for name, text in texts.items()}

    assert unseen == []
    assert {name: found for name, found in languages.items() if found} == {
        "README.md": {"sh", "python"},
        "docs/a2a.md": {"python"},
        "docs/batches.md": {"sh", "python"},  # run by `test_batch`
        "docs/files.md": {"sh", "python"},  # run by `test_files`
        "docs/messages.md": {"sh", "python"},
        "docs/questions.md": {"sh", "python"},
        "docs/gateway.md": {"sh", "python", "toml"},
        "docs/guide.md": {"sh", "python", "yaml"},
        "docs/runbook.md": {"sh"},
        "docs/schedules.md": {"sh", "python"},  # `test_team` runs the test in this page
        "docs/security.md": {"sh", "conf", "toml"},
        "docs/state-machine.md": {"mermaid"},  # generated
        "docs/strategies.md": {"python"},
        "docs/teams.md": {"python"},
        "docs/telemetry.md": {"python"},
        "docs/threads.md": {"sh", "python"},
        "docs/webhooks.md": {"sh", "python"},
    }


def test_the_team_of_the_page_about_teams_can_be_defined() -> None:
    page = (ROOT / "docs" / "teams.md").read_text()
    defined: dict[str, Any] = {}

    for language, body in blocks_of(page):
        if language == "python":
            exec(body, defined)

    assert defined["team"].required_agents().keys() == {"billing--lookup", "translate"}


@pytest.mark.parametrize("document", ["README.md", "docs/guide.md"])
def test_request_waits_until_a_new_team_and_its_planner_are_live(document: str) -> None:
    starting = [body for _, body in blocks_of((ROOT / document).read_text()) if "pointsman supervisor" in body]

    assert starting
    for body in starting:
        asked = set(re.findall(r"^pointsman submit (\S+)", body, re.MULTILINE))
        assert asked | {"planner"} <= set(re.findall(r"--wait (\S+)", body.partition("pointsman submit")[0]))


def test_the_readme_names_every_command() -> None:
    group = get_command(app)
    assert isinstance(group, TyperGroup)

    assert [name for name in group.commands if not re.search(rf"(`|pointsman ){name}\b", README)] == []


def test_every_setting_is_in_the_table_with_its_default() -> None:
    table = (ROOT / "docs" / "settings.md").read_text().partition("# Limits")[0]
    rows = dict(re.findall(r"^\| (`POINTSMAN_[^|]*) \|([^|]*)\|", table, re.MULTILINE))
    shown = {name: default for names, default in rows.items() for name in re.findall(r"POINTSMAN_\w+", names)}

    for name, field in Settings.model_fields.items():
        default = "" if field.default is None else f"`{field.default:g}`" if isinstance(field.default, float) else None
        shown_as = str(field.default).lower() if isinstance(field.default, bool) else field.default
        expected = f"`{shown_as}`" if default is None else default
        assert shown.pop(f"POINTSMAN_{name.upper()}").strip() == expected, name
    assert not shown


def test_every_limit_is_in_the_table_with_its_default() -> None:
    _, _, tables = (ROOT / "docs" / "settings.md").read_text().partition("# Limits")
    of_workflows, _, rest = tables.partition("`RetryPolicy(...)`")
    of_retries, _, of_agents = rest.partition("`@agent(...)`")
    parameters = inspect.signature(inspect.unwrap(agent)).parameters
    given = {name: parameters[name].default for name in _limits(of_agents)}

    defaults = {name: field.default for name, field in Limits.model_fields.items()}
    assert _limits(of_workflows) == {**defaults, "file_types": None}
    assert _limits(of_retries) == {name: field.default or None for name, field in RetryPolicy.model_fields.items()}
    assert _limits(of_agents) == given
    assert {"timeout", "concurrency", "max_in_flight"} == given.keys()


def _limits(table: str) -> dict[str, float | None]:
    rows = re.findall(r"^\| (`[^|]*`) \|([^|]*)\|", table, re.MULTILINE)
    shown = {name: default.strip(" `") for names, default in rows for name in re.findall(r"\w+", names)}
    return {name: float(default) if default else None for name, default in shown.items()}
