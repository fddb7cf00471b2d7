"""The commands for threads with a team in memory: list, show, delete, and a chat on standard input."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support import factory
from support.commands import command, use_client

from pointsman.authoring.agent import Agent, agent
from pointsman.authoring.context import Context
from pointsman.cli.commands import threads
from pointsman.client.client import Client
from pointsman.errors import NotFoundError
from pointsman_schemas.team import Pipeline, Stage, Team

TEAM = Team(name="crew", strategy=Pipeline(stages=(Stage(agent="a"),)))


@agent(name="a", description="Repeats the conversation")
async def recall(request: str, context: Context) -> str:
    return "/".join([*(each.request for each in context.history.turns if context.history), request])  # type: ignore[union-attr]


@asynccontextmanager
async def talked(monkeypatch: pytest.MonkeyPatch, *agents: Agent) -> AsyncIterator[Client]:
    """Run a team on the test's event loop. The commands use its client."""
    async with factory.team(TEAM, list(agents or [recall])) as client:
        use_client(monkeypatch, client)
        yield client


async def test_threads_are_listed_shown_and_deleted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with talked(monkeypatch) as client:
        talk = client.thread("crew", "talk")
        await talk.ask("one", timeout=10)
        await talk.ask("two", timeout=10)

        await command(threads.list_)
        listed = capsys.readouterr().out
        await command(threads.show, "crew", "talk")
        shown = capsys.readouterr().out
        await command(threads.delete, "crew", "talk")
        deleted = capsys.readouterr().out
        await command(threads.list_, json=True)
        left = json.loads(capsys.readouterr().out)
        with pytest.raises(NotFoundError, match="has no thread 'none' with crew"):
            await command(threads.show, "crew", "none")

    assert "talk" in listed
    assert "two" in listed
    assert [line for line in shown.splitlines() if line.startswith(">")] == ["> one", "> two"]
    assert "one/two" in shown
    assert deleted == "The thread talk and its 2 turns are deleted.\n"
    assert (left["turns"], left["deleted_by"]) == ([], client.user)


async def test_without_threads_the_list_reports_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with talked(monkeypatch):
        await command(threads.list_)

    assert capsys.readouterr().out == "There are no threads.\n"


async def test_chat_takes_turns_until_the_input_ends_and_continues_by_id(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with talked(monkeypatch):
        monkeypatch.setattr("sys.stdin", io.StringIO("one\n\ntwo\n"))
        await command(threads.chat, "crew", "talk")
        first = capsys.readouterr()
        monkeypatch.setattr("sys.stdin", io.StringIO("three\n"))
        await command(threads.chat, "crew", "talk")
        second = capsys.readouterr()

    assert first.out.split() == ["one", "one/two"]
    assert "`pointsman chat crew --thread talk` continues this thread" in " ".join(first.err.split())
    assert second.out.split() == ["one/two/three"]
    assert "> two" in second.err


async def test_ctrl_c_cancels_the_turn_and_the_chat_continues(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = asyncio.Event()

    @agent(name="a", description="Waits at the first request")
    async def slow(request: str, context: Context) -> str:
        if request == "slow":
            started.set()
            await asyncio.sleep(60)
        return f"done: {request}"

    async with talked(monkeypatch, slow):
        monkeypatch.setattr("sys.stdin", io.StringIO("slow\nquick\n"))
        chatting = asyncio.create_task(command(threads.chat, "crew", "talk"))
        await started.wait()
        os.kill(os.getpid(), signal.SIGINT)
        await chatting
        told = capsys.readouterr()

    assert "done: quick" in told.out
    assert "cancelled" in told.err
