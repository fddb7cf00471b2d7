"""The bus stores the steps of an attempt. If two workers run the same attempt, the first stored step counts."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from support.contexts import new_state
from support.handoffs import SupervisorDouble
from support.loops import InstantClock

from pointsman.authoring.attempt_state import AttemptState
from pointsman.authoring.durable_steps import DurableSteps
from pointsman.authoring.ports import RecordingReporter
from pointsman.bus.memory.bus import MemoryBus
from pointsman.clock import SystemClock
from pointsman.engine.worker.step_journal import BusStepJournal
from pointsman.errors import BusUnavailableError, ContractError, PublishOutcomeUnknownError
from pointsman.ports.bus import StoredMessage
from pointsman.ports.clock import Clock
from pointsman.ports.model import ModelReply
from pointsman.testing.models import tool_reply
from pointsman_schemas.envelope import decode
from pointsman_schemas.events import Handoff, Step, Usage
from pointsman_schemas.strict_json import parse


def journal_of(
    desk: SupervisorDouble, handoff: Handoff, *, fresh: bool = True, clock: Clock | None = None
) -> BusStepJournal:
    return BusStepJournal(
        desk.bus, desk.subjects, handoff, source="s", correlation_id="correlation", causation_id="c",
        clock=clock or SystemClock(), fresh=fresh,
    )  # fmt: skip


def steps_of(desk: SupervisorDouble, handoff: Handoff, *, fresh: bool = True) -> DurableSteps:
    return DurableSteps(new_state(handoff, journal=journal_of(desk, handoff, fresh=fresh)))


def giving(reply: ModelReply) -> Callable[[AttemptState], Awaitable[ModelReply]]:
    async def ask(state: AttemptState) -> ModelReply:
        state.usage.add(reply.usage)
        return reply

    return ask


async def never(_: AttemptState) -> ModelReply:
    raise AssertionError("the model must not be called, because its reply is recorded")


async def test_step_is_an_event_with_the_broker_time() -> None:
    desk, at = SupervisorDouble(MemoryBus()), datetime(2030, 1, 1, tzinfo=UTC)
    handoff = desk.handoff("shop")
    done = DurableSteps(new_state(handoff, journal=journal_of(desk, handoff), now=lambda: at))
    await done.model_reply(1, giving(tool_reply(("look", {"what": "tea"}))))
    await done.record_result(1, 0, "there", False)

    filter = desk.subjects.attempt_steps(
        handoff.to_agent, handoff.from_agent, handoff.workflow_id, handoff.task_id, handoff.attempt
    )
    stored = [decode(each.headers, each.body)[0] async for each in desk.bus.read("results", filter)]

    said = [(each.type, each.time, each.correlation_id, each.causation_id) for each in stored if each is not None]
    assert said == [(Step.event_type, at, "correlation", "c")] * 2
    assert len({each.id for each in stored if each is not None}) == 2


async def test_journal_uses_its_own_loop_and_reads_only_possible_steps() -> None:
    home, heard = asyncio.get_running_loop(), list[tuple[str, bool]]()

    class Watched(MemoryBus):
        away = True

        async def publish(self, *args: Any, **more: Any) -> int:
            heard.append(("publish", asyncio.get_running_loop() is home))
            return await super().publish(*args, **more)

        async def read(self, *args: Any, **more: Any) -> AsyncIterator[StoredMessage]:
            heard.append(("read", asyncio.get_running_loop() is home))
            if self.away:
                self.away = False
                raise BusUnavailableError("away for a moment")
            async for stored in super().read(*args, **more):
                yield stored

    desk = SupervisorDouble(Watched())
    handoff = desk.handoff("shop")
    fresh, later = (journal_of(desk, handoff, fresh=fresh, clock=InstantClock()) for fresh in (True, False))

    async def use() -> list[str]:
        await fresh.load()
        await DurableSteps(new_state(handoff, journal=fresh)).record_result(1, 0, "done", False)
        return list(await later.load())

    assert await asyncio.to_thread(asyncio.run, use()) == ["result-1-0"]
    assert heard == [("publish", True), ("read", True), ("read", True)]


async def test_a_step_that_cannot_be_read_is_named() -> None:
    desk = SupervisorDouble(MemoryBus())
    handoff = desk.handoff("shop")
    subject = desk.subjects.step("shop", "team", handoff.workflow_id, handoff.task_id, handoff.attempt, "answer-1")
    await desk.bus.publish(subject, b"{}", {})

    with pytest.raises(ContractError, match=f"the step on {re.escape(subject)} cannot be read: "):
        await journal_of(desk, handoff, fresh=False).load()


def test_step_of_an_earlier_release_has_no_usage() -> None:
    body = b"""{"workflow_id": "wf_1", "task_id": "T1", "attempt": 1, "agent": "shop", "name": "result-1-0",
        "text": "there", "at": "2030-01-01T00:00:00Z"}"""

    step = parse(Step, body)

    assert (step.text, step.usage, step.confidence, step.replan_hint) == ("there", Usage(), None, None)


async def test_recorded_answer_returns_unchanged_and_is_reported() -> None:
    desk = SupervisorDouble(MemoryBus())
    handoff = desk.handoff("shop")
    said = replace(tool_reply(("look", {"what": "tea"})), text="Let me see.", data={"a": 1}, finish="length", model="m")
    reporter = RecordingReporter()
    await steps_of(desk, handoff).model_reply(1, giving(said))

    done = DurableSteps(new_state(handoff, reporter=reporter, journal=journal_of(desk, handoff, fresh=False)))
    await done.load()

    assert await done.model_reply(1, never) == said
    assert [report.message for report in reporter.reports] == ["continued after 1 recorded steps"]


async def test_second_worker_of_an_attempt_follows_the_steps_of_the_first() -> None:
    desk = SupervisorDouble(MemoryBus())
    handoff = desk.handoff("shop")
    state = new_state(handoff, journal=journal_of(desk, handoff))
    one, other = steps_of(desk, handoff), DurableSteps(state)
    await one.model_reply(1, giving(tool_reply(("first", {}))))
    await one.record_result(1, 0, "done", False, usage=Usage(calls=7))

    reply = await other.model_reply(1, giving(tool_reply(("second", {}))))
    await other.load()  # load the steps again

    assert [call.name for call in reply.calls] == ["first"]
    assert state.attempt_usage.usage.calls == 1 + 7  # its own model call, and the usage of the other worker's tool
    assert other.tool_result(1, 0) == ("done", False)
    assert await other.record_result(1, 0, "done again", True) == ("done", False)
    assert other.interrupted_calls(1, [0, 1]) == [1]
    assert one.interrupted_calls(1, [0, 1]) == []


async def test_resumed_attempt_is_begun_by_its_first_worker_alone() -> None:
    desk = SupervisorDouble(MemoryBus())
    asking = desk.handoff("shop")
    allowed = asking.model_copy(update={"attempt": 2, "continued_attempts": (1,)})
    await steps_of(desk, asking).model_reply(1, giving(tool_reply(("pay", {}))))

    first, twin = (steps_of(desk, allowed, fresh=False) for _ in range(2))
    state = new_state(allowed, journal=journal_of(desk, allowed, fresh=False))
    later = DurableSteps(state)
    await first.load()
    await twin.load()
    replies = [await first.model_reply(1, never), await twin.model_reply(1, never)]
    await later.load()
    replies.append(await later.model_reply(1, never))

    assert [reply.calls[0].name for reply in replies] == ["pay"] * 3
    assert [each.interrupted_calls(1, [0]) for each in (first, twin, later)] == [[], [0], [0]]
    assert state.attempt_usage.usage.calls == 0  # the first attempt has counted the call


async def test_resumed_attempt_counts_earlier_tool_usage_as_earlier() -> None:
    desk = SupervisorDouble(MemoryBus())
    asking = desk.handoff("shop")
    allowed = asking.model_copy(update={"attempt": 2, "continued_attempts": (1,)})
    told = {"usage": Usage(calls=1), "confidence": 0.4, "replan_hint": "it is gone"}
    await steps_of(desk, asking).record_result(1, 0, "there", False, **told)
    state = new_state(allowed, journal=journal_of(desk, allowed, fresh=False))

    await DurableSteps(state).load()

    usage = state.attempt_usage
    assert (usage.usage, usage.confidence, usage.replan_hint) == (Usage(), 0.4, "it is gone")


async def test_step_with_an_unanswered_publish_is_its_own() -> None:
    class Unanswered(MemoryBus):
        failing = True

        async def publish(self, *args: Any, **more: Any) -> int:
            sequence = await super().publish(*args, **more)
            if self.failing:
                self.failing = False
                raise PublishOutcomeUnknownError("no answer")
            return sequence

    desk = SupervisorDouble(Unanswered())
    done = steps_of(desk, desk.handoff("shop"))

    await done.model_reply(1, giving(tool_reply(("pay", {}))))

    assert done.interrupted_calls(1, [0]) == []  # this worker runs the call itself
