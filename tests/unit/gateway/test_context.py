"""A wait for a new workflow ends with a commit in the feed. The broker is asked only if the feed has a gap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support import factory
from support.factory import ONE_TASK, echo, planner_of, synthesizer

from pointsman.client.workflow import Workflow
from pointsman.errors import ContractError
from pointsman.gateway.callers import Caller
from pointsman.gateway.context import Context
from pointsman.gateway.feed import Subscription
from pointsman.gateway.keys import KeyCache
from pointsman.ports.bus import StoredMessage
from pointsman.settings import Settings
from pointsman_schemas.events import Outcome

CALLER = Caller("ada")


@asynccontextmanager
async def running_context() -> AsyncIterator[Context]:
    async with factory.team(agents=[planner_of(ONE_TASK), echo("a"), synthesizer]) as client:
        settings = Settings(namespace=client.subjects.namespace)
        context = Context(client, settings, keys=KeyCache(await client.bus.key_value(client.subjects.gateway_bucket)))
        running = asyncio.create_task(context.run())
        await context.index.current.wait()
        yield context
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_the_end_of_a_new_workflow_is_taken_from_the_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(self: Workflow, timeout: float | None = None) -> Outcome:
        raise AssertionError("the broker was asked although the feed has no gap")

    async with running_context() as context:
        monkeypatch.setattr(Workflow, "outcome", fail)
        submitted = await context.submit(CALLER, "crew", "hello")
        outcome = await context.outcome(submitted, 20)

    assert (outcome.workflow_id, outcome.status) == (submitted.workflow.id, "completed")


@pytest.mark.parametrize("case", ["ended before", "known key", "messages dropped", "unreadable end"])
async def test_an_end_that_is_missing_in_the_feed_is_read_from_the_broker(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dropped(self: Subscription, timeout: float) -> None:
        return None

    def fail_to_read(stored: StoredMessage) -> None:
        raise ContractError("another release wrote the commit")

    async with running_context() as context:
        submitted = await context.submit(CALLER, "crew", "hello", key="k" if case == "known key" else None)
        if case == "messages dropped":
            monkeypatch.setattr(Subscription, "next", dropped)
        elif case == "unreadable end":
            monkeypatch.setattr("pointsman.gateway.context.read_commit", fail_to_read)
        else:
            await submitted.workflow.outcome(20)
            while (row := context.index.find(submitted.workflow.id)) is None or row.ended_at is None:
                await asyncio.sleep(0)
        outcome = await context.outcome(submitted, 20)

    assert outcome.status == "completed"


async def test_a_wait_is_bounded() -> None:
    async with running_context() as context:
        submitted = await context.submit(CALLER, "absent", "hello")
        with pytest.raises(TimeoutError):
            await context.outcome(submitted, 0.01)


async def test_a_stream_that_the_stopping_gateway_closes_cancels_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server closes the connections of slow clients some seconds after the stop."""
    cancelled: list[str] = []

    async def cancel(self: Workflow, reason: str = "", *, actor: str | None = None) -> None:
        cancelled.append(self.id)

    monkeypatch.setattr(Workflow, "cancel", cancel)
    async with running_context() as context:
        submitted = await context.submit(CALLER, "crew", "hello")
        context.cancel_later(CALLER, submitted.workflow)
        await asyncio.sleep(0)
        before = list(cancelled)
        context.streams.stop()
        context.cancel_later(CALLER, submitted.workflow)
        await asyncio.sleep(0)

    assert before == cancelled == [submitted.workflow.id]
