"""Send many requests through the client, with real supervisors and workers on the memory bus."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing

import pytest
from support import factory

from pointsman.authoring.agent import agent
from pointsman.client.batch import BatchRow, run_batch
from pointsman.errors import ContractError, InvalidTokenError, TaskError
from pointsman_schemas.retry import RetryPolicy
from pointsman_schemas.team import Pipeline, Stage, Team

pytestmark = pytest.mark.asyncio

DESK = Team(name="desk", strategy=Pipeline(stages=(Stage(agent="clerk"),)), retry=RetryPolicy(attempts=1))


class Clerk:
    """An agent that counts its concurrent requests."""

    def __init__(self) -> None:
        self.served: list[str] = []
        self.most = 0
        self.let_go = asyncio.Event()
        self.let_go.set()
        self._now = 0

        @agent(name="clerk", description="Answers")
        async def clerk(request: str) -> str:
            self._now += 1
            self.most = max(self.most, self._now)
            try:
                await self.let_go.wait()
                self.served.append(request)
                if request == "bad":
                    raise TaskError("not this one")
                return f"done: {request}"
            finally:
                self._now -= 1

        self.agent = clerk


async def test_each_row_is_one_workflow_with_its_outcome() -> None:
    clerk = Clerk()
    async with factory.team(DESK, [clerk.agent]) as client:
        rows = [row async for row in client.batch("desk", ["a", "bad", "c"], concurrency=2)]

    found = {row.row: (row.outcome.status, row.outcome.answer) for row in rows if row.outcome}
    assert found[1] == ("completed", "done: a")
    assert found[2][0] == "failed"
    assert found[3] == ("completed", "done: c")
    assert len({row.workflow_id for row in rows}) == 3
    assert len({row.request_id.rpartition("-")[0] for row in rows}) == 1


async def test_no_more_workflows_run_at_a_time_than_allowed() -> None:
    clerk = Clerk()
    read: list[int] = []

    def numbers() -> Iterator[str]:
        for number in range(12):
            read.append(number)
            yield str(number)

    async with (
        factory.team(DESK, [clerk.agent]) as client,
        aclosing(client.batch("desk", numbers(), concurrency=3)) as rows,
    ):
        first = await anext(rows)
        assert first.outcome is not None
        assert len(read) <= 4  # an input is read only when its workflow may start
        left = [row async for row in rows]

    assert len(left) == 11
    assert clerk.most <= 3


async def test_the_same_batch_does_no_row_twice() -> None:
    clerk = Clerk()
    async with factory.team(DESK, [clerk.agent]) as client:
        async with aclosing(client.batch("desk", ["a", "b", "c"], batch_id="b1", concurrency=3)) as rows:
            done = [await anext(rows)]  # the workflows of the other rows continue
        skip = {row.row for row in done}
        again = [row async for row in client.batch("desk", ["a", "b", "c"], batch_id="b1", skip=skip)]

    assert sorted(row.row for row in done + again) == [1, 2, 3]
    assert sorted(clerk.served) == ["a", "b", "c"]


async def test_a_row_that_cannot_be_sent_has_an_error_and_the_others_continue() -> None:
    clerk = Clerk()

    async def inputs() -> AsyncIterator[str | ContractError]:
        yield "a"
        yield ""
        yield ContractError("no request")
        yield "d"

    async with factory.team(DESK, [clerk.agent]) as client:
        batch = run_batch(client, "desk", inputs(), batch_id="b", concurrency=1)
        rows = [row async for row in batch]

    assert [row.row for row in rows if row.outcome] == [1, 4]
    errors = {row.row: row.error for row in rows if row.error}
    assert "text that is not empty" in errors[2]
    assert rows[2] == BatchRow(3, "b-3", error="no request")


async def test_a_wrong_name_or_concurrency_is_refused_before_any_row() -> None:
    async with factory.team(DESK, [Clerk().agent]) as client:
        with pytest.raises(InvalidTokenError):
            await anext(client.batch("no team", ["a"]))
        with pytest.raises(ValueError, match="the concurrency is 0; at least 1"):
            await anext(client.batch("desk", ["a"], concurrency=0))


async def test_an_error_of_the_source_ends_the_batch() -> None:
    def broken() -> Iterator[str]:
        yield "a"
        raise OSError("the disk was removed")

    async with factory.team(DESK, [Clerk().agent]) as client:
        with pytest.raises(OSError, match="the disk was removed"):
            [row async for row in client.batch("desk", broken(), concurrency=2)]
