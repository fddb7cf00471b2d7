"""`pointsman tell` sends a message. Its exit code and JSON report if the workflow accepts the message."""

from __future__ import annotations

import asyncio
import io
import json

import pytest
from support import factory
from support.commands import command, use_client

from pointsman.authoring.agent import agent
from pointsman.authoring.context import Context
from pointsman.cli.commands import workflows
from pointsman.cli.render.output import Code
from pointsman_schemas.team import Pipeline, Stage, Team

TEAM = Team(name="crew", strategy=Pipeline(stages=(Stage(agent="a"),)))


async def test_messages_are_taken_until_the_workflow_has_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started, told = asyncio.Event(), asyncio.Event()

    @agent(name="a", description="Waits for messages")
    async def wait(request: str, context: Context) -> list[str]:
        started.set()
        await told.wait()
        return [message.text for message in await context.messages()]

    async with factory.team(TEAM, [wait]) as client:
        use_client(monkeypatch, client)
        workflow = await client.submit("crew", "work")
        await started.wait()
        plain = await command(workflows.tell, workflow.id, "hurry")
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"in French\n")))
        piped = await command(workflows.tell, workflow.id, "-", json=True, message_id="m")
        told.set()
        outcome = await workflow.outcome(10)
        late = await command(workflows.tell, workflow.id, "too late", json=True)

    first, *lines = capsys.readouterr().out.splitlines()
    assert (plain, piped, late) == (Code.OK, Code.OK, Code.FAILED)
    assert outcome.answer == ["hurry", "in French"]
    assert first == f"Workflow {workflow.id} has recorded the message as number 1."
    taken, refused = (json.loads(line) for line in lines)
    assert (taken["taken"], taken["number"], taken["next_turn"]) == (True, 2, None)
    assert (refused["taken"], refused["message"].partition(",")[0]) == (
        False,
        f"workflow {workflow.id} has ended as completed",
    )
