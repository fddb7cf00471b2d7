"""Interceptors get each attempt, tool call and model call of a worker, and may change, refuse or answer the call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel, JsonValue
from support.contexts import new_context, recorded
from support.journals import MemoryJournal

from pointsman import AttemptInvocation, Interceptor, ModelInvocation, Next, ToolInvocation, agent
from pointsman.authoring.agent import Agent
from pointsman.authoring.context import Context
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.authoring.tools import tool
from pointsman.errors import AnswerRequiredError, ModelError, NotJsonError, TaskError
from pointsman.ports.model import ModelReply
from pointsman.testing import run_team
from pointsman.testing.models import Script, ScriptedModel, text_reply, tool_reply
from pointsman_schemas.events import Outcome, Usage
from pointsman_schemas.team import Pipeline, RetryPolicy, Stage, Team


class Tracing(Interceptor):
    """Records each call before and after it."""

    def __init__(self, log: list[str], name: str = "") -> None:
        self.log = log
        self.name = name

    async def attempt(self, call: AttemptInvocation, next: Next[AttemptInvocation, JsonValue]) -> JsonValue:
        self.log.append(f"{self.name}> attempt {call.agent.name}")
        try:
            return await next(call)
        finally:
            self.log.append(f"{self.name}< attempt")

    async def tool(self, call: ToolInvocation, next: Next[ToolInvocation, JsonValue]) -> JsonValue:
        self.log.append(f"{self.name}> tool {call.tool} {dict(call.arguments)}")
        value = await next(call)
        self.log.append(f"{self.name}< tool {value}")
        return value

    async def model(self, call: ModelInvocation, next: Next[ModelInvocation, ModelReply]) -> ModelReply:
        self.log.append(f"{self.name}> model {call.provider}:{call.model} {call.attempt}")
        reply = await next(call)
        self.log.append(f"{self.name}< model {reply.text}")
        return reply


@tool
def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def clerk(*script: Script, **more: Any) -> LLMAgent:
    return LLMAgent(
        name="clerk", description="Doubles", instructions="i", tools=[double], model=ScriptedModel(*script), **more
    )


async def outcome_of(each: Agent, *interceptors: Interceptor, input: str = "go on") -> Outcome:
    team = Team(name="t", strategy=Pipeline(stages=(Stage(agent=each.card.name),)), retry=RetryPolicy(attempts=1))
    return await run_team(team, [each], input, interceptors=interceptors)


async def test_the_first_interceptor_is_the_outermost_and_sees_all_three_kinds() -> None:
    log: list[str] = []

    outcome = await outcome_of(
        clerk(tool_reply(("double", {"number": 4})), text_reply("8")), Tracing(log, "a"), Tracing(log, "b")
    )

    assert outcome.answer == "8"
    assert log == [
        "a> attempt clerk",
        "b> attempt clerk",
        *("a> model scripted:scripted 1", "b> model scripted:scripted 1", "b< model ", "a< model "),
        *("a> tool double {'number': 4}", "b> tool double {'number': 4}", "b< tool 8", "a< tool 8"),
        *("a> model scripted:scripted 1", "b> model scripted:scripted 1", "b< model 8", "a< model 8"),
        "b< attempt",
        "a< attempt",
    ]


async def test_a_base_class_passes_everything_on() -> None:
    class Nothing(Interceptor):
        pass

    outcome = await outcome_of(clerk(tool_reply(("double", {"number": 4})), text_reply("8")), Nothing())

    assert (outcome.answer, outcome.usage.calls) == ("8", 2)


async def test_a_plain_agent_in_a_thread_is_intercepted_on_the_loop_with_its_tools() -> None:
    log, threads = list[str](), list[bool]()

    class OnLoop(Tracing):
        async def tool(self, call: ToolInvocation, next: Next[ToolInvocation, JsonValue]) -> JsonValue:
            threads.append(threading.current_thread() is threading.main_thread())
            return await super().tool(call, next)

    @agent
    def plain(request: str, context: Context) -> int:
        """Doubles in a thread."""
        threads.append(threading.current_thread() is threading.main_thread())
        doubled = context.run_sync(context.call(double, number=4))
        assert isinstance(doubled, int)
        return doubled

    outcome = await outcome_of(plain, OnLoop(log))

    assert (outcome.answer, threads) == (8, [False, True])
    assert log == ["> attempt plain", "> tool double {'number': 4}", "< tool 8", "< attempt"]


async def test_a_refused_tool_is_an_error_that_the_model_reads() -> None:
    class NoDoubling(Interceptor):
        async def tool(self, call: ToolInvocation, next: Next[ToolInvocation, JsonValue]) -> JsonValue:
            raise TaskError("doubling is closed until Monday")

    model = clerk(tool_reply(("double", {"number": 4})), text_reply("closed"))
    context = Context.for_test(interceptors=[NoDoubling()])

    assert await model.run(context.handoff, context) == "closed"
    assert isinstance(model.model, ScriptedModel)
    turn = model.model.requests[1].turns[-1]
    assert (turn.text, turn.is_error) == ("double failed: doubling is closed until Monday", True)
    (report,) = [each for each in recorded(context).reports if each.kind == "tool"]
    assert report.error == "doubling is closed until Monday"


@pytest.mark.parametrize("error", [RuntimeError("broken"), ModelError("busy", retryable=True)])
async def test_an_exception_counts_like_one_of_the_call(error: Exception) -> None:
    class Breaking(Interceptor):
        async def attempt(self, call: AttemptInvocation, next: Next[AttemptInvocation, JsonValue]) -> JsonValue:
            await next(call)
            raise error

    @agent
    async def fine(request: str) -> str:
        """Answers."""
        return "fine"

    outcome = await outcome_of(fine, Breaking())

    assert outcome.status == "failed"
    assert [(task.status, task.attempts) for task in outcome.tasks] == [("failed", 1)]


async def test_a_model_error_of_an_interceptor_is_tried_again() -> None:
    tries: list[int] = []

    class Busy(Interceptor):
        async def model(self, call: ModelInvocation, next: Next[ModelInvocation, ModelReply]) -> ModelReply:
            tries.append(call.attempt)
            if len(tries) == 1:
                raise ModelError("busy", retryable=True, retry_after=0)
            return await next(call)

    assert (await outcome_of(clerk(text_reply("8")), Busy())).answer == "8"
    assert tries == [1, 2]


async def test_cancellation_passes_through() -> None:
    log: list[str] = []

    @tool
    async def endless() -> None:
        """Waits."""
        await asyncio.Event().wait()

    class Seeing(Interceptor):
        async def tool(self, call: ToolInvocation, next: Next[ToolInvocation, JsonValue]) -> JsonValue:
            log.append("started")
            try:
                return await next(call)
            except asyncio.CancelledError:
                log.append("cancelled")
                raise

    task = asyncio.create_task(Context.for_test(interceptors=[Seeing()]).call(endless))
    while not log:
        await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["started", "cancelled"]


async def test_changed_arguments_are_checked_again_and_the_key_is_that_of_the_call() -> None:
    keys: list[str] = []

    @tool
    def note(amount: int, context: Context) -> str:
        """Notes an amount."""
        keys.append(context.idempotency_key)
        return f"noted {amount}"

    class Changing(Interceptor):
        def __init__(self, arguments: dict[str, JsonValue]) -> None:
            self.arguments = arguments

        async def tool(self, call: ToolInvocation, next: Next[ToolInvocation, JsonValue]) -> JsonValue:
            return await next(replace(call, arguments={**call.arguments, **self.arguments}))

    plain = await Context.for_test().call(note, amount=1)
    changed = await Context.for_test(interceptors=[Changing({"amount": 5})]).call(note, amount=1)
    with pytest.raises(TaskError, match="bad arguments for note: amount"):
        await Context.for_test(interceptors=[Changing({"amount": "many"})]).call(note, amount=1)

    assert (plain, changed) == ("noted 1", "noted 5")
    assert len(keys) == 2
    assert keys[0] == keys[1]


async def test_a_call_may_be_answered_without_being_made() -> None:
    class Cached(Interceptor):
        async def tool(self, call: ToolInvocation, next: Next[ToolInvocation, JsonValue]) -> JsonValue:
            return 42

        async def model(self, call: ModelInvocation, next: Next[ModelInvocation, ModelReply]) -> ModelReply:
            return ModelReply(text="from the cache")

    context = Context.for_test(interceptors=[Cached()])
    model = clerk()

    assert await context.call(double, number=1) == 42
    assert await model.run(context.handoff, context) == "from the cache"
    assert context.usage == Usage()  # no request was sent, so no call is counted


async def test_each_request_that_is_sent_is_counted_once() -> None:
    class Twice(Interceptor):
        async def model(self, call: ModelInvocation, next: Next[ModelInvocation, ModelReply]) -> ModelReply:
            await next(call)
            return await next(call)

    class Failing(Interceptor):
        async def model(self, call: ModelInvocation, next: Next[ModelInvocation, ModelReply]) -> ModelReply:
            await next(call)
            raise TaskError("the answer is forbidden")

    twice, failing = Context.for_test(interceptors=[Twice()]), Context.for_test(interceptors=[Failing()])
    await clerk(text_reply("a"), text_reply("b")).run(twice.handoff, twice)
    with pytest.raises(TaskError, match="forbidden"):
        await clerk(text_reply("a")).run(failing.handoff, failing)

    assert (twice.usage.calls, failing.usage.calls) == (2, 1)
    chats = [report.usage for report in recorded(twice).reports if report.kind == "chat"]
    assert chats == [twice.usage]


async def test_a_request_may_be_changed_and_its_answer_only_be_shortened() -> None:
    class Changing(Interceptor):
        async def model(self, call: ModelInvocation, next: Next[ModelInvocation, ModelReply]) -> ModelReply:
            request = replace(call.request, instructions="Be brief.", max_tokens=10**6)
            return await next(replace(call, request=request))

    model, context = clerk(text_reply("a"), max_tokens=70), Context.for_test(interceptors=[Changing()])
    await model.run(context.handoff, context)

    assert isinstance(model.model, ScriptedModel)
    (request,) = model.model.requests
    assert (request.instructions, request.max_tokens) == ("Be brief.", 70)


async def test_an_attempt_may_get_another_handoff_and_its_output_be_changed() -> None:
    class Masking(Interceptor):
        async def attempt(self, call: AttemptInvocation, next: Next[AttemptInvocation, JsonValue]) -> JsonValue:
            handoff = call.handoff.model_copy(update={"input": "masked"})
            return {"answer": await next(replace(call, handoff=handoff))}

    @agent
    async def echo(text: str) -> str:
        """Repeats."""
        return text

    assert (await outcome_of(echo, Masking(), input="secret")).answer == {"answer": "masked"}


async def test_an_answer_of_an_interceptor_that_is_no_json_fails_the_call() -> None:
    class Odd(Interceptor):
        async def tool(self, call: ToolInvocation, next: Next[ToolInvocation, JsonValue]) -> JsonValue:
            return object()  # type: ignore[return-value]

        async def attempt(self, call: AttemptInvocation, next: Next[AttemptInvocation, JsonValue]) -> JsonValue:
            return object()  # type: ignore[return-value]

    class Count(BaseModel):
        words: int

    @agent
    async def count(text: str) -> Count:
        """Counts."""
        return Count(words=1)

    with pytest.raises(NotJsonError):
        await Context.for_test(interceptors=[Odd()]).call(double, number=1)
    outcome = await outcome_of(count, Odd())
    assert "the output of agent count is not JSON" in outcome.reason


async def test_a_restored_result_is_not_intercepted_again() -> None:
    log, journal = list[str](), MemoryJournal()

    class Dying(Tracing):
        async def model(self, call: ModelInvocation, next: Next[ModelInvocation, ModelReply]) -> ModelReply:
            if any("tool" in line for line in self.log):
                raise asyncio.CancelledError
            return await super().model(call, next)

    calls = tool_reply(("double", {"number": 4}))
    first = new_context(journal=journal, interceptors=[Dying(log)])
    with pytest.raises(asyncio.CancelledError):
        await clerk(calls).run(first.handoff, first)
    before = log.copy()
    second = new_context(journal=journal, interceptors=[Tracing(log)], deliveries=2)
    await clerk(text_reply("8")).run(second.handoff, second)

    assert [line for line in before if "tool" in line] == ["> tool double {'number': 4}", "< tool 8"]
    assert log[len(before) :] == ["> model scripted:scripted 1", "< model 8"]


async def test_a_person_is_asked_before_a_call_is_intercepted() -> None:
    log: list[str] = []

    @tool(approval=True)
    def pay(amount: int) -> str:
        """Pays."""
        return "paid"

    with pytest.raises(AnswerRequiredError):
        await Context.for_test(interceptors=[Tracing(log)]).call(pay, amount=1)

    assert log == []


def test_what_fits_the_protocol_is_an_interceptor_for_a_type_checker() -> None:
    interceptors: Sequence[Interceptor] = [Tracing([])]

    assert len(interceptors) == 1
