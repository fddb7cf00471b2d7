"""An approval is for one call, by a model or by code, in any worker of the attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import JsonValue
from support.contexts import new_context
from support.handoffs import SupervisorDouble

from pointsman.authoring.context import Context, state_of
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.authoring.tools import Tool, tool
from pointsman.bus.memory.bus import MemoryBus
from pointsman.clock import SystemClock
from pointsman.engine.worker.step_journal import BusStepJournal
from pointsman.errors import AnswerRequiredError, ConfigurationError, TaskError
from pointsman.testing.models import Script, ScriptedModel, text_reply, tool_reply
from pointsman_schemas.events import Answer, Handoff, Usage


class Bank:
    """A tool that needs approval, tools that call it, and the payments by key."""

    def __init__(self) -> None:
        self.paid: list[tuple[int, str]] = []
        self.noted: list[str] = []

        @tool(approval=True)
        async def pay(amount: int, context: Context) -> str:
            """Pays."""
            self.paid.append((amount, context.idempotency_key))
            context.record_usage(Usage(calls=amount))
            context.set_confidence(1 / amount)
            if amount == 13:
                raise ValueError("no luck")
            if amount == 14:
                raise SystemExit("no luck")
            return f"paid {amount}"

        @tool
        async def settle(amounts: list[int], context: Context, month: int = 1) -> str:
            """Pays the open invoices, one after the other."""
            context.record_usage(Usage(calls=100))
            context.set_confidence(1.0)
            return ", ".join([str(await context.call(self.pay, amount=amount)) for amount in amounts])

        @tool
        async def note(text: str) -> str:
            """Takes its time to write it down."""
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.noted.append(text)
            return "noted"

        self.pay = pay
        self.tools: list[Tool[..., Any]] = [pay, settle, note]

    @property
    def amounts(self) -> list[int]:
        return [amount for amount, _ in self.paid]


def handed(desk: SupervisorDouble, *allowed: int, attempt: int = 1, continued_attempts: Sequence[int] = ()) -> Handoff:
    said = [Answer(tool="pay", arguments={"amount": amount}, verdict="approved") for amount in allowed]
    return desk.handoff("clerk", attempt=attempt, answers=tuple(said), continued_attempts=tuple(continued_attempts))


def context_of(desk: SupervisorDouble, handoff: Handoff) -> Context:
    journal = BusStepJournal(
        desk.bus, desk.subjects, handoff, source="s", correlation_id="c", causation_id="c", clock=SystemClock(),
        fresh=False,
    )  # fmt: skip
    return new_context(handoff, journal=journal)


async def worked(desk: SupervisorDouble, handoff: Handoff, bank: Bank, *script: Script) -> JsonValue | list[JsonValue]:
    """Run an attempt. Return the answer of its model, or the amounts of its approval request."""
    clerk = LLMAgent(name="clerk", description="d", instructions="i", tools=bank.tools, model=ScriptedModel(*script))
    try:
        return await clerk.run(handoff, context_of(desk, handoff))
    except AnswerRequiredError as error:
        return [call.arguments["amount"] for call in error.questions]


async def died(desk: SupervisorDouble, handoff: Handoff, bank: Bank, *script: Script) -> None:
    """Run a worker that follows the script and dies at the next model call."""
    with pytest.raises(ConfigurationError, match="no reply for call"):
        await worked(desk, handoff, bank, *script)


@pytest.mark.parametrize("again", [("settle", {"amounts": [9], "month": 2}), ("pay", {"amount": 9})])
async def test_approval_used_by_code_stays_used_for_a_successor(again: tuple[str, JsonValue]) -> None:
    desk, bank = SupervisorDouble(MemoryBus()), Bank()
    handoff = handed(desk, 9)
    await died(desk, handoff, bank, tool_reply(("settle", {"amounts": [9]})))

    asked = await worked(desk, handoff, bank, tool_reply(again))

    assert (asked, bank.amounts) == ([9], [9])


async def test_second_approval_serves_the_second_call_of_a_successor() -> None:
    desk, bank = SupervisorDouble(MemoryBus()), Bank()
    handoff = handed(desk, 9, 9)
    await died(desk, handoff, bank, tool_reply(("pay", {"amount": 9})))

    answer = await worked(desk, handoff, bank, tool_reply(("settle", {"amounts": [9]})), text_reply("done"))

    assert (answer, bank.amounts, len(set(bank.paid))) == ("done", [9, 9], 2)


async def test_approved_call_is_not_repeated_when_code_restarts() -> None:
    desk, bank = SupervisorDouble(MemoryBus()), Bank()
    wanted = tool_reply(("settle", {"amounts": [5, 6, 5]}))

    first = await worked(desk, handed(desk), bank, wanted)
    second = await worked(desk, handed(desk, 5, attempt=2, continued_attempts=[1]), bank)
    third = await worked(desk, handed(desk, 5, 6, attempt=3, continued_attempts=[1, 2]), bank)
    done = await worked(desk, handed(desk, 5, 6, 5, attempt=4, continued_attempts=[1, 2, 3]), bank, text_reply("done"))

    assert (first, second, third, done) == ([5], [6], [5], "done")
    assert (bank.amounts, len(set(bank.paid))) == ([5, 6, 5], 3)


async def test_approved_call_is_not_repeated_without_a_durable_loop() -> None:
    desk, bank = SupervisorDouble(MemoryBus()), Bank()

    async def worked(handoff: Handoff) -> JsonValue:
        model = ScriptedModel(tool_reply(("settle", {"amounts": [5, 6]})), text_reply("done"))
        clerk = LLMAgent(
            name="clerk", description="d", instructions="i", tools=bank.tools[1:], model=model, durable=False
        )
        return await clerk.run(handoff, context_of(desk, handoff))

    with pytest.raises(AnswerRequiredError):
        await worked(handed(desk, 5))

    assert await worked(handed(desk, 5, 6, attempt=2, continued_attempts=[1])) == "done"
    assert bank.amounts == [5, 6]


async def test_usage_of_an_approved_call_is_counted_once() -> None:
    desk, bank = SupervisorDouble(MemoryBus()), Bank()
    handoff = handed(desk, 5, 4)
    await died(desk, handoff, bank, tool_reply(("pay", {"amount": 4})), tool_reply(("settle", {"amounts": [5]})))
    context = context_of(desk, handoff)
    model = ScriptedModel(text_reply("done"))
    clerk = LLMAgent(name="clerk", description="d", instructions="i", tools=bank.tools, model=model)

    assert await clerk.run(handoff, context) == "done"
    assert bank.amounts == [4, 5]
    # The call from code reported its confidence last.
    assert (context.usage.calls, context.confidence) == (3 + 100 + 4 + 5, 1 / 5)


async def test_function_agent_gets_the_results_of_its_earlier_approved_calls() -> None:
    desk, bank = SupervisorDouble(MemoryBus()), Bank()
    first, second = handed(desk, 5, attempt=2), handed(desk, 5, 6, attempt=3, continued_attempts=[2])

    async def work(context: Context) -> list[JsonValue]:
        return [await context.call(bank.pay, amount=amount) for amount in (5, 6)]

    with pytest.raises(AnswerRequiredError):
        await work(context_of(desk, first))
    context = context_of(desk, second)

    assert await work(context) == ["paid 5", "paid 6"]
    assert bank.amounts == [5, 6]
    assert context.usage.calls == 6  # without the calls that the earlier attempt has counted


@pytest.mark.parametrize(("amount", "error"), [(13, ValueError), (14, SystemExit)])
async def test_failed_approved_call_stays_used_and_fails_again(amount: int, error: type[BaseException]) -> None:
    desk, bank = SupervisorDouble(MemoryBus()), Bank()
    handoff = handed(desk, amount)

    with pytest.raises(error, match="no luck"):
        await context_of(desk, handoff).call(bank.pay, amount=amount)
    with pytest.raises(TaskError, match=f"pay has run, and is not run again: {error.__name__}; `pointsman trace`"):
        await context_of(desk, handoff).call(bank.pay, amount=amount)

    assert bank.amounts == [amount]


async def test_calls_beside_an_approval_request_finish_and_are_kept() -> None:
    desk, bank = SupervisorDouble(MemoryBus()), Bank()
    wanted = tool_reply(
        ("note", {"text": "tea"}), ("settle", {"amounts": [5]}), ("settle", {"amounts": [6]}), ("pay", {"amount": 7})
    )

    asked = await worked(desk, handed(desk, 7), bank, wanted)
    done = await worked(desk, handed(desk, 7, 5, 6, attempt=2, continued_attempts=[1]), bank, text_reply("done"))

    assert (asked, done) == ([5, 6], "done")
    assert (bank.noted, sorted(bank.amounts)) == (["tea"], [5, 6, 7])


async def test_event_of_a_finished_tool_is_reported_by_a_successor() -> None:
    desk, bank = SupervisorDouble(MemoryBus()), Bank()

    @tool(idempotent=True, retries=1)
    async def tell(context: Context) -> str:
        """Tells that it is paid, twice."""
        await context.emit("paid", {"amount": 9})
        await context.emit("paid", {"amount": 8})
        if not bank.noted:
            bank.noted.append("tried")
            raise TaskError("not now", retryable=True, retry_after=0)
        return "told"

    bank.tools.append(tell)
    handoff = handed(desk)
    await died(desk, handoff, bank, tool_reply(("tell", {})))
    context = context_of(desk, handoff)
    clerk = LLMAgent(
        name="clerk", description="d", instructions="i", tools=bank.tools, model=ScriptedModel(text_reply("done"))
    )

    assert await clerk.run(handoff, context) == "done"
    assert [(event.name, event.data) for event in context.events] == [("paid", {"amount": 9}), ("paid", {"amount": 8})]


async def test_event_of_a_function_is_not_kept_since_it_runs_again() -> None:
    desk = SupervisorDouble(MemoryBus())
    handoff = handed(desk)

    await context_of(desk, handoff).emit("paid")

    assert await state_of(context_of(desk, handoff)).record.load() == {}


async def test_nested_approved_tool_runs_whole_once_both_are_approved() -> None:
    desk, bank = SupervisorDouble(MemoryBus()), Bank()

    @tool(approval=True)
    async def close(context: Context) -> JsonValue:
        """Pays the rest, and closes the account."""
        return [await context.call(bank.pay, amount=5), "closed"]

    yes = Answer(tool="close", verdict="approved")
    first = desk.handoff("clerk", answers=(yes,))
    second = desk.handoff("clerk", answers=(yes, *handed(desk, 5).answers), attempt=2, continued_attempts=(1,))

    with pytest.raises(AnswerRequiredError):
        await context_of(desk, first).call(close)

    assert await context_of(desk, second).call(close) == ["paid 5", "closed"]
    assert bank.amounts == [5]


async def test_oversized_result_of_an_approved_call_is_an_error_each_time() -> None:
    desk, ran = SupervisorDouble(MemoryBus(max_payload=8_000, max_body=8_000)), list[str]()

    @tool(approval=True)
    async def flood() -> str:
        """Gives much."""
        ran.append("flood")
        return "x" * 20_000

    handoff = desk.handoff("clerk", answers=(Answer(tool="flood", verdict="approved"),))

    for _ in range(2):
        with pytest.raises(TaskError, match="flood has run, and is not run again: its result is too large to be recor"):
            await context_of(desk, handoff).call(flood)
    assert ran == ["flood"]


async def test_approved_calls_of_model_and_code_are_recorded_alike() -> None:
    desk, bank = SupervisorDouble(MemoryBus()), Bank()
    handoff = handed(desk, 9, 8)
    await died(desk, handoff, bank, tool_reply(("pay", {"amount": 9}), ("settle", {"amounts": [8]})))

    steps = await state_of(context_of(desk, handoff)).record.load()

    (call,) = (step for name, step in steps.items() if name.startswith("call-"))
    assert steps.keys() - {call.name} == {"answer-1", "result-1-0", "result-1-1"}
    assert (call.data, [(each.name, each.arguments) for each in call.calls]) == ("paid 8", [("pay", '{"amount":8}')])
