"""A worker answers every attempt once, and acknowledges a handoff only after its answer is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs
from support import factory
from support.factory import echo
from support.handoffs import TRACEPARENT, SupervisorDouble
from support.waiting import until

from pointsman.authoring.agent import Agent, agent
from pointsman.authoring.context import Context
from pointsman.bus.memory.bus import MemoryBus
from pointsman.engine.worker import handoff_processor
from pointsman.errors import (
    AnswerRequiredError,
    ConflictError,
    ModelError,
    PublishOutcomeUnknownError,
    RefusedError,
    TaskError,
)
from pointsman.settings import Settings
from pointsman.testing.clock import VirtualClock
from pointsman_schemas.envelope import decode
from pointsman_schemas.events import Handoff, QuestionRequest, Usage


async def test_a_handoff_gets_its_result_and_is_acknowledged() -> None:
    desk = SupervisorDouble(MemoryBus())

    async with factory.running(factory.worker(desk.bus)):
        handoff = await desk.publish_handoff("echo", {"request": "hello"})
        result = await desk.result(handoff)
        await until(lambda: desk.settled("echo"))

    assert (result.status, result.output, result.agent, result.attempt) == ("succeeded", "echo: hello", "echo", 1)
    assert result.ended_at >= result.started_at


async def test_result_names_its_cause() -> None:
    desk = SupervisorDouble(MemoryBus())

    async with factory.running(factory.worker(desk.bus)):
        handoff = await desk.publish_handoff("echo", "hello")
        await desk.result(handoff)

    stored = await desk.bus.last("results", handoff.return_to)
    assert stored is not None
    envelope, _ = decode(stored.headers, stored.body)
    assert envelope is not None
    assert (envelope.type, envelope.subject) == ("io.pointsman.result.v1", "wf_1")
    assert (envelope.correlation_id, envelope.causation_id) == ("correlation-1", "handoff-T1")
    assert envelope.traceparent is not None
    assert envelope.traceparent.split("-")[1] == TRACEPARENT.split("-")[1]


@pytest.mark.parametrize(
    ("error", "status", "kind", "retryable", "retry_after"),
    [
        (TaskError("no"), "failed", "handler_error", False, None),
        (TaskError("no", kind="own", retryable=True, retry_after=3), "failed", "own", True, 3),
        (TaskError("no", retry_after=float("inf")), "failed", "handler_error", False, None),
        (TaskError("no", retry_after=-5), "failed", "handler_error", False, 0),
        (RefusedError("will not"), "refused", "refused", False, None),
        (ModelError("busy", retryable=True, retry_after=9), "failed", "provider_error", True, 9),
        (ValueError("bad \ud800 " + "x" * 1000), "failed", "handler_error", True, None),
        (SystemExit(1), "failed", "handler_error", True, None),
        (asyncio.CancelledError(), "failed", "handler_error", True, None),
    ],
    ids=repr,
)
async def test_handler_error_is_reported_to_the_supervisor(
    error: BaseException, status: str, kind: str, retryable: bool, retry_after: float | None
) -> None:
    desk = SupervisorDouble(MemoryBus())

    @agent(name="failing", description="d")
    async def failing(context: Context) -> None:
        context.record_usage(Usage(calls=1))
        raise error

    async with factory.running(factory.worker(desk.bus, failing)):
        result = await desk.result(await desk.publish_handoff("failing"))
        after = await desk.result(await desk.publish_handoff("failing", task="T2"))

    assert result.error is not None
    assert (result.status, result.error.kind, result.error.retryable) == (status, kind, retryable)
    assert result.error.retry_after == retry_after
    assert 0 < len(result.error.message) <= 500
    assert result.usage.calls == 1
    assert after.status == status


async def test_attempt_that_asks_for_approval_is_no_error_of_its_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    level = structlog.make_filtering_bound_logger("info")
    monkeypatch.setattr(handoff_processor, "_log", structlog.wrap_logger(None, wrapper_class=level))
    bus = MemoryBus()
    desk = SupervisorDouble(bus)

    @agent(name="asking", description="d")
    async def asking() -> None:
        raise AnswerRequiredError([QuestionRequest(tool="refund", arguments={})])

    with capture_logs() as lines:
        async with factory.running(factory.worker(bus, asking)):
            result = await desk.result(await desk.publish_handoff("asking"))
            await until(lambda: desk.settled("asking"))
            (service,) = bus.broker.services

    told = [(line["event"], line["log_level"]) for line in lines if line["event"].startswith("attempt_")]
    assert result.error is not None
    assert result.error.kind == "needs_answer"
    assert told == [("attempt_awaiting_answer", "info")]
    assert (service.requests, service.errors) == (1, 0)


async def test_an_output_of_a_hand_made_agent_is_checked_too() -> None:
    class Odd(Agent):
        card = echo("echo").card

        async def run(self, handoff: Handoff, context: Context) -> Any:
            return {"a": float("nan")}

    desk = SupervisorDouble(MemoryBus())

    async with factory.running(factory.worker(desk.bus, Odd())):
        result = await desk.result(await desk.publish_handoff("echo"))

    assert result.error is not None
    assert result.error.kind == "invalid_output"
    assert "$.a" in result.error.message


async def test_a_result_too_large_for_the_broker_fails_the_attempt_once() -> None:
    desk = SupervisorDouble(MemoryBus(max_payload=4096, max_body=4096))
    runs = 0

    @agent(name="verbose", description="d")
    async def verbose() -> str:
        nonlocal runs
        runs += 1
        return "x" * 5000

    async with factory.running(factory.worker(desk.bus, verbose)):
        result = await desk.result(await desk.publish_handoff("verbose"))
        await until(lambda: desk.settled("verbose"))

    assert result.error is not None
    assert (result.error.kind, result.error.retryable, runs) == ("oversize", False, 1)
    assert "4096" in result.error.message


class Unreliable(MemoryBus):
    """A bus that does not answer the first `silent` publishes of results, but stores every second one."""

    silent = 4
    tried = 0

    async def publish(self, subject: str, body: bytes, headers: Mapping[str, str], *, expect: int | None = None,
                      message_id: str | None = None) -> int:  # fmt: skip
        if ".result." not in subject:
            return await super().publish(subject, body, headers, expect=expect, message_id=message_id)
        self.tried += 1
        if self.tried > self.silent:
            return await super().publish(subject, body, headers, expect=expect, message_id=message_id)
        if self.tried == 1:
            raise ConflictError("an earlier publish is still under way")
        if self.tried == self.silent:
            await super().publish(subject, body, headers, expect=expect, message_id=message_id)
        raise PublishOutcomeUnknownError("no answer")


async def test_nothing_is_acknowledged_before_the_result_is_stored() -> None:
    clock = VirtualClock()
    bus = Unreliable(clock=clock)
    desk = SupervisorDouble(bus, clock=clock)
    acked_early = False

    async with factory.running(factory.worker(bus, clock=clock, settings=Settings(shutdown_grace=0))):
        handoff = await desk.publish_handoff("echo", "x")
        for _ in range(100):
            await clock.advance(0.1)
            if await desk.find_result(handoff) is None and await desk.settled("echo"):
                acked_early = True
        assert await desk.settled("echo")

    assert bus.tried == 5
    assert not acked_early
    assert (await desk.result(handoff)).output == "echo: x"


async def test_the_first_result_of_a_task_counts() -> None:
    desk = SupervisorDouble(MemoryBus())
    running_now = asyncio.Event()
    release = asyncio.Event()

    @agent(name="slow", description="d")
    async def slow() -> str:
        running_now.set()
        await release.wait()
        return "second"

    async with factory.running(factory.worker(desk.bus, slow)):
        handoff = await desk.publish_handoff("slow")
        await running_now.wait()
        first = await desk.bus.publish(handoff.return_to, b"{}", {}, expect=0)
        release.set()
        await until(lambda: desk.settled("slow"))

    stored = await desk.bus.last("results", handoff.return_to)
    assert stored is not None
    assert stored.sequence == first
