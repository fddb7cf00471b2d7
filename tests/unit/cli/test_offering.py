"""What a team that is offered as a tool says to who asked it, however its workflow ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.system import echo, in_memory
from support.waiting import until

from pointsman.agent import agent
from pointsman.cli.offering import answer
from pointsman.errors import PeerError, TaskError
from pointsman_schemas.team import FanOut, Limits, Pipeline, Stage, Team


@agent(name="broken", description="Cannot do it")
async def broken(request: str) -> str:
    raise TaskError("the shop is closed")


@agent(name="tables", description="Answers with fields")
async def tables(request: str) -> dict[str, Any]:
    return {"sold": 3}


def team(first: str, *more: str) -> Team:
    """The members of a fan-out, or one stage."""
    strategy = FanOut(synthesizer=None) if more else Pipeline(stages=(Stage(agent=first),))
    return Team(name="shop", agents=(first, *more), strategy=strategy, limits=Limits(deadline=30, attempts=1))


async def test_an_answer_is_told_as_text_whatever_it_is() -> None:
    async with in_memory(team("echo"), [echo("echo")]) as client:
        text = await answer(client, "shop", "tea", 20)
    async with in_memory(team("tables"), [tables]) as client:
        fields = await answer(client, "shop", "tea", 20)

    assert text == "echo: tea"
    assert fields == '{"sold":3}'


async def test_what_a_partial_answer_lacks_is_told_with_it() -> None:
    async with in_memory(team("echo", "broken"), [echo("echo"), broken]) as client:
        text = await answer(client, "shop", "tea", 20)

    assert "echo: tea" in text
    assert text.endswith("\n\nNot answered:\n- broken (broken): the shop is closed")


async def test_a_failure_is_an_error_that_names_the_workflow_and_says_why() -> None:
    async with in_memory(team("broken"), [broken]) as client:
        with pytest.raises(PeerError, match=r"workflow wf_.* failed: .*the shop is closed"):
            await answer(client, "shop", "tea", 20)


async def test_who_gives_up_asking_ends_the_workflow() -> None:
    begun = asyncio.Event()

    @agent(name="slow", description="Takes long")
    async def slow(request: str) -> str:
        begun.set()
        await asyncio.Event().wait()
        return request

    async with in_memory(team("slow"), [slow]) as client:
        asking = asyncio.create_task(answer(client, "shop", "tea", 25))
        await begun.wait()
        asking.cancel()
        await asyncio.wait({asking})

        async def over() -> bool:
            return [each.status for each in await client.list()] == ["cancelled"]

        await until(over)

    assert asking.cancelled()


async def test_a_team_that_nobody_runs_is_an_error_that_says_what_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pointsman.cli.offering.LATE", 0.0)
    async with in_memory(team("echo"), [echo("echo")]) as client:
        with pytest.raises(PeerError, match=r"is its supervisor running.*pointsman doctor nobody"):
            await answer(client, "nobody", "tea", 0.05)
