"""An attempt of a dead worker continues from its recorded steps and repeats no step."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
from support import factory
from support.contexts import new_context
from support.handoffs import SupervisorDouble

from pointsman.authoring.context import Context
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.authoring.tool_turns import MAX_REPEATS
from pointsman.authoring.tools import Tool, tool
from pointsman.bus.memory.bus import MemoryBus
from pointsman.errors import ModelError
from pointsman.llm.output_budget import estimate_input_tokens
from pointsman.ports.model import ModelReply, ModelRequest
from pointsman.settings import Settings
from pointsman.testing.clock import VirtualClock
from pointsman.testing.models import Script, ScriptedModel, text_reply, tool_reply
from pointsman_schemas.events import Handoff, Result, Step, Usage
from pointsman_schemas.strict_json import parse

SETTINGS = Settings(ack_wait=0.3, heartbeat=0.05, shutdown_grace=0.0)


class Shop:
    """Tools that record their calls. `gate` blocks `slow` and `pay` at the first call."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, str]] = []
        self.under_way = asyncio.Event()

        @tool(idempotent=True)
        async def look(what: str, context: Context) -> str:
            """Looks something up."""
            self.runs.append((f"look {what}", context.idempotency_key))
            return f"{what} is there"

        @tool(idempotent=True)
        async def slow(context: Context) -> str:
            """Takes its time."""
            return await self._held("slow", context)

        @tool
        async def pay(context: Context) -> str:
            """Pays, once."""
            return await self._held("pay", context)

        self.tools: list[Tool[..., Any]] = [look, slow, pay]

    async def _held(self, name: str, context: Context) -> str:
        self.runs.append((name, context.idempotency_key))
        if not self.under_way.is_set():
            self.under_way.set()
            await asyncio.sleep(3600)
        return f"{name} is done"

    def agent(self, model: ScriptedModel, **more: Any) -> LLMAgent:
        return LLMAgent(name="shop", description="d", instructions="i", tools=self.tools, model=model, **more)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.runs]


async def steps(desk: SupervisorDouble, handoff: Handoff) -> list[Step]:
    filter = desk.subjects.attempt_steps(
        handoff.to_agent, handoff.from_agent, handoff.workflow_id, handoff.task_id, handoff.attempt
    )
    return [parse(Step, stored.body) async for stored in desk.bus.read("results", filter)]


async def interrupted(
    desk: SupervisorDouble, shop: Shop, *replies: Script, own_loop: bool = False, **more: Any
) -> Handoff:
    """Return a handoff whose worker stopped during a tool call."""
    first = ScriptedModel(*replies)
    async with factory.running(
        factory.worker(desk.bus, shop.agent(first, **more), settings=SETTINGS, own_loop=own_loop)
    ):
        handoff = await desk.publish_handoff("shop")
        await asyncio.wait_for(shop.under_way.wait(), 10)
    return handoff


async def lost_in_an_answer(
    desk: SupervisorDouble, shop: Shop, *replies: ModelReply, handoff: Handoff | None = None
) -> Handoff:
    """Return a handoff whose worker stopped during a model call, after `replies`."""
    asked = asyncio.Event()

    class Silent(ScriptedModel):
        async def complete(self, request: ModelRequest) -> ModelReply:
            if not self._script:
                asked.set()
                await asyncio.Event().wait()
            return await super().complete(request)

    async with factory.running(factory.worker(desk.bus, shop.agent(Silent(*replies)), settings=SETTINGS)):
        handoff = handoff or await desk.publish_handoff("shop")
        await asyncio.wait_for(asked.wait(), 10)
    return handoff


async def resumed(desk: SupervisorDouble, shop: Shop, handoff: Handoff, model: ScriptedModel) -> Result:
    """Return the result of `handoff` from another worker with `model`."""
    async with factory.running(factory.worker(desk.bus, shop.agent(model), settings=SETTINGS)):
        return await desk.result(handoff)


async def test_resumed_attempt_repeats_only_unfinished_work() -> None:
    desk, shop = SupervisorDouble(MemoryBus()), Shop()
    handoff = await interrupted(
        desk,
        shop,
        tool_reply(("look", {"what": "tea"}), ("look", {})),
        tool_reply(("look", {"what": "milk"}), ("slow", {})),
    )

    second = ScriptedModel(text_reply("all there"))
    result = await resumed(desk, shop, handoff, second)

    assert (result.status, result.output) == ("succeeded", "all there")
    assert result.usage.calls == 3  # three paid calls, two of them by the first worker
    assert shop.names == ["look tea", "look milk", "slow", "slow"]
    assert shop.runs[2] == shop.runs[3]  # a repeated call has the key of the first call
    (request,) = second.requests
    (tea, bad, *rest) = (turn for turn in request.turns if turn.role == "tool")
    assert [turn.text for turn in (tea, *rest)] == ["tea is there", "milk is there", "slow is done"]
    assert (bad.text.partition(":")[0], bad.is_error) == ("bad arguments for look", True)


async def test_usage_of_a_finished_tool_is_reported_by_a_successor() -> None:
    desk, shop = SupervisorDouble(MemoryBus()), Shop()

    @tool
    async def guess(context: Context) -> str:
        """Guesses, by a model of its own."""
        shop.runs.append(("guess", context.idempotency_key))
        async with context.chat("p", "m") as call:
            call.record_usage(Usage(calls=1, input_tokens=7, cost=0.5))
        context.record_usage(Usage(calls=1))
        context.set_confidence(0.4)
        context.replan("the shelf is empty")
        return "a guess"

    @tool
    async def fail(context: Context) -> str:
        """Fails, and was not for nothing."""
        context.record_usage(Usage(calls=100))
        raise ValueError("no luck")

    shop.tools += [guess, fail]
    handoff = await interrupted(desk, shop, tool_reply(("guess", {}), ("fail", {})), tool_reply(("slow", {})))

    result = await resumed(desk, shop, handoff, ScriptedModel(text_reply("done")))

    assert shop.names == ["guess", "slow", "slow"]
    assert (result.output, result.confidence, result.replan_hint) == ("done", 0.4, "the shelf is empty")
    assert result.usage == Usage(calls=3 + 2 + 100, input_tokens=3 * 10 + 7, output_tokens=3 * 5, cost=0.5)
    told = {step.name: (step.usage.calls, step.confidence) for step in await steps(desk, handoff)}
    assert (told["result-1-0"], told["result-1-1"]) == ((2, 0.4), (100, None))  # parallel calls have separate usage


async def test_usage_of_failed_model_calls_is_counted_by_a_successor() -> None:
    desk, shop = SupervisorDouble(MemoryBus()), Shop()
    dropped = ModelError("dropped", retryable=True, retry_after=0, usage=Usage(calls=1, input_tokens=5_000, cost=0.5))
    handoff = await interrupted(desk, shop, dropped, tool_reply(("slow", {})))

    result = await resumed(desk, shop, handoff, ScriptedModel(text_reply("done")))

    assert (result.output, shop.names) == ("done", ["slow", "slow"])
    assert (result.usage.calls, result.usage.input_tokens, result.usage.cost) == (3, 5_000 + 2 * 10, 0.5)


async def test_a_worker_that_died_while_its_model_answered_leaves_that_call_counted() -> None:
    desk, shop = SupervisorDouble(MemoryBus()), Shop()
    handoff = await lost_in_an_answer(desk, shop, tool_reply(("look", {"what": "tea"})))

    second = ScriptedModel(text_reply(""), text_reply("all there"))
    result = await resumed(desk, shop, handoff, second)

    assert (result.output, result.usage.calls) == ("all there", 4)
    assert result.usage.input_tokens == 3 * 10 + estimate_input_tokens(second.requests[0])


async def test_each_worker_that_died_while_its_model_answered_leaves_one_call_counted() -> None:
    desk, shop = SupervisorDouble(MemoryBus()), Shop()
    handoff = await lost_in_an_answer(desk, shop)
    await lost_in_an_answer(desk, shop, tool_reply(("look", {"what": "tea"})), handoff=handoff)

    result = await resumed(desk, shop, handoff, ScriptedModel(text_reply("all there")))

    assert (result.output, result.usage.calls) == ("all there", 2 + 2)


@pytest.mark.parametrize(
    "asked",
    [
        [tool_reply(("gone", {}), ("pay", {}))],
        [tool_reply(("pay", {}))] * (MAX_REPEATS + 1),
        [tool_reply(*[("pay", {})] * 33)],
    ],
    ids=["of a tool there is not", "once too often", "one too many at a time"],
)
async def test_refused_call_was_not_in_progress_at_the_crash(asked: list[ModelReply]) -> None:
    desk, shop = SupervisorDouble(MemoryBus()), Shop()
    shop.under_way.set()
    handoff = await lost_in_an_answer(desk, shop, *asked)
    paid = len(shop.runs)

    result = await resumed(desk, shop, handoff, ScriptedModel(text_reply("done")))

    assert (result.output, len(shop.runs)) == ("done", paid)
    assert result.usage.calls == len(asked) + 2  # with the interrupted call and the last call


@pytest.mark.parametrize("late", [False, True], ids=["it killed too many", "its deadline has passed"])
async def test_abandoned_attempt_has_the_usage_of_its_steps(late: bool) -> None:
    clock, shop = VirtualClock(), Shop()
    desk = SupervisorDouble(MemoryBus(clock=clock), clock=clock)
    asked = tool_reply(("look", {"what": "tea"})), tool_reply(("pay", {}))
    first, second = ScriptedModel(*asked), ScriptedModel()
    async with factory.running(factory.worker(desk.bus, shop.agent(first), settings=SETTINGS, clock=clock)):
        handoff = await desk.publish_handoff("shop")
        await asyncio.wait_for(shop.under_way.wait(), 10)
    if late:
        await clock.advance((handoff.deadline - clock.now()).total_seconds() + 1)
    else:
        again = await desk.bus.consumer("agent-shop", "work", desk.subjects.agent_handoffs("shop"), ack_wait=0.3)
        for _ in range(SETTINGS.max_deliveries - 1):
            (taken,) = await again.take(1)
            await taken.nak()

    async with factory.running(factory.worker(desk.bus, shop.agent(second), settings=SETTINGS, clock=clock)):
        result = await desk.result(handoff)

    assert result.error is not None
    assert result.error.kind == ("timeout" if late else "worker_crashed")
    assert (result.usage.calls, result.usage.input_tokens) == (2, 2 * 10)
    assert second.requests == []


async def test_steps_are_kept_from_a_handler_s_own_loop_too() -> None:
    desk, shop = SupervisorDouble(MemoryBus()), Shop()
    shop.under_way.set()
    model = ScriptedModel(tool_reply(("slow", {})), text_reply("done"))

    async with factory.running(factory.worker(desk.bus, shop.agent(model), settings=SETTINGS, own_loop=True)):
        handoff = await desk.publish_handoff("shop")
        await desk.result(handoff)

    assert [step.name for step in await steps(desk, handoff)] == ["answer-1", "result-1-0"]


async def test_interrupted_non_idempotent_tool_ends_the_attempt_as_unknown() -> None:
    desk, shop = SupervisorDouble(MemoryBus()), Shop()
    handoff = await interrupted(desk, shop, tool_reply(("pay", {}), ("look", {"what": "tea"})))

    second = ScriptedModel()
    result = await resumed(desk, shop, handoff, second)

    assert result.error is not None
    assert (result.status, result.error.kind, result.error.retryable) == ("failed", "outcome_unknown", False)
    assert "pay" in result.error.message
    assert sorted(shop.names) == ["look tea", "pay"]
    assert second.requests == []
    assert result.usage.calls == 1


async def test_equal_calls_keep_their_keys_if_the_first_is_not_repeated() -> None:
    desk, shop = SupervisorDouble(MemoryBus()), Shop()
    shop.under_way.set()
    model = ScriptedModel(
        tool_reply(("look", {"what": "tea"})), tool_reply(("look", {"what": "tea"})), text_reply("done")
    )
    async with factory.running(factory.worker(desk.bus, shop.agent(model), settings=SETTINGS)):
        handoff = await desk.publish_handoff("shop")
        await desk.result(handoff)
    (first, second) = (key for _, key in shop.runs)
    kept = next(step for step in await steps(desk, handoff) if step.name == "answer-1")

    class Recalled:
        async def load(self) -> dict[str, Step]:
            result = kept.model_copy(update={"name": "result-1-0", "text": "tea is there", "calls": ()})
            return {"answer-1": kept, "result-1-0": result}

        async def append(self, step: Step) -> Step:
            return step

    again = ScriptedModel(tool_reply(("look", {"what": "tea"})), text_reply("done"))
    await shop.agent(again).run(handoff, new_context(handoff, journal=Recalled()))

    assert first != second
    assert [key for _, key in shop.runs] == [first, second, second]


@pytest.mark.parametrize("off", [{"journal": False}, {}], ids=["setting", "agent"])
async def test_without_a_journal_no_step_is_stored_and_the_attempt_starts_again(off: dict[str, Any]) -> None:
    desk, shop = SupervisorDouble(MemoryBus()), Shop()
    settings = SETTINGS.model_copy(update=off)
    script = [tool_reply(("look", {"what": "tea"})), tool_reply(("pay", {}))]
    first, second = ScriptedModel(*script), ScriptedModel(*script, text_reply("done"))
    async with factory.running(factory.worker(desk.bus, shop.agent(first, durable=bool(off)), settings=settings)):
        handoff = await desk.publish_handoff("shop")
        await asyncio.wait_for(shop.under_way.wait(), 10)

    async with factory.running(factory.worker(desk.bus, shop.agent(second, durable=bool(off)), settings=settings)):
        result = await desk.result(handoff)

    assert result.output == "done"
    assert shop.names == ["look tea", "pay", "look tea", "pay"]
    assert await steps(desk, handoff) == []


async def test_recorded_result_stands_even_if_its_tool_changed() -> None:
    desk, shop = SupervisorDouble(MemoryBus()), Shop()
    shop.under_way.set()
    handoff = await lost_in_an_answer(desk, shop, tool_reply(("look", {"what": "tea"}), ("pay", {})))
    paid = list(shop.runs)

    shop.tools = [tool(approval=True)(inspect.unwrap(shop.tools[2]))]  # like a later release of the agent
    second = ScriptedModel(text_reply("done"))
    result = await resumed(desk, shop, handoff, second)

    assert (result.output, shop.runs) == ("done", paid)
    assert [turn.text for turn in second.requests[0].turns[2:]] == ["tea is there", "pay is done"]


async def test_oversized_answer_ends_the_attempt_before_its_tools_run() -> None:
    desk, shop = SupervisorDouble(MemoryBus(max_payload=8_000, max_body=8_000)), Shop()
    model = ScriptedModel(tool_reply(("look", {"what": "x" * 20_000})))
    async with factory.running(factory.worker(desk.bus, shop.agent(model), settings=SETTINGS)):
        result = await desk.result(await desk.publish_handoff("shop"))

    assert result.error is not None
    assert (result.error.kind, shop.runs) == ("oversize", [])
    assert result.error.message.startswith("the model's answer cannot be recorded: ")


async def test_oversized_tool_result_is_reported_to_the_model() -> None:
    desk, shop = SupervisorDouble(MemoryBus(max_payload=8_000, max_body=8_000)), Shop()

    @tool
    def flood() -> str:
        """Much."""
        return "x" * 20_000

    shop.tools = [flood]
    model = ScriptedModel(tool_reply(("flood", {})), text_reply("too much"))
    async with factory.running(factory.worker(desk.bus, shop.agent(model), settings=SETTINGS)):
        result = await desk.result(await desk.publish_handoff("shop"))

    assert result.output == "too much"
    assert "too large to be recorded" in model.requests[1].turns[-1].text
    assert model.requests[1].turns[-1].is_error


async def test_an_answer_is_on_the_bus_before_its_tools_run() -> None:
    desk = SupervisorDouble(MemoryBus())
    seen: list[list[str]] = []

    @tool
    async def look(context: Context) -> str:
        """Looks."""
        seen.append([step.name for step in await steps(desk, context.handoff)])
        return "seen"

    def then(request: ModelRequest) -> ModelReply:
        return text_reply("done")

    agent = LLMAgent(
        name="shop",
        description="d",
        instructions="i",
        tools=[look],
        model=ScriptedModel(tool_reply(("look", {})), then),
    )
    async with factory.running(factory.worker(desk.bus, agent, settings=SETTINGS)):
        await desk.result(await desk.publish_handoff("shop"))

    assert seen == [["answer-1"]]
