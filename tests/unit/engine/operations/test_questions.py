"""People answer questions through the client, on the memory bus with the real engines."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import BaseModel, JsonValue
from support import factory
from support.contexts import new_context
from support.factory import planner_of, synthesizer
from support.waiting import until

from pointsman.authoring.agent import Agent, agent
from pointsman.authoring.ask_person import ask_person
from pointsman.authoring.context import Context
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.authoring.tools import tool
from pointsman.bus.memory.bus import MemoryBroker, MemoryBus
from pointsman.client import operations
from pointsman.client.client import Client
from pointsman.engine.log.reader import newest_commit
from pointsman.errors import ContractError, NotFoundError
from pointsman.ports.model import ToolSpec
from pointsman.testing.models import ScriptedModel, text_reply, tool_reply
from pointsman_schemas.events import Control, Question
from pointsman_schemas.log import QuestionAsked
from pointsman_schemas.strict_json import dump
from pointsman_schemas.team import PlanAndExecute, Team

TEAM = Team(name="bank", strategy=PlanAndExecute(synthesizer=None))
PAY = {"id": "pay", "agent": "payer", "intent": "pay the bill"}


def payer(paid: list[Any]) -> Agent:
    @agent(name="payer", description="Pays", approval="required")
    async def pay(request: dict[str, Any]) -> str:
        paid.append(request)
        return "paid"

    return pay


async def asked(client: Client, count: int = 1) -> Sequence[Question]:
    async def there() -> bool:
        return len(await client.operations.questions()) >= count

    await until(there)
    return await client.operations.questions()


async def test_nothing_is_paid_before_a_person_allows_it() -> None:
    paid: list[Any] = []
    async with factory.team(TEAM, [planner_of(PAY), payer(paid)]) as client:
        workflow = await client.submit("bank", {"amount": 900})
        (question,) = await asked(client)
        before = list(paid)
        (summary,) = await client.list()

        said = await client.operations.approve(question.id, input={"amount": 90}, actor="Ann")
        outcome = await workflow.outcome(10)

        assert (before, paid) == ([], [{"amount": 90}])
        assert summary.status == "waiting for an answer"
        assert (said.counted, said.message) == (True, f"{question.id} is approved")
        assert (outcome.status, outcome.answer) == ("completed", "paid")
        assert await client.operations.questions() == []


async def test_a_question_that_is_committed_but_not_published_yet_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor publishes a question after its commit. A reader of the log must not conclude that no
    question is open."""
    publish = MemoryBus.publish

    async def publish_late(self: MemoryBus, subject: str, *given: Any, **named: Any) -> int:
        if ".question." in subject:
            await asyncio.sleep(0.3)
        return await publish(self, subject, *given, **named)

    monkeypatch.setattr(MemoryBus, "publish", publish_late)
    async with factory.team(TEAM, [planner_of(PAY), payer([])]) as client:
        workflow = await client.submit("bank", {"amount": 900})
        async for event in workflow.events():
            if isinstance(event, QuestionAsked):
                break
        (question,) = await client.operations.questions(workflow.id)

    assert question.workflow_id == workflow.id


async def test_the_published_questions_are_read_again_after_a_slow_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The question is published after the first read of the questions. The read of the log then takes longer than the
    wait for a publish."""
    monkeypatch.setattr(operations, "_PUBLISH_TIMEOUT_S", 0.1)
    read, publish = asyncio.Event(), MemoryBus.publish

    async def publish_late(self: MemoryBus, subject: str, *given: Any, **named: Any) -> int:
        if ".question." in subject:
            await read.wait()
        return await publish(self, subject, *given, **named)

    async def read_slowly(*given: Any) -> Any:
        read.set()
        await asyncio.sleep(0.2)
        return await newest_commit(*given)

    monkeypatch.setattr(MemoryBus, "publish", publish_late)
    monkeypatch.setattr(operations, "newest_commit", read_slowly)
    async with factory.team(TEAM, [planner_of(PAY), payer([])]) as client:
        workflow = await client.submit("bank", {"amount": 900})
        async for event in workflow.events():
            if isinstance(event, QuestionAsked):
                break
        (question,) = await client.operations.questions(workflow.id)

    assert question.workflow_id == workflow.id


async def test_second_answer_reports_the_first() -> None:
    async with factory.team(TEAM, [planner_of(PAY, {**PAY, "id": "again", "input": {"n": 2}}), payer([])]) as client:
        workflow = await client.submit("bank", "pay")
        first, second = await asked(client, 2)
        await client.operations.reject(first.id, reason="no", actor="Ann")

        again = await client.operations.approve(first.id, actor="Bo")
        await client.operations.reject(second.id, actor="Bo")
        outcome = await workflow.outcome(10)
        late = await client.operations.approve(second.id)

        assert (again.counted, again.message) == (
            False,
            f"{first.id} was already rejected by Ann; nothing has changed",
        )
        assert late.counted is False
        assert outcome.status == "failed"
        with pytest.raises(NotFoundError, match="there is no question"):
            await client.operations.approve(f"{workflow.id}-q9")


async def test_a_workflow_that_was_cancelled_asks_nothing_and_reports_it() -> None:
    async with factory.team(TEAM, [planner_of(PAY), payer([])]) as client:
        workflow = await client.submit("bank", "pay")
        (question,) = await asked(client)
        await workflow.cancel()
        await workflow.outcome(10)

        said = await client.operations.approve(question.id)

        assert (said.counted, said.message) == (
            False,
            f"the workflow has ended: cancelled; {question.id} is closed",
        )
        assert await client.operations.questions() == []


async def test_any_system_answers_by_one_message_without_headers() -> None:
    async with factory.team(TEAM, [planner_of(PAY), payer([])]) as client:
        workflow = await client.submit("bank", "pay")
        (question,) = await asked(client)

        answer = Control(action="approve", question=question.id)
        await client.bus.publish(f"{question.reply_to}.approve.Ann.a1", dump(answer), {})

        assert (await workflow.outcome(10)).status == "completed"


async def test_a_question_waits_through_a_restart_of_everything() -> None:
    broker, paid = MemoryBroker(), []  # type: ignore[var-annotated]
    agents = [planner_of(PAY), payer(paid)]
    async with factory.team(TEAM, agents, broker=broker) as client:
        workflow = await client.submit("bank", "pay")
        (question,) = await asked(client)

    async with factory.team(TEAM, agents, broker=broker) as client:
        await client.operations.approve(question.id)
        outcome = await workflow.outcome(10)

    assert (outcome.status, len(paid)) == ("completed", 1)


async def test_a_team_may_want_its_plan_approved() -> None:
    @agent(name="worker", description="Works")
    async def work(request: dict[str, Any]) -> str:
        return "done"

    plan = {"id": "t1", "agent": "worker", "intent": "do the work"}
    async with factory.team(
        TEAM.model_copy(update={"approve_plan": True}), [planner_of(plan), work, synthesizer]
    ) as client:
        workflow = await client.submit("bank", "work")
        (question,) = await asked(client)
        await client.operations.approve(question.id)

        assert (await workflow.outcome(10)).answer == "done"
        assert question.input == {"goal": "the test's", "tasks": [plan]}


async def test_approved_tool_runs_once_with_the_edited_arguments() -> None:
    refunded: list[tuple[str, int]] = []
    looked: list[str] = []

    @tool
    async def look_up(customer: str) -> int:
        """Finds the payments of a customer."""
        looked.append(customer)
        return 900

    @tool(approval=True)
    async def refund(customer: str, amount: int) -> str:
        """Pays money back."""
        refunded.append((customer, amount))
        return "refunded"

    model = ScriptedModel(
        tool_reply(("look_up", {"customer": "C1"})),
        tool_reply(("refund", {"customer": "C1", "amount": 900})),
        text_reply("It is refunded."),
    )
    clerk = LLMAgent(name="clerk", description="Refunds", instructions="Refund.", tools=[look_up, refund], model=model)
    task = {"id": "t1", "agent": "clerk", "intent": "refund C1"}
    async with factory.team(TEAM, [planner_of(task), clerk]) as client:
        workflow = await client.submit("bank", "refund me")
        (question,) = await asked(client)
        before = list(refunded)
        await client.operations.approve(question.id, input={"customer": "C1", "amount": 90})
        outcome = await workflow.outcome(10)

    assert (question.tool, question.input) == ("refund", {"customer": "C1", "amount": 900})
    assert (before, refunded) == ([], [("C1", 90)])
    assert looked == ["C1"], "work from before the question was repeated"
    assert (outcome.status, outcome.answer) == ("completed", "It is refunded.")
    assert outcome.usage.calls == 3
    assert {each.task_id: each.attempts for each in outcome.tasks}["t1"] == 2


@pytest.mark.parametrize("at_once", [True, False])
async def test_approval_is_for_one_call_and_an_equal_call_is_asked_about_again(at_once: bool) -> None:
    paid: list[int] = []

    @tool(approval=True)
    async def pay(amount: int) -> str:
        """Pays."""
        paid.append(amount)
        return "paid"

    call: tuple[str, JsonValue] = ("pay", {"amount": 9})
    wanted = [tool_reply(call, call)] if at_once else [tool_reply(call), tool_reply(call)]
    model = ScriptedModel(*wanted, text_reply("done"))
    clerk = LLMAgent(name="clerk", description="Pays", instructions="Pay.", tools=[pay], model=model)
    async with factory.team(TEAM, [planner_of({"id": "t1", "agent": "clerk", "intent": "pay"}), clerk]) as client:
        workflow = await client.submit("bank", "pay 9")
        (first,) = await asked(client)
        await client.operations.approve(first.id, input={"amount": 8})

        async def again() -> bool:
            return [each.id for each in await client.operations.questions()] not in ([], [first.id])

        await until(again)
        (second,) = await client.operations.questions()
        before = list(paid)
        await client.operations.reject(second.id, reason="once is enough", actor="Ann")
        outcome = await workflow.outcome(10)

    assert (first.input, second.input) == ({"amount": 9}, {"amount": 9})
    assert before == ([] if at_once else [8]), "all parallel calls must be approved before the first one runs"
    assert paid == [8]
    told = [turn.text for turn in model.requests[-1].turns if turn.role == "tool"]
    assert told == ["paid", "pay failed: the use of pay was not allowed: once is enough; do without it"]
    assert outcome.status == "completed"


async def test_rejected_call_is_not_asked_about_again() -> None:
    @tool(approval=True)
    async def pay(amount: int) -> str:
        """Pays."""
        raise AssertionError("a rejected call must not run")

    model = ScriptedModel(tool_reply(("pay", {"amount": 9})), tool_reply(("pay", {"amount": 9})), text_reply("done"))
    clerk = LLMAgent(name="clerk", description="Pays", instructions="Pay.", tools=[pay], model=model)
    async with factory.team(TEAM, [planner_of({"id": "t1", "agent": "clerk", "intent": "pay"}), clerk]) as client:
        workflow = await client.submit("bank", "pay 9")
        (question,) = await asked(client)
        await client.operations.reject(question.id, reason="no")
        outcome = await workflow.outcome(10)
        left = await client.operations.questions()

    assert left == []
    assert outcome.status == "completed"


async def test_invalid_arguments_are_refused_and_the_approval_stays_open() -> None:
    refunded: list[int] = []

    @tool(approval=True)
    async def refund(customer: str, amount: int) -> str:
        """Pays money back."""
        refunded.append(amount)
        return "refunded"

    model = ScriptedModel(tool_reply(("refund", {"customer": "C1", "amount": 900})), text_reply("It is refunded."))
    clerk = LLMAgent(name="clerk", description="Refunds", instructions="Refund.", tools=[refund], model=model)
    task = {"id": "t1", "agent": "clerk", "intent": "refund C1"}
    async with factory.team(TEAM, [planner_of(task), clerk]) as client:
        workflow = await client.submit("bank", "refund me")
        (question,) = await asked(client)

        with pytest.raises(ContractError, match=r"refund: \$\.customer: 5 is not of type 'string'; .* is still open"):
            await client.operations.approve(question.id, input={"customer": 5, "amount": 90})
        with pytest.raises(ContractError, match="'amount' is a required property"):
            await client.operations.approve(question.id, input={"customer": "C1"})
        with pytest.raises(ContractError, match="'cents' was unexpected"):
            await client.operations.approve(question.id, input={"customer": "C1", "amount": 9, "cents": 1})
        still = [each.id for each in await client.operations.questions()]
        said = await client.operations.approve(question.id, input={"customer": "C1", "amount": 90})
        outcome = await workflow.outcome(10)

    assert still == [question.id]
    assert (said.counted, outcome.status, refunded) == (True, "completed", [90])


async def test_invalid_input_is_refused_and_the_approval_stays_open() -> None:
    class Bill(BaseModel):
        amount: int

    paid: list[int] = []

    @agent(name="payer", description="Pays", approval="required")
    async def pay(bill: Bill) -> str:
        paid.append(bill.amount)
        return "paid"

    async with factory.team(TEAM, [planner_of({**PAY, "input": {"amount": 900}}), pay]) as client:
        workflow = await client.submit("bank", "pay")
        (question,) = await asked(client)

        with pytest.raises(ContractError, match=r"the agent payer: \$\.amount: 'much' is not of type 'integer'"):
            await client.operations.approve(question.id, input={"amount": "much"})
        await client.operations.approve(question.id, input={"amount": 90})

        assert (await workflow.outcome(10)).status == "completed"
        assert paid == [90]


@pytest.mark.parametrize(
    "schema",
    [{"type": "nonsense"}, {"$ref": "https://schemas.example/refund"}, {"type": "string", "pattern": r"\p{L}+"}],
)
async def test_unchecked_input_is_left_to_the_worker(schema: dict[str, Any]) -> None:
    got: list[str] = []

    @tool(approval=True)
    async def note(text: str) -> str:
        """Notes it."""
        got.append(text)
        return "noted"

    note.spec = ToolSpec("note", "Notes it.", {"type": "object", "properties": {"text": schema}})
    model = ScriptedModel(tool_reply(("note", {"text": "a"})), text_reply("It is noted."))
    clerk = LLMAgent(name="clerk", description="Notes", instructions="Note.", tools=[note], model=model)
    async with factory.team(TEAM, [planner_of({"id": "t1", "agent": "clerk", "intent": "note"}), clerk]) as client:
        workflow = await client.submit("bank", "note")
        (question,) = await asked(client)

        await client.operations.approve(question.id, input={"text": "b"})

        assert (await workflow.outcome(10)).status == "completed"
        assert got == ["b"]


async def test_agent_may_continue_without_a_rejected_call() -> None:
    @tool(approval=True)
    async def wipe() -> str:
        """Wipes the disk."""
        raise AssertionError("a rejected call must not run")

    context = Context.for_test()
    said = {"tool": "wipe", "verdict": "rejected", "by": "Ann", "reason": "no"}
    handoff = context.handoff.model_validate({**context.handoff.model_dump(), "answers": [said]})

    result = await wipe.call("{}", new_context(handoff))

    assert (result.is_error, result.text) == (True, "wipe failed: the use of wipe was not allowed: no; do without it")


class Account(BaseModel):
    number: str


async def transfer(request: JsonValue, context: Context) -> dict[str, Any]:
    """Transfer money."""
    account, when = await asyncio.gather(
        context.ask("Which account?", output=Account), context.ask("When?", choices=["today", "later"])
    )
    return {"to": account.number, "when": when}


async def transfer_in_a_group(request: JsonValue, context: Context) -> dict[str, Any]:
    """Transfer money."""
    async with asyncio.TaskGroup() as group:
        account = group.create_task(context.ask("Which account?", output=Account))
        when = group.create_task(context.ask("When?", choices=["today", "later"]))
    return {"to": account.result().number, "when": when.result()}


@pytest.mark.parametrize("work", [transfer, transfer_in_a_group])
async def test_questions_of_a_function_are_answered_through_a_restart_of_everything(work: Any) -> None:
    broker = MemoryBroker()
    agents = [planner_of(PAY), agent(name="payer")(work)]
    async with factory.team(TEAM, agents, broker=broker) as client:
        workflow = await client.submit("bank", "pay")
        first, second = await asked(client, 2)
        with pytest.raises(ContractError, match=r"does not fit the question: \$: '17' is not of type 'object'"):
            await client.operations.answer(first.id, "17")
        with pytest.raises(ContractError, match="which `approve` does not answer; use answer or reject"):
            await client.operations.approve(first.id)

    async with factory.team(TEAM, agents, broker=broker) as client:
        said = await client.operations.answer(first.id, {"number": "17"}, actor="Ann")
        await client.operations.answer(second.id, "later", actor="Bo")
        outcome = await (await client.workflow(workflow.id)).outcome(10)

        assert (said.counted, said.message) == (True, f"{first.id} is answered")
        assert (outcome.status, outcome.answer) == ("completed", {"to": "17", "when": "later"})
        assert (first.request, first.team) == ("pay", "bank")


async def test_model_asks_a_person_and_no_model_call_is_repeated() -> None:
    model = ScriptedModel(
        tool_reply(("ask_person", {"question": "Which account?", "choices": ["a", "b"]})), text_reply("paid to b")
    )
    clerk = LLMAgent(name="payer", description="Pays", instructions="Pay.", tools=[ask_person], model=model)
    async with factory.team(TEAM, [planner_of(PAY), clerk]) as client:
        workflow = await client.submit("bank", "pay")
        (question,) = await asked(client)

        await client.operations.answer(question.id, "b", actor="Ann")
        outcome = await workflow.outcome(10)

    assert (outcome.status, outcome.answer) == ("completed", "paid to b")
    assert len(model.requests) == 2


async def test_wrong_answer_of_another_program_is_recorded_and_the_question_stays_open() -> None:
    async with factory.team(TEAM, [planner_of(PAY), agent(name="payer")(transfer)]) as client:
        workflow = await client.submit("bank", "pay")
        first, second = await asked(client, 2)

        wrong = Control(action="answer", question=first.id, input="17")
        await client.bus.publish(f"{first.reply_to}.answer.Ann.a1", dump(wrong), {})
        await client.operations.answer(second.id, "today")
        left = await client.operations.questions()
        await client.operations.answer(first.id, {"number": "17"})

        assert [each.id for each in left] == [first.id]
        assert (await workflow.outcome(10)).status == "completed"
