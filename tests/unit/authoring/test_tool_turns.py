"""In the tool loop each call has its own result. The loop ends with a reason and never runs another agent's tool."""

from __future__ import annotations

import asyncio
from typing import Annotated

import pytest
from pydantic import AfterValidator, JsonValue
from support.contexts import recorded
from support.loops import double, results_of, run

from pointsman.authoring.context import Context
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.authoring.tool_turns import MAX_PARALLEL_CALLS, MAX_REPEATS, MAX_RESULT_CHARS
from pointsman.authoring.tools import tool
from pointsman.errors import AnswerRequiredError, TaskError
from pointsman.ports.model import ModelReply, ToolCall
from pointsman.testing.models import Script, ScriptedModel, text_reply, tool_reply


async def test_parallel_calls_run_side_by_side_and_each_gets_its_own_result() -> None:
    both_here = asyncio.Barrier(2)

    @tool
    async def meet(name: str) -> str:
        """Wait for the other."""
        async with asyncio.timeout(5):
            await both_here.wait()
        if name == "b":
            raise ValueError("b is ill")
        return f"met {name}"

    output, model, _ = await run(
        tool_reply(("meet", {"name": "a"}), ("meet", {"name": "b"})), text_reply("ok"), tools=[meet]
    )

    assert output == "ok"
    failed = "meet failed: ValueError; `pointsman trace` has the reason"
    assert results_of(model.requests[1]) == [("met a", False), (failed, True)]
    turns = model.requests[1].turns
    assert [call.id for call in turns[1].calls] == [turn.call_id for turn in turns[2:]]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (("doubel", {"number": 1}), "there is no tool 'doubel' here; the tools are: double"),
        (("double", {"number": "many"}), "bad arguments for double"),
        (("double", "{number: 1"), "bad arguments for double"),
        (("double", {"number": 1, "extra": 2}), "bad arguments for double"),
        (("x" * 100, {}), f"there is no tool {'x' * 64!r} here; the tools are: double"),
    ],
)
async def test_model_error_is_reported_to_the_model(call: tuple[str, JsonValue], said: str) -> None:
    output, model, _ = await run(
        tool_reply(call), tool_reply(("double", {"number": 4})), text_reply("8"), tools=[double]
    )

    ((problem, is_error),) = results_of(model.requests[1])
    assert is_error
    assert said in problem
    assert output == "8"


@pytest.mark.parametrize("approval", [False, True])
async def test_unreadable_argument_of_a_custom_type_is_reported_to_the_model(approval: bool) -> None:
    def known(colour: str) -> str:
        return {"red": "#f00"}[colour]

    async def paint(colour: Annotated[str, AfterValidator(known)]) -> str:
        """Paint the wall."""
        return colour

    output, model, _ = await run(
        tool_reply(("paint", {"colour": "blue"})), text_reply("no"), tools=[tool(approval=approval)(paint)]
    )

    assert results_of(model.requests[1]) == [("paint failed: KeyError; `pointsman trace` has the reason", True)]
    assert output == "no"


async def test_tool_of_another_agent_is_out_of_reach() -> None:
    reached: list[str] = []

    @tool
    async def wire_money(amount: int) -> str:
        """Wire money."""
        reached.append("money")
        return "sent"

    LLMAgent(name="bank", description="Has the tool", instructions="i", model=ScriptedModel(), tools=[wire_money])
    _, model, context = await run(tool_reply(("wire_money", {"amount": 9})), text_reply("no"), tools=[double])

    assert reached == []
    assert results_of(model.requests[1])[0][1]
    (refused,) = [report for report in recorded(context).reports if report.kind == "tool"]
    assert (refused.name, refused.error is not None) == ("wire_money", True)


async def test_repeated_call_is_stopped_and_reported_to_the_model() -> None:
    script: list[Script] = [tool_reply(("double", {"number": 1}))] * (MAX_REPEATS + 1)
    _, model, _ = await run(*script, text_reply("2"), tools=[double])

    texts = [text for text, _ in results_of(model.requests[-1])]
    assert texts[:MAX_REPEATS] == ["2"] * MAX_REPEATS
    assert "already" in texts[MAX_REPEATS]


async def test_excess_parallel_calls_are_reported_and_the_rest_run() -> None:
    _, model, _ = await run(
        tool_reply(*[("double", {"number": 1})] * (MAX_PARALLEL_CALLS + 1)), text_reply("2"), tools=[double]
    )

    *ran, (told, is_error) = results_of(model.requests[1])
    assert ran == [("2", False)] * MAX_PARALLEL_CALLS  # equal calls in one turn are not a loop
    assert (told, is_error) == (
        f"not run: more than {MAX_PARALLEL_CALLS} calls in one turn; repeat this call if you need it",
        True,
    )


async def test_agent_without_tools_tells_its_model_so() -> None:
    _, model, _ = await run(tool_reply(("look", {})), text_reply("ok"))

    assert results_of(model.requests[1]) == [("there is no tool 'look' here; the tools are: none", True)]


async def test_the_loop_ends_after_its_turns_with_a_reason() -> None:
    script: list[Script] = [tool_reply(("double", {"number": number})) for number in range(10)]
    error, model, context = await run(*script, tools=[double])

    assert isinstance(error, TaskError)
    assert (error.kind, error.retryable, len(model.requests), context.usage.calls) == ("limit", False, 10, 10)
    assert "10 turns" in str(error)


async def test_repeated_and_missing_call_ids_are_distinguished() -> None:
    twins = ModelReply(
        text="",
        finish="tool_calls",
        calls=(
            ToolCall("x", "double", '{"number": 1}'),
            ToolCall("x", "double", '{"number": 2}'),
            ToolCall("", "double", "{}"),
        ),
    )
    _, model, _ = await run(twins, twins, text_reply("ok"), tools=[double])

    turns = model.requests[2].turns
    ids = [call.id for turn in turns for call in turn.calls]
    assert len(set(ids)) == 6
    assert all(ids)
    assert ids == [turn.call_id for turn in turns if turn.role == "tool"]


async def test_all_approvals_of_a_turn_are_requested_before_any_tool_runs() -> None:
    ran: list[int] = []

    @tool(approval=True)
    async def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    @tool
    async def look(number: int) -> str:
        """Look."""
        ran.append(number)
        return "seen"

    wanted = tool_reply(("look", {"number": 1}), ("pay", {"amount": 5}), ("pay", {"amount": 6}), ("pay", {"euros": 7}))
    error, _, _ = await run(wanted, tools=[pay, look])

    assert isinstance(error, AnswerRequiredError)
    assert [call.arguments for call in error.questions] == [{"amount": 5}, {"amount": 6}]
    assert ran == []


async def test_nested_call_that_needs_approval_ends_the_attempt_with_the_question() -> None:
    @tool(approval=True)
    async def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    @tool
    async def settle(context: Context) -> str:
        """Settle the open amount."""
        return str(await context.call(pay, amount=5))

    error, _, _ = await run(tool_reply(("settle", {}), ("double", {"number": 1})), tools=[settle, double])

    assert isinstance(error, AnswerRequiredError)
    assert [(call.tool, call.arguments) for call in error.questions] == [("pay", {"amount": 5})]


async def test_a_huge_tool_result_is_cut_and_reports_it() -> None:
    @tool
    async def book(pages: int) -> str:
        """The book."""
        return "x" * pages * 1_000

    _, model, _ = await run(
        tool_reply(("book", {"pages": 50}), ("book", {"pages": 60})), text_reply("ok"), tools=[book]
    )

    whole = "x" * MAX_RESULT_CHARS
    assert results_of(model.requests[1]) == [(whole, False), (f"{whole}... (10000 characters more)", False)]


async def test_a_tool_s_key_is_the_same_in_the_next_attempt() -> None:
    keys: list[str] = []

    @tool
    async def pay(context: Context, amount: int) -> str:
        """Pay."""
        keys.append(context.idempotency_key)
        return "paid"

    for _ in range(2):
        await run(tool_reply(("pay", {"amount": 5})), text_reply("ok"), tools=[pay])

    assert keys[0] == keys[1]


async def test_cancelling_an_attempt_cancels_its_tools() -> None:
    running, cancelled = asyncio.Event(), asyncio.Event()

    @tool
    async def forever() -> str:
        """Never ends."""
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return ""

    attempt = asyncio.create_task(run(tool_reply(("forever", {})), tools=[forever]))
    async with asyncio.timeout(5):
        await running.wait()
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt

    assert cancelled.is_set()
